//! Who is compared. Each is asked for what is allowed for years, so that all decisions are alike, and
//! for all that it can say.

use std::future::Future;
use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use foldhash::quality::RandomState;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use hashbrown::HashTable;
use http::Request;
use tower_ratelimit::{
    Algorithm, CycleClock, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, MemoryStore, RateLimitLayer,
    SlidingLog, SlidingWindow, SlidingWindowCounter, TokenBucket, key,
};
use tower_service::Service;

pub trait Subject: Send + Sync {
    /// Decides a request for each key.
    fn decide(&self, keys: &[String]);
}

/// Whom the others are compared with.
pub const BASE: &str = "governor";
pub const OURS: &str = "ours";

pub type Make = fn() -> Box<dyn Subject>;

/// Those that are compared under every load.
pub const SUBJECTS: [(&str, Make); 4] = [
    (BASE, || Box::new(governor())),
    (OURS, || Box::new(ours(bucket()))),
    ("ours, by cycles", || Box::new(by_cycles())),
    ("floor", || Box::new(Floor::new())),
];

/// What is compared once.
pub const DETAILS: [(&str, Make); 14] = [
    ("clock", || Box::new(SystemClock(Instant::now()))),
    ("governor's clock", || Box::new(GovernorsClock(DefaultClock::default()))),
    ("intervals", || Box::new(ours(bucket().at_intervals()))),
    ("fixed window", || Box::new(ours(FixedWindow::new(u32::MAX, DAY)))),
    ("sliding counter", || Box::new(ours(SlidingWindowCounter::new(u32::MAX, DAY)))),
    ("sliding window", || Box::new(ours(SlidingWindow::new(u32::MAX, DAY)))),
    ("sliding log", || Box::new(ours(SlidingLog::new(100, MINUTE)))),
    ("leaky bucket", || Box::new(ours(LeakyBucket::new(u32::MAX, 6, MINUTE)))),
    ("queue", || Box::new(ours(LeakyBucketQueue::new(u32::MAX, 6, MINUTE)))),
    ("two limits", || {
        Box::new(limiter(vec![Limit::new("a", bucket()), Limit::new("b", FixedWindow::new(u32::MAX, DAY))]))
    }),
    ("no layer", || Box::new(Routes::new(|routes| routes))),
    ("layer", || Box::new(Routes::new(|routes| routes.layer(layer().headers([]))))),
    ("layer with headers", || Box::new(Routes::new(|routes| routes.layer(layer())))),
    ("four limits", || Box::new(limiter(["a", "b", "c", "d"].map(|name| Limit::new(name, bucket())).into()))),
];

pub fn all() -> impl Iterator<Item = (&'static str, Make)> {
    SUBJECTS.into_iter().chain(DETAILS)
}

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn bucket() -> TokenBucket {
    TokenBucket::new(u32::MAX, 6, MINUTE)
}

fn ours(algorithm: impl Into<Algorithm>) -> Limiter {
    limiter(vec![Limit::new("limit", algorithm)])
}

fn limiter(limits: Vec<Limit>) -> Limiter {
    Limiter::new(limits).store(MemoryStore::new().max_keys(20_000_000))
}

fn by_cycles() -> Limiter {
    let store = MemoryStore::new().max_keys(20_000_000).clock(CycleClock::new());
    Limiter::new([Limit::new("limit", bucket())]).store(store)
}

fn layer() -> RateLimitLayer {
    let store = MemoryStore::new().max_keys(20_000_000);
    RateLimitLayer::new([Limit::new("limit", bucket()).by(key::header("x-api-key"))]).store(store)
}

/// A route of Axum, with what is between it and its requests.
struct Routes(Mutex<Router>);

impl Routes {
    fn new(with: impl FnOnce(Router) -> Router) -> Self {
        Self(Mutex::new(with(Router::new().route("/", get(async || "")))))
    }
}

impl Subject for Routes {
    fn decide(&self, keys: &[String]) {
        let mut routes = self.0.lock().expect("no panics");
        for key in keys {
            let request = Request::get("/").header("x-api-key", key).body(Body::empty()).expect("a request");
            let Poll::Ready(response) = pin!(routes.call(request)).poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("it answers at once");
            };
            assert!(black_box(response).is_ok_and(|response| response.status() == 200));
        }
    }
}

impl Subject for Limiter {
    fn decide(&self, keys: &[String]) {
        for key in keys {
            let decision = self.acquire(key.as_str(), 1).into_ready().expect("at once").expect("it decides");
            black_box((decision.is_allowed(), decision.retry_after()));
            for outcome in decision.outcomes() {
                black_box((outcome.remaining(), outcome.more_after(), outcome.reset_after()));
            }
        }
    }
}

fn governor() -> DefaultKeyedRateLimiter<String> {
    let quota = Quota::with_period(MINUTE / 6).expect("not 0");
    RateLimiter::keyed(quota.allow_burst(NonZeroU32::MAX))
}

impl Subject for DefaultKeyedRateLimiter<String> {
    fn decide(&self, keys: &[String]) {
        for key in keys {
            let _ = black_box(self.check_key(key));
        }
    }
}

type Shard = Mutex<HashTable<(u128, u64)>>;

/// A sharded table of 128-bit prints, and one update.
struct Floor {
    hashers: [RandomState; 2],
    shards: Vec<Shard>,
}

impl Floor {
    fn new() -> Self {
        Self { hashers: Default::default(), shards: (0..1_024).map(|_| Mutex::default()).collect() }
    }

    fn print(&self, key: &str) -> u128 {
        let [high, low] = [0, 1].map(|half| u128::from(self.hashers[half].hash_one(key)));
        high << 64 | low
    }
}

impl Subject for Floor {
    fn decide(&self, keys: &[String]) {
        for key in keys {
            let print = self.print(key);
            let mut shard = self.shards[(print >> 64) as usize % self.shards.len()].lock().expect("no panics");
            let entry = shard.entry(print as u64, |(known, _)| *known == print, |(known, _)| *known as u64);
            entry.or_insert((print, 0)).get_mut().1 += 1;
        }
    }
}

struct SystemClock(Instant);

impl Subject for SystemClock {
    fn decide(&self, keys: &[String]) {
        for _ in keys {
            black_box(self.0.elapsed());
        }
    }
}

struct GovernorsClock(DefaultClock);

impl Subject for GovernorsClock {
    fn decide(&self, keys: &[String]) {
        for _ in keys {
            black_box(self.0.now());
        }
    }
}
