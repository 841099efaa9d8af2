//! Stores in memory and on Redis, and limiters without short deadlines.

use std::sync::Arc;
use std::time::Duration;

use tower_ratelimit::{
    Algorithm, Builder, CircuitBreaker, HttpOptions, LeakyBucket, LeakyBucketQueue, Limit, Limiter, ManualClock,
    MemoryStore, RateLimitLayer, RedisConfig, RedisStore, Store, Timestamp, TokenBucket,
};

use support::limits::{Patient, all, kind};
use support::redis_server::RedisServer;

/// A store whose clock stands at midnight.
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: ManualClock,
}

/// Runs a test in memory and on Redis.
pub(crate) async fn on_each_backend(test: impl AsyncFn(&Backend)) {
    let clock = midnight();
    let store = Arc::new(MemoryStore::new().clock(clock.clone()));
    test(&Backend { name: "memory", store, clock }).await;

    let server = RedisServer::start();
    let clock = midnight();
    let store = on(&server).await.clock(clock.clone());
    test(&Backend { name: "redis", store: Arc::new(store), clock }).await;
}

/// Connects a store without short deadlines.
pub(crate) async fn on(server: &RedisServer) -> RedisStore {
    RedisConfig::node(server.url()).patient().connect().await.expect("a connection")
}

fn midnight() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000))
}

impl Backend {
    pub(crate) fn limiter(&self, limits: impl IntoIterator<Item = Limit>) -> Limiter {
        Limiter::builder(limits).patient().store(self.store.clone()).build()
    }

    pub(crate) fn layer(&self, limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
        layer(limits, self.store.clone())
    }
}

/// Builds a layer without a short deadline.
pub(crate) fn layer(limits: impl IntoIterator<Item = Limit>, store: impl Store) -> Builder<HttpOptions> {
    RateLimitLayer::builder(limits)
        .store(store)
        .deadline(Duration::from_secs(30))
        .circuit_breaker(CircuitBreaker::off())
}

/// Returns the same limit with another capacity. The rate of a bucket stays the same, because a change of the rate
/// converts its backlog.
pub(crate) fn holding(limit: Algorithm, tokens: u32) -> Algorithm {
    let window = limit.window_at(Timestamp::EPOCH);
    let (_, size) = all(tokens, window).into_iter().find(|(_, of)| kind(of) == kind(&limit)).unwrap();
    // All buckets that `all` creates regain their capacity within their interval.
    let (amount, interval) = (limit.capacity() as u32, window);
    match kind(&limit).as_str() {
        "a token bucket" => TokenBucket::new(tokens, amount, interval).into(),
        "a token bucket (at intervals)" => TokenBucket::new(tokens, amount, interval).at_intervals().into(),
        "a leaky bucket" => LeakyBucket::new(tokens, amount, interval).into(),
        "a leaky bucket queue" => LeakyBucketQueue::new(tokens - 1, amount, interval).into(),
        _ => size,
    }
}

/// Returns the remaining tokens of a limiter's first limit.
pub(crate) async fn left(limiter: &Limiter, key: &str) -> u64 {
    limiter.peek(key, 1).await.unwrap().outcomes()[0].remaining()
}

pub(crate) async fn is_allowed(limiter: &Limiter, key: &str, cost: u64) -> bool {
    limiter.acquire(key, cost).await.unwrap().is_allowed()
}
