//! The test vectors, with every store, to the microsecond and the token.
//!
//! They are the `*.json` files of the folder in the environment variable `VECTORS`, by default `tests/vectors`.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use serde::Deserialize;
use serde_json::Number;
use support::limits::Patient;
use support::limits::acquire_costs;
use support::memcached_server::MemcachedServer;
use support::redis_server::RedisServer;
use tower_ratelimit::{
    Algorithm, Decision, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, ManualClock, MemoryStore,
    Rounding, SlidingLog, SlidingWindow, SlidingWindowCounter, Timestamp, TokenBucket,
};

use crate::memcached;

#[derive(Deserialize)]
struct Trace {
    name: String,
    limits: Vec<Terms>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(tag = "algorithm", rename_all = "snake_case", deny_unknown_fields)]
enum Terms {
    FixedWindow { limit: u32, period: u64 },
    SlidingLog { limit: u32, period: u64 },
    SlidingWindow { limit: u32, period: u64, buckets: u32 },
    SlidingWindowCounter { limit: u32, period: u64, rounding: Option<String> },
    TokenBucket { capacity: u32, amount: u32, interval: u64, refill: Option<String> },
    LeakyBucket { capacity: u32, amount: u32, interval: u64 },
    LeakyBucketQueue { capacity: u32, amount: u32, interval: u64 },
}

#[derive(Deserialize)]
struct Step {
    at: u64,
    costs: Vec<u64>,
    allowed: bool,
    retry_after: Option<Number>,
    delay: Number,
    limits: Vec<Level>,
}

#[derive(Debug, PartialEq)]
struct Answer {
    allowed: bool,
    retry_after: Option<Number>,
    delay: Number,
    limits: Vec<Level>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Level {
    remaining: Number,
    more_after: Option<Number>,
    reset_after: Number,
}

impl Terms {
    fn algorithm(&self) -> Algorithm {
        let us = Duration::from_micros;
        match *self {
            Self::FixedWindow { limit, period } => FixedWindow::new(limit, us(period)).into(),
            Self::SlidingLog { limit, period } => SlidingLog::new(limit, us(period)).into(),
            Self::SlidingWindow { limit, period, buckets } => {
                SlidingWindow::new(limit, us(period)).buckets(buckets).into()
            }
            Self::SlidingWindowCounter { limit, period, ref rounding } => {
                let rounding = match rounding.as_deref() {
                    None | Some("up") => Rounding::Up,
                    Some("down") => Rounding::Down,
                    Some(other) => panic!("unknown rounding {other:?}"),
                };
                SlidingWindowCounter::new(limit, us(period)).rounding(rounding).into()
            }
            Self::TokenBucket { capacity, amount, interval, ref refill } => {
                let bucket = TokenBucket::new(capacity, amount, us(interval));
                match refill.as_deref() {
                    None | Some("continuous") => bucket.into(),
                    Some("interval") => bucket.at_intervals().into(),
                    Some(other) => panic!("unknown refill {other:?}"),
                }
            }
            Self::LeakyBucket { capacity, amount, interval } => LeakyBucket::new(capacity, amount, us(interval)).into(),
            Self::LeakyBucketQueue { capacity, amount, interval } => {
                LeakyBucketQueue::new(capacity, amount, us(interval)).into()
            }
        }
    }
}

impl From<&Step> for Answer {
    fn from(step: &Step) -> Self {
        Self {
            allowed: step.allowed,
            retry_after: step.retry_after.clone(),
            delay: step.delay.clone(),
            limits: step.limits.clone(),
        }
    }
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        let micros = |span: Duration| Number::from_string_unchecked(span.as_micros().to_string());
        Self {
            allowed: decision.is_allowed(),
            retry_after: decision.retry_after().map(micros),
            delay: micros(decision.delay()),
            limits: decision
                .outcomes()
                .iter()
                .map(|outcome| Level {
                    remaining: outcome.remaining().into(),
                    more_after: outcome.more_after().map(micros),
                    reset_after: micros(outcome.reset_after()),
                })
                .collect(),
        }
    }
}

fn traces() -> Vec<Trace> {
    let folder = std::env::var_os("VECTORS").map_or_else(|| support::repository("tests/vectors"), PathBuf::from);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("can't read {}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder's entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let traces = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).expect("a readable file");
        serde_json::from_str::<Vec<Trace>>(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    });
    traces.collect()
}

/// A store that reads the clock.
struct Subject {
    limiter: Box<dyn Fn(Vec<Limit>, ManualClock) -> Limiter>,
}

impl Subject {
    fn memory() -> Self {
        let store = |clock| MemoryStore::new().max_keys(1_000).clock(clock);
        Self { limiter: Box::new(move |limits, clock| Limiter::builder(limits).store(store(clock)).build()) }
    }
    async fn redis(server: &RedisServer) -> Self {
        let store = tower_ratelimit::RedisConfig::node(server.url()).patient().connect().await.expect("a connection");
        let limiter = move |limits, clock| Limiter::builder(limits).patient().store(store.clone().clock(clock)).build();
        Self { limiter: Box::new(limiter) }
    }
}

async fn compare(subject: Subject) {
    let traces = traces();
    let steps: usize = traces.iter().map(|trace| trace.steps.len()).sum();
    assert!(steps > 0, "the vectors hold no step");
    let traces = traces.iter().map(|trace| differences(trace, &subject));
    let differences: Vec<String> = stream::iter(traces).buffered(64).concat().await;
    println!("{steps} steps compared");
    assert!(
        differences.is_empty(),
        "{} of {steps} steps differ:\n{}",
        differences.len(),
        differences[..10.min(differences.len())].join("\n")
    );
}

/// Runs a trace, and describes each decision that differs from the expected one.
async fn differences(trace: &Trace, subject: &Subject) -> Vec<String> {
    let mut differences = Vec::new();
    let named = |(index, terms): (usize, &Terms)| Limit::new(format!("limit-{index}"), terms.algorithm());
    let limits: Vec<Limit> = trace.limits.iter().enumerate().map(named).collect();
    let clock = ManualClock::new(Timestamp::EPOCH);
    let limiter = (subject.limiter)(limits, clock.clone());
    for (index, step) in trace.steps.iter().enumerate() {
        clock.set(Timestamp::from_micros(step.at));
        let decision = acquire_costs(&limiter, trace.name.as_str(), &step.costs).await.expect("a decision");
        let (answer, expected) = (Answer::from(decision), Answer::from(step));
        if answer != expected {
            let (name, costs) = (&trace.name, &step.costs);
            differences.push(format!(
                "{name}, step {index}, costs {costs:?}:\n  expected {expected:?}\n  got      {answer:?}"
            ));
        }
    }
    differences
}

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors() {
    compare(Subject::memory()).await;
}

#[tokio::test]
async fn the_redis_store_agrees_with_the_vectors() {
    let server = RedisServer::start();
    compare(Subject::redis(&server).await).await;
}

#[tokio::test]
async fn a_store_on_memcached_agrees_with_the_vectors() {
    let server = MemcachedServer::start();
    let memcached = memcached::connect(&server).await;
    let limiter =
        move |limits, clock| Limiter::builder(limits).patient().store(memcached::with_clock(&memcached, clock)).build();
    compare(Subject { limiter: Box::new(limiter) }).await;
}
