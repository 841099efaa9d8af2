//! Runs only decisions, calls, or waits, so that instructions can be counted.

use std::hint::black_box;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tower_ratelimit::{FixedWindow, Limit, Limiter, RedisConfig, RedisStore, TokenBucket};

use crate::algorithms::{algorithms, bucket, buckets, in_memory, with_slots};
use crate::decisions::warm;
use crate::floors::{TABLE, Table, apps, clocks};
use crate::keys::{self, BATCH, Keys, LOADS, Load, write};
use crate::layers::{CASES, batch};
use crate::peers::shared;
use crate::recorded;
use crate::redis::RedisServer;
use crate::subject::{Memory, PATIENCE, PEERS};

/// Decides as many requests for keys that were chosen before and are known. A flood makes up its own keys.
pub fn decide(subject: &str, load: &str, decisions: usize) {
    let load = LOADS.into_iter().find(|known| known.name == load).expect("a load");
    let subject = find(subject, &load);
    warm(&*subject, load.keys);
    let mut keys = Keys::new(&load, 1);
    let batches: Vec<Vec<String>> = (0..40).map(|_| keys.next().to_vec()).collect();
    for batch in batches.iter().cycle().take(decisions.div_ceil(BATCH)) {
        subject.decide_each(batch);
    }
}

fn find(name: &str, load: &Load) -> Box<dyn Memory> {
    let day = Duration::from_secs(86_400);
    match name {
        TABLE => return Box::new(Table::new()),
        "two limits" => {
            return in_memory([Limit::new("a", bucket()), Limit::new("b", FixedWindow::new(u32::MAX, day))]);
        }
        "four limits" => return in_memory(buckets(4)),
        "denied" => return in_memory([Limit::new("limit", TokenBucket::new(1, 1, day))]),
        "a lease" => return Box::new(leased()),
        "a peek" => return Box::new(Peek::at(load.keys)),
        "a new key" => return Box::new(Flood::new(in_memory([Limit::new("limit", bucket())]))),
        _ => {}
    }
    if let Some(limiter) = recorded::limiter(name) {
        return limiter;
    }
    if let Some((_, algorithm)) = algorithms().into_iter().find(|(known, _)| *known == name) {
        return in_memory([Limit::new("limit", algorithm)]);
    }
    if let Some(peer) = PEERS.into_iter().find(|peer| peer.name() == name) {
        return peer.memory(load.quota(), load.keys).expect("it decides in memory");
    }
    // Built only when used: calibrating a clock takes a different number of instructions each time.
    clocks().into_iter().find(|(known, _)| *known == name).expect("a subject").1
}

/// Returns a limiter that has leased more tokens for the load of one key than are asked for. Its server has stopped, so
/// that it would fail without them.
fn leased() -> Limiter {
    let server = RedisServer::start();
    let limit = Limit::new("limit", bucket()).leased(Duration::from_secs(60));
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let limiter = shared([limit], RedisStore::connect(&server.url()).await.expect("a connection"));
        // The second one leases as many tokens as the first one took.
        for _ in 0..2 {
            assert!(limiter.acquire(keys::name(0), 10_000_000).await.expect("a decision").is_allowed());
        }
        limiter
    })
}

/// A limiter that only peeks.
struct Peek(Limiter);

impl Peek {
    /// Peeks at as many known keys.
    fn at(keys: u32) -> Self {
        let limiter = Limiter::new([Limit::new("limit", bucket())]);
        warm(&limiter, keys);
        Self(limiter)
    }
}

impl Memory for Peek {
    fn decide(&self, key: &String) -> bool {
        let answer = self.0.peek(key.as_str(), 1);
        black_box(answer.as_ready().expect("at once").as_ref().expect("it decides").is_allowed())
    }
}

/// Requests with a new key each.
struct Flood {
    memory: Box<dyn Memory>,
    /// The number of keys so far, and the last one.
    keys: Mutex<(u32, String)>,
}

impl Flood {
    fn new(memory: Box<dyn Memory>) -> Self {
        Self { memory, keys: Mutex::new((0, String::new())) }
    }
}

impl Memory for Flood {
    fn decide(&self, _: &String) -> bool {
        let (count, key) = &mut *self.keys.lock().expect("nobody panicked");
        *count += 1;
        write(key, *count);
        self.memory.decide(key)
    }
}

/// Sends as many requests to an application, in batches.
pub fn call(subject: &str, case: &str, requests: usize) {
    let case = CASES.into_iter().find(|known| known.name() == case).expect("a case");
    let known = match subject {
        "a rate" => Some(with_slots(false)),
        "a rate and a slot" => Some(with_slots(true)),
        _ => apps().into_iter().find(|(name, _)| *name == subject).map(|(_, app)| app),
    };
    let app = known.or_else(|| recorded::app(subject)).unwrap_or_else(|| {
        let peer = PEERS.into_iter().find(|peer| peer.name() == subject).expect("a subject");
        case.app(peer).expect("it has such a layer")
    });
    let mut app = app.ready();
    let first = batch(&app);
    for _ in 0..requests.div_ceil(first.len()) {
        for request in batch(&app) {
            app.answer(request);
        }
    }
}

/// Decides as many requests with as many limits on Redis, some of them at a time.
pub async fn ask(url: &str, limits: usize, together: usize, decisions: usize) {
    // A server under callgrind is slow.
    let config = RedisConfig::node(url).connect_timeout(PATIENCE).response_timeout(PATIENCE);
    let limiter = shared(buckets(limits), config.connect().await.expect("a connection"));
    for first in (0..decisions).step_by(together) {
        let asked = (first..first + together).map(|key| limiter.acquire((key % 512) as u64, 1));
        for decision in join_all(asked).await {
            assert!(decision.expect("a decision").is_allowed());
        }
    }
}

/// Checks that the clock advances at the right pace where nothing can pause it, unlike in the crate's own tests: a
/// denied request is allowed after `retry_after`, to the microsecond.
pub fn wait() {
    const PERIOD: Duration = Duration::from_millis(20);
    const MICRO: Duration = Duration::from_micros(1);
    let limiter = Limiter::new([Limit::new("limit", TokenBucket::new(1, 1, PERIOD))]);
    let ask = || {
        let before = Instant::now();
        let answer = limiter.acquire("key", 1);
        let after = Instant::now();
        (before, answer.into_ready().expect("at once").expect("it decides"), after)
    };
    let mut told = 0;
    for _ in 0..25 {
        let (before, allowed, after) = ask();
        assert!(allowed.is_allowed(), "{allowed:?} of who has waited");
        let (since, denied, until) = ask();
        // Unless the machine stood still in between.
        let Some(wait) = denied.retry_after() else { continue };
        assert!(since + wait <= after + PERIOD + MICRO && until + wait + MICRO >= before + PERIOD, "{wait:?}");
        thread::sleep(wait);
        told += 1;
    }
    assert!(told > 0, "nobody was denied");
}
