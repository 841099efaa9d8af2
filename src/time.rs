//! Instants in whole microseconds, and the clocks that tell them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// An instant: whole microseconds since the Unix epoch.
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

    /// The latest instant that can be told: 2^62 µs after the epoch, in the year 148,108.
    pub const MAX: Self = Self(1 << 62);

    /// The instant `micros` µs after the epoch.
    ///
    /// # Panics
    ///
    /// When it would be later than [`Timestamp::MAX`].
    #[must_use]
    #[track_caller]
    pub const fn from_micros(micros: u64) -> Self {
        assert!(micros <= Self::MAX.0, "a timestamp is at most 2^62 µs after the epoch");
        Self(micros)
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

/// Tells a store what time it is. One request is decided at one instant.
///
/// A clock should not step back. If it does, nothing panics and no limit admits more: time stands
/// still for a key that it has seen until the clock has caught up, and a bucket may seem emptier
/// until then.
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
    /// The present instant.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The machine's monotonic clock, set by its wall clock once, when it was made.
///
/// So windows align with the wall clock, and no correction of it (NTP, an operator) moves them.
/// It stands still under `tokio::time::pause`, as Tokio's timers do.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    wall: u64,
    since: Instant,
}

impl SystemClock {
    /// A clock that the wall clock has just set.
    #[must_use]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall: clamp(wall.as_micros()), since: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.since.elapsed();
        // Not `as_micros`, whose 128 bits this path has no use for: 2^64 µs are 584,554 years.
        let elapsed = elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros());
        Timestamp((self.wall + elapsed).min(Timestamp::MAX.0))
    }
}

/// The processor's cycle counter, set by the wall clock once, when it was made: cheaper to read than the
/// [`SystemClock`], so that a decision about a key in the processor's caches takes about a tenth less time.
/// Where the counter does not run evenly and on all cores alike, it reads the machine's monotonic clock.
///
/// - Its pace is measured once in a process, within some millionths: after a day it may be a tenth of a
///   second off the machine's clock, and windows begin as much early or late. Waits are as exact as
///   ever, told in its own time.
/// - To measure takes up to 200 ms, when the first one in the process is made.
/// - It goes on under `tokio::time::pause`.
///
/// ```
/// use tower_ratelimit::{CycleClock, MemoryStore};
///
/// let store = MemoryStore::new().clock(CycleClock::new());
/// # let _ = store;
/// ```
#[cfg(feature = "cycle-clock")]
#[derive(Clone, Debug)]
pub struct CycleClock {
    counter: quanta::Clock,
    wall: u64,
    since: u64,
}

#[cfg(feature = "cycle-clock")]
impl CycleClock {
    /// A clock that the wall clock has just set.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let wall = SystemClock::new().wall;
        Self { wall, since: counter.raw(), counter }
    }
}

#[cfg(feature = "cycle-clock")]
impl Default for CycleClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "cycle-clock")]
impl Clock for CycleClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.counter.delta_as_nanos(self.since, self.counter.raw()) / 1_000;
        Timestamp((self.wall + elapsed).min(Timestamp::MAX.0))
    }
}

/// A clock that moves only when it is told to, for tests. Its clones tell the same time.
///
/// It moves no timers: what waits ([`Limiter::wait`](crate::Limiter::wait), a queue's delays) sleeps
/// in Tokio's time. To test that, leave the [`SystemClock`] and let `tokio::time::pause` stop both.
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

fn clamp(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX).min(Timestamp::MAX.0)
}

/// A span of whole microseconds. The longest there is, 2^32 intervals of 366 days, fits.
#[inline]
pub(crate) fn micros(span: u128) -> Duration {
    match u64::try_from(span) {
        Ok(span) => Duration::from_micros(span),
        Err(_) => Duration::new((span / 1_000_000) as u64, (span % 1_000_000) as u32 * 1_000),
    }
}

/// The whole seconds of a span, rounded up.
#[inline]
pub(crate) fn ceil_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_span_is_told_exactly() {
        let longest = (1u128 << 32) * 31_622_400_000_000 + 1;
        assert_eq!(micros(longest).as_micros(), longest);
    }

    #[test]
    fn seconds_round_up() {
        assert_eq!(ceil_seconds(Duration::ZERO), 0);
        assert_eq!(ceil_seconds(Duration::from_micros(1)), 1);
        assert_eq!(ceil_seconds(Duration::from_secs(2)), 2);
    }

    /// It goes at the machine's pace, within a hundredth: what it tells lies between what is told before
    /// and after.
    #[cfg(feature = "cycle-clock")]
    #[test]
    fn cycles_are_microseconds() {
        let (cycles, system) = (CycleClock::new(), SystemClock::new());
        let micros = |clock: &dyn Clock| clock.now().as_micros();
        let [first, begin, second] = [micros(&system), micros(&cycles), micros(&system)];
        std::thread::sleep(Duration::from_millis(50));
        let [third, end, fourth] = [micros(&system), micros(&cycles), micros(&system)];
        let (least, most) = (third - second, fourth - first);
        let told = end - begin;
        assert!((least - least / 100 - 1..=most + most / 100 + 1).contains(&told), "{least} {told} {most}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_stands_still_with_tokios() {
        let clock = SystemClock::new();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().as_micros() - before.as_micros(), 3_000_000);
    }
}
