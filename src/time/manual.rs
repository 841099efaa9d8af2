//! A clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Clock, Timestamp, clamp};

/// A clock for tests, which stands still until it is [advanced](Self::advance) or [set](Self::set). Clones share the
/// time.
///
/// It does not affect Tokio's timers, which [`Limiter::wait`](crate::Limiter::wait) and the delays of a
/// [`LeakyBucketQueue`](crate::LeakyBucketQueue) use. To test these, use the [`SystemClock`](crate::SystemClock) and
/// `tokio::time::pause`, which controls both.
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
    /// Creates a clock that shows `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(start.0)))
    }

    /// Advances the clock, at most to [`Timestamp::MAX`].
    pub fn advance(&self, by: Duration) {
        let advance = |now: u64| Some(clamp(u128::from(now) + by.as_micros()));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
    }

    /// Sets the clock to a later or earlier time.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
