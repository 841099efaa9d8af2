//! When a store that fails is left alone, and for how long.

use std::time::Duration;

use crate::error::{ConfigError, Fault};
use crate::quota::checked;

/// When a limiter stops asking a store that fails, and for how long.
///
/// Each node of a store has a breaker of its own: each master of a Redis Cluster, otherwise the store as a whole.
///
/// After so many failures or timeouts in a row the breaker opens: nothing waits for the store any more,
/// and [`OnStoreError`](crate::OnStoreError) answers at once. After a pause, one of the requests that
/// come by has the store asked in the background what it would decide. If it answers, the next request
/// is decided by it, and if that works the breaker closes. If either fails there is another pause,
/// twice as long up to the longest. Pauses are random, between half their length and all of it, so
/// that a fleet does not come back as one.
///
/// Requests that were under way at the same time often share a call: if several of them fail, that is one failure. A
/// store that hangs is thus left alone after as many deadlines as failures, however many requests wait for it.
///
/// A store that answers at once, as one in memory does, is never left alone, whatever it answers. Nor is
/// a Redis that works, but can't decide one request as its key there holds something else.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{CircuitBreaker, FixedWindow, Limit, RateLimitLayer};
///
/// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))])
///     .circuit_breaker(CircuitBreaker::new().failures(10).longest_pause(Duration::from_millis(500)));
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CircuitBreaker {
    /// Zero: never.
    pub(super) failures: u32,
    pub(super) longest_pause: Duration,
}

/// The first pause, unless the longest is shorter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

impl CircuitBreaker {
    /// Opens after 5 failures in a row; the longest pause is a second.
    #[must_use]
    pub const fn new() -> Self {
        Self { failures: 5, longest_pause: Duration::from_secs(1) }
    }

    /// None: every request asks the store, and waits for it until the deadline.
    #[must_use]
    pub const fn off() -> Self {
        Self { failures: 0, ..Self::new() }
    }

    /// After how many failures or timeouts in a row it opens, from 1.
    ///
    /// # Panics
    ///
    /// When `failures` is 0; at compile time in a constant. [`try_failures`](Self::try_failures)
    /// returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn failures(self, failures: u32) -> Self {
        checked!(self.opening_after(failures))
    }

    /// Like [`failures`](Self::failures), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `failures` is 0.
    pub fn try_failures(self, failures: u32) -> Result<Self, ConfigError> {
        Ok(self.opening_after(failures)?)
    }

    const fn opening_after(self, failures: u32) -> Result<Self, Fault> {
        match failures {
            0 => Err(Fault::NoFailures),
            failures => Ok(Self { failures, ..self }),
        }
    }

    /// The longest pause, from 1 ns. The first is 100 ms, or this if it is shorter.
    ///
    /// # Panics
    ///
    /// When `pause` is 0; at compile time in a constant.
    /// [`try_longest_pause`](Self::try_longest_pause) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn longest_pause(self, pause: Duration) -> Self {
        checked!(self.pausing(pause))
    }

    /// Like [`longest_pause`](Self::longest_pause), for a time that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `pause` is 0.
    pub fn try_longest_pause(self, pause: Duration) -> Result<Self, ConfigError> {
        Ok(self.pausing(pause)?)
    }

    const fn pausing(self, pause: Duration) -> Result<Self, Fault> {
        if pause.is_zero() {
            return Err(Fault::WaitZero { what: "longest_pause" });
        }
        Ok(Self { longest_pause: pause, ..self })
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
