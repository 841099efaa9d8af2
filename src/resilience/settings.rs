//! The settings of circuit breakers.

use std::time::Duration;

/// Stops calls to a failing store, and probes whether it works again.
///
/// Each node of a store has its own breaker: each master of a Redis Cluster, otherwise the store as a whole.
///
/// - **Closed**: requests use the store. After a number of consecutive failures or timeouts, the breaker opens.
/// - **Open**: requests don't wait for the store; [`OnStoreError`](crate::OnStoreError) applies at once. After a pause,
///   the next request triggers a probe in the background, which peeks at its charges. If the probe succeeds, the breaker
///   becomes half open.
/// - **Half open**: the next request uses the store. If it succeeds, the breaker closes.
///
/// If a probe or that request fails, the breaker stays open for another pause, twice as long up to the longest. The
/// actual pause is random between half and all of this length, so that the processes of a fleet don't retry in step.
///
/// Concurrent requests often share a call, so failures of concurrent requests count as one. A store that hangs is
/// therefore skipped after as many deadlines as failures, however many requests wait for it.
///
/// Answers that are ready at once, as those of a memory store, never open a breaker. Neither do errors that concern a
/// single request, such as a Redis key of another type or [contention](crate::StoreErrorKind::Contention) for a key.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{CircuitBreaker, FixedWindow, Limit, RateLimitLayer};
///
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
///     .circuit_breaker(CircuitBreaker::new().failures(10).longest_pause(Duration::from_millis(500)))
///     .build();
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CircuitBreaker {
    /// Zero if the breaker never opens.
    pub(super) failures: u32,
    pub(super) longest_pause: Duration,
}

/// The first pause, unless the longest is shorter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl CircuitBreaker {
    /// Creates a breaker that opens after 5 consecutive failures, with pauses of up to a second.
    #[must_use]
    pub const fn new() -> Self {
        Self { failures: 5, longest_pause: Duration::from_secs(1) }
    }

    /// Creates a breaker that never opens: every request waits for the store until the deadline.
    #[must_use]
    pub const fn off() -> Self {
        Self { failures: 0, ..Self::new() }
    }

    /// Sets the number of consecutive failures or timeouts after which the breaker opens. Defaults to 5.
    ///
    /// # Panics
    ///
    /// Panics if `failures` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn failures(self, failures: u32) -> Self {
        assert!(failures > 0, "a circuit breaker opens after 0 failures: use at least 1, or turn it off");
        Self { failures, ..self }
    }

    /// Sets the longest pause. Defaults to a second. The first pause is 100 ms, or `pause` if that is shorter.
    ///
    /// # Panics
    ///
    /// Panics if `pause` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn longest_pause(self, pause: Duration) -> Self {
        assert!(!pause.is_zero(), "longest_pause is 0: use at least 1 ns");
        Self { longest_pause: pause, ..self }
    }

    pub(super) fn first_pause(&self) -> Duration {
        FIRST_PAUSE.min(self.longest_pause)
    }
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self::new()
    }
}
