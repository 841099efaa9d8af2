//! Long deadlines, for tests that are not about deadlines.

use std::time::{Duration, Instant};

use tower_ratelimit::{Builder, CircuitBreaker, RedisConfig, RedisStore};

/// A configuration with long deadlines, because a loaded machine can stop for seconds.
pub trait Patient {
    fn patient(self) -> Self;
}

/// The longest time to wait for something that must happen.
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

/// Connects, and retries until it succeeds.
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
