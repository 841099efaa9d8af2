//! A store on either side, and limiters that wait for it.

use std::sync::Arc;
use std::time::Duration;

use tower_ratelimit::{
    Algorithm, Builder, CircuitBreaker, HttpOptions, Limit, Limiter, ManualClock, MemoryStore, RateLimitLayer,
    RedisConfig, RedisStore, Store, Timestamp,
};

use support::limits::{Patient, all};
use support::redis_server::RedisServer;

/// A store whose clock stands at a midnight.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: ManualClock,
}

/// Runs a test in memory and on Redis.
pub(crate) async fn everywhere(test: impl AsyncFn(&Place)) {
    let clock = midnight();
    let store = Arc::new(MemoryStore::new().clock(clock.clone()));
    test(&Place { name: "memory", store, clock }).await;

    let server = RedisServer::start();
    let clock = midnight();
    let store = on(&server).await.clock(clock.clone());
    test(&Place { name: "redis", store: Arc::new(store), clock }).await;
}

/// A store that waits for its server however long it takes.
pub(crate) async fn on(server: &RedisServer) -> RedisStore {
    RedisConfig::node(server.url()).patient().connect().await.expect("a connection")
}

fn midnight() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000))
}

impl Place {
    pub(crate) fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Limiter {
        Limiter::builder(limits).patient().store(self.store.clone()).build()
    }

    pub(crate) fn layer(&self, limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
        layer(limits, self.store.clone())
    }
}

/// A layer that waits for its store however long it takes.
pub(crate) fn layer(limits: impl IntoIterator<Item = Limit>, store: impl Store) -> Builder<HttpOptions> {
    RateLimitLayer::builder(limits)
        .store(store)
        .deadline(Duration::from_secs(30))
        .circuit_breaker(CircuitBreaker::off())
}

/// The same limit, of so many tokens at once. A bucket's rate stays: how many tokens it owes at another one is its
/// own affair.
pub(crate) fn holding(limit: Algorithm, tokens: u32) -> Algorithm {
    let (_, size) = all(tokens, limit.window()).into_iter().find(|(_, of)| is_alike(of, &limit)).unwrap();
    match limit {
        Algorithm::TokenBucket(bucket) => bucket.burst(tokens).into(),
        Algorithm::LeakyBucket(bucket) => bucket.burst(tokens).into(),
        Algorithm::LeakyBucketQueue(queue) => queue.waiting(tokens - 1).into(),
        _ => size,
    }
}

fn is_alike(one: &Algorithm, other: &Algorithm) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// What is left of a limiter's first limit.
pub(crate) async fn left(limiter: &Limiter, key: &str) -> u64 {
    limiter.peek(key, 1).await.unwrap().outcomes()[0].remaining()
}

pub(crate) async fn is_allowed(limiter: &Limiter, key: &str, cost: u64) -> bool {
    limiter.acquire(key, cost).await.unwrap().is_allowed()
}
