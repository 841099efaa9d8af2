//! A clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Clock, Timestamp, clamp};

/// A clock that moves only when it is told to, for tests. Its clones tell the same time.
///
/// It moves no timers: what waits ([`Limiter::wait`](crate::Limiter::wait), a queue's delays) sleeps
/// in Tokio's time. To test that, leave the [`SystemClock`](crate::SystemClock) and let `tokio::time::pause` stop both.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::new(Timestamp::EPOCH);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), Timestamp::from_micros(1_000_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(start.0)))
    }

    /// Moves the clock forward; it stops at [`Timestamp::MAX`].
    pub fn advance(&self, by: Duration) {
        let moved = |now: u64| Some(clamp(u128::from(now) + by.as_micros()));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
