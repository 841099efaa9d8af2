//! Calendar windows in time zones. The same tests run in memory and on Redis.
#![allow(clippy::unwrap_used)]

mod changes;
mod dates;
mod http;
mod identity;
mod random;
mod redis_clock;
mod starts;

use std::sync::Arc;
use std::time::Duration;

use support::patient::Patient;
use support::redis_server::RedisServer;
use tower_ratelimit::{
    Algorithm, Builder, Decision, Limit, Limiter, ManualClock, MemoryStore, RedisConfig, Store, Timestamp,
};

/// A store with its clock.
struct Backend {
    name: &'static str,
    store: Arc<dyn Store>,
    clock: ManualClock,
}

/// Runs a test in memory and on Redis.
async fn on_each_backend(test: impl AsyncFn(&Backend)) {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::new().clock(clock.clone()));
    test(&Backend { name: "memory", store, clock }).await;

    let server = RedisServer::start();
    let clock = ManualClock::default();
    let store = config(&server).connect().await.unwrap().clock(clock.clone());
    test(&Backend { name: "redis", store: Arc::new(store), clock }).await;
}

fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig::node(server.url()).patient()
}

impl Backend {
    fn limiter(&self, algorithm: impl Into<Algorithm>) -> Limiter {
        limiter([Limit::new("quota", algorithm)]).store(self.store.clone()).build()
    }

    fn set(&self, at: u64) {
        self.clock.set(Timestamp::from_micros(at));
    }
}

fn limiter(limits: impl IntoIterator<Item = Limit>) -> Builder {
    Limiter::builder(limits).patient()
}

/// Returns an instant such as `2026-03-29T02:30:00Z` in µs.
fn at(text: &str) -> u64 {
    text.parse::<jiff::Timestamp>().unwrap().as_microsecond().try_into().unwrap()
}

fn remaining(decision: &Decision) -> u64 {
    decision.outcomes()[0].remaining()
}

/// Returns the time until the key is unused again, in µs.
fn reset_after(decision: &Decision) -> u64 {
    decision.outcomes()[0].reset_after().as_micros().try_into().unwrap()
}

fn micros(span: Option<Duration>) -> Option<u64> {
    span.map(|span| span.as_micros().try_into().unwrap())
}
