//! Connections to real Redis servers: their failures, and their recovery.

mod access;
mod breaks;
mod forgotten;
mod rejections;
mod sentinels;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(feature = "redis-tls")]
mod tls;
mod waits;

use std::time::{Duration, Instant};

use support::patient::Patient;
use support::redis_server::RedisServer;
use tower_ratelimit::{Builder, FixedWindow, Limit, Limiter, RedisConfig, RedisStore, StoreError};

/// A short deadline for decisions.
const DEADLINE: Duration = Duration::from_millis(50);

/// A limit that is never exhausted. Its remaining tokens count the charges.
const MOST: u32 = 1_000_000;

fn limiter(store: RedisStore) -> Builder {
    Limiter::builder(Limit::new("limit", FixedWindow::new(MOST, Duration::from_secs(366 * 86_400))))
        .patient()
        .store(store)
}

/// Connects a store with long timeouts, because loaded machines stop for longer than the default timeouts.
async fn connect(server: &RedisServer) -> RedisStore {
    RedisConfig::node(server.url()).patient().connect().await.expect("a connection")
}

/// Charges 1, and returns the total charge.
async fn charge(limiter: &Limiter) -> u64 {
    let decision = limiter.acquire("key", 1).await.expect("a decision");
    u64::from(MOST) - decision.outcomes()[0].remaining()
}

/// Charges 1, unless that takes longer than the deadline.
async fn short_deadline(limiter: &Limiter) -> Option<Result<(), StoreError>> {
    let decision = tokio::time::timeout(DEADLINE, limiter.acquire("key", 1)).await.ok()?;
    Some(decision.map(drop))
}

/// Returns the total charge.
async fn charged(limiter: &Limiter) -> u64 {
    let decision = limiter.peek("key", 1).await.expect("a decision");
    u64::from(MOST) - decision.outcomes()[0].remaining()
}

/// Charges until a charge succeeds, and returns the time that this took. (A Sentinel that was stopped pauses for 30 s.)
async fn resume(limiter: &Limiter) -> Duration {
    let began = Instant::now();
    while !matches!(short_deadline(limiter).await, Some(Ok(()))) {
        assert!(began.elapsed() < Duration::from_secs(120), "it never comes back");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    began.elapsed()
}

/// Waits for something that must happen.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "never so: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
