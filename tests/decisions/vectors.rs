//! The test vectors, with every store, to the microsecond and the token.
//!
//! They are the `*.json` files of the folder in the environment variable `VECTORS`, by default `tests/vectors`.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use serde::Deserialize;
use support::limits::{Patient, acquire_costs};
use support::memcached_server::MemcachedServer;
use support::model::Answer;
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, ManualClock, MemoryStore, Rounding,
    SlidingLog, SlidingWindow, SlidingWindowCounter, Timestamp, TokenBucket,
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
    SlidingWindowCounter { limit: u32, period: u64, rounding: Option<String>, weight: Option<u32> },
    TokenBucket { capacity: u32, amount: u32, interval: u64, refill: Option<String> },
    LeakyBucket { capacity: u32, amount: u32, interval: u64 },
    LeakyBucketQueue { capacity: u32, amount: u32, interval: u64, burst: Option<u32> },
}

#[derive(Debug, Deserialize)]
struct Step {
    at: u64,
    costs: Vec<u64>,
    allowed: bool,
    retry_after: Option<u128>,
    delay: u128,
    limits: Vec<Level>,
}

#[derive(Debug, Deserialize)]
struct Level {
    remaining: u64,
    more_after: Option<u128>,
    reset_after: u128,
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
            Self::SlidingWindowCounter { limit, period, ref rounding, weight } => {
                let rounding = match rounding.as_deref() {
                    None | Some("up") => Rounding::Up,
                    Some("down") => Rounding::Down,
                    Some(other) => panic!("unknown rounding {other:?}"),
                };
                SlidingWindowCounter::new(limit, us(period)).rounding(rounding).weight(weight.unwrap_or(100)).into()
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
            Self::LeakyBucketQueue { capacity, amount, interval, burst } => {
                LeakyBucketQueue::new(capacity, amount, us(interval)).burst(burst.unwrap_or(0)).into()
            }
        }
    }
}

impl Step {
    /// Returns whether a decision is the expected one.
    fn matches(&self, answer: &Answer) -> bool {
        let levels = answer.limits.iter().map(|limit| (limit.remaining, limit.more_after, limit.reset_after));
        (self.allowed, self.retry_after, self.delay) == (answer.allowed, answer.retry_after, answer.delay)
            && levels.eq(self.limits.iter().map(|level| (level.remaining, level.more_after, level.reset_after)))
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

async fn compare(new_limiter: &impl Fn(Vec<Limit>, ManualClock) -> Limiter) {
    let traces = traces();
    let steps: usize = traces.iter().map(|trace| trace.steps.len()).sum();
    assert!(steps > 0, "the vectors hold no step");
    let traces = traces.iter().map(|trace| differences(trace, new_limiter));
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
async fn differences(trace: &Trace, new_limiter: &impl Fn(Vec<Limit>, ManualClock) -> Limiter) -> Vec<String> {
    let mut differences = Vec::new();
    let named = |(index, terms): (usize, &Terms)| Limit::new(format!("limit-{index}"), terms.algorithm());
    let limits: Vec<Limit> = trace.limits.iter().enumerate().map(named).collect();
    let clock = ManualClock::new(Timestamp::EPOCH);
    let limiter = new_limiter(limits, clock.clone());
    for (index, step) in trace.steps.iter().enumerate() {
        clock.set(Timestamp::from_micros(step.at));
        let decision = acquire_costs(&limiter, trace.name.as_str(), &step.costs).await.expect("a decision");
        let answer = Answer::from(&decision);
        if !step.matches(&answer) {
            let name = &trace.name;
            differences.push(format!("{name}, step {index}:\n  expected {step:?}\n  got      {answer:?}"));
        }
    }
    differences
}

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors() {
    let store = |clock| MemoryStore::new().max_keys(1_000).clock(clock);
    compare(&|limits, clock| Limiter::builder(limits).store(store(clock)).build()).await;
}

#[tokio::test]
async fn the_redis_store_agrees_with_the_vectors() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    compare(&|limits, clock| Limiter::builder(limits).patient().store(store.clone().clock(clock)).build()).await;
}

#[tokio::test]
async fn a_store_on_memcached_agrees_with_the_vectors() {
    let server = MemcachedServer::start();
    let memcached = memcached::connect(&server).await;
    let store = |clock| memcached::with_clock(&memcached, clock);
    compare(&|limits, clock| Limiter::builder(limits).patient().store(store(clock)).build()).await;
}
