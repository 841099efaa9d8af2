//! Waiting for a slow store.

use std::time::{Duration, Instant};

use tower_ratelimit::{Builder, CircuitBreaker, RedisConfig, RedisStore};

/// Who waits however long it takes, where a test is not about that: machines stand still for seconds.
pub trait Patient {
    fn patient(self) -> Self;
}

/// How long something may take that is bound to happen.
pub const LONG: Duration = Duration::from_secs(30);

impl<T> Patient for Builder<T> {
    fn patient(self) -> Self {
        self.deadline(LONG).circuit_breaker(CircuitBreaker::off())
    }
}

impl Patient for RedisConfig {
    fn patient(self) -> Self {
        self.connect_timeout(LONG).response_timeout(LONG)
    }
}

/// Connects as it is configured, however often that takes: a Sentinel has no more than a second to answer in.
pub async fn connected(config: RedisConfig) -> RedisStore {
    let begun = Instant::now();
    loop {
        match config.clone().connect().await {
            Ok(store) => return store,
            Err(error) => assert!(begun.elapsed() < 2 * LONG, "no connection: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
