//! Timestamps in microseconds, clocks, and pauses.

mod clocks;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

#[cfg(feature = "cycle-clock")]
pub use self::clocks::CycleClock;
pub use self::clocks::{ManualClock, SystemClock};

/// An instant, in microseconds since the Unix epoch.
///
/// ```
/// use tower_ratelimit::Timestamp;
///
/// let noon = Timestamp::from_micros(43_200_000_000);
/// assert_eq!(noon.as_micros(), 43_200_000_000);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The latest timestamp: 2^52 µs after the epoch, in the year 2112.
    pub const MAX: Self = Self(1 << 52);

    /// Creates a timestamp from the number of microseconds since the Unix epoch.
    ///
    /// # Panics
    ///
    /// Panics if the timestamp would be later than [`Timestamp::MAX`].
    #[must_use]
    #[track_caller]
    pub const fn from_micros(micros: u64) -> Self {
        assert!(micros <= Self::MAX.0, "a timestamp is at most 2^52 µs after the epoch");
        Self(micros)
    }

    /// Returns the number of microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the timestamp after a duration, rounded down to whole microseconds, or [`Timestamp::MAX`] if it would be
    /// later.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::Timestamp;
    ///
    /// let hour = Duration::from_secs(3_600);
    /// assert_eq!(Timestamp::EPOCH.saturating_add(hour), Timestamp::from_micros(3_600_000_000));
    /// assert_eq!(Timestamp::MAX.saturating_add(hour), Timestamp::MAX);
    /// ```
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(clamp(u128::from(self.0) + duration.as_micros()))
    }
}

/// A source of the current time. A store reads it once per request.
///
/// A clock should be monotonic. If it steps back, limits become stricter, never laxer: until it has caught up, time
/// stands still for each key that was charged before, and a bucket may report fewer tokens than it holds.
///
/// ```
/// use tower_ratelimit::{Clock, Timestamp};
///
/// #[derive(Debug)]
/// struct Frozen;
///
/// impl Clock for Frozen {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_micros(1_767_225_600_000_000)
///     }
/// }
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// Converts to µs, limited to [`Timestamp::MAX`].
fn clamp(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX).min(Timestamp::MAX.0)
}

/// Returns the number of microseconds in a span, rounded up, and at most `u64::MAX`.
pub(crate) fn ceil_micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Returns the number of seconds in a span, rounded up.
#[inline]
pub(crate) fn ceil_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// An action that happens at most once per interval, such as a line in the log. It may happen at once when this is
/// created.
#[allow(dead_code, reason = "only used by some features")]
#[derive(Debug)]
pub(crate) struct Cooldown {
    created: Instant,
    /// The end of the interval, in µs after `created`.
    end: AtomicU64,
}

#[allow(dead_code, reason = "only used by some features")]
impl Cooldown {
    /// Returns whether the action may happen now. If so, starts an interval: of concurrent calls, one returns `true`.
    pub(crate) fn try_start(&self, interval: Duration) -> bool {
        let (now, end) = (self.created.elapsed(), self.end.load(Ordering::Relaxed));
        let next = now.saturating_add(interval).as_micros() as u64;
        now.as_micros() as u64 >= end
            && self.end.compare_exchange(end, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Starts an interval, whether or not the last one is over.
    pub(crate) fn restart(&self, interval: Duration) {
        self.end.store((self.created.elapsed() + interval).as_micros() as u64, Ordering::Relaxed);
    }
}

impl Default for Cooldown {
    fn default() -> Self {
        Self { created: Instant::now(), end: AtomicU64::new(0) }
    }
}

/// Returns a random duration between half of `pause` and all of it, so that a fleet does not retry in step.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause / 2 + random_up_to(pause / 2)
}

/// Returns a random duration between zero and `longest`.
pub(crate) fn random_up_to(longest: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) >> 32;
    longest.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_round_up() {
        assert_eq!(ceil_seconds(Duration::ZERO), 0);
        assert_eq!(ceil_seconds(Duration::from_micros(1)), 1);
        assert_eq!(ceil_seconds(Duration::from_secs(2)), 2);
    }

    #[test]
    fn pauses_are_random_within_their_bounds() {
        let pause = Duration::from_millis(100);
        let drawn: Vec<Duration> = (0..100).map(|_| jittered(pause)).collect();
        assert!(drawn.iter().all(|drawn| (pause / 2..=pause).contains(drawn)), "{drawn:?}");
        let mut different = drawn.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 90, "{drawn:?}");
    }
}
