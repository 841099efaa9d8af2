//! Timestamps in microseconds, clocks, and pauses.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

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
/// A clock should be monotonic. If it steps back, limits become stricter: until it has caught up, time stands still for
/// each key that was charged before, and a bucket may report fewer tokens than it holds. After a step back by more than
/// a second, usage that had expired before the step may be admitted once more.
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

    /// Returns the wall clock's time, by which a [`MemoryStore`](crate::MemoryStore) begins and ends the windows of a
    /// [`CalendarWindow`](crate::CalendarWindow). Defaults to [`now`](Self::now): override it if that does not follow
    /// corrections of the wall clock.
    fn wall_time(&self) -> Timestamp {
        self.now()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn wall_time(&self) -> Timestamp {
        (**self).wall_time()
    }
}

/// The clock of the operating system.
///
/// [`now`](Clock::now) starts at the wall clock's time when the clock is created. It never steps, so that corrections of
/// the wall clock (by NTP or an operator) neither shorten nor lengthen a period. On Linux, it goes on while the machine is
/// suspended (`CLOCK_BOOTTIME`); elsewhere, it is the clock of [`std::time::Instant`], which some systems stop.
///
/// [`wall_time`](Clock::wall_time) follows the wall clock, with all its corrections.
///
/// `tokio::time::pause` stops both along with Tokio's timers.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// The wall clock's time at creation, in µs.
    start: u64,
    /// The difference between that and the time since boot, in µs. It is negative, and wraps, if the wall clock was
    /// never set.
    #[cfg(target_os = "linux")]
    offset: u64,
    /// The instant of creation, which Tokio's clock is read relative to.
    created: Instant,
}

impl SystemClock {
    /// Creates a clock that starts at the wall clock's current time.
    #[must_use]
    pub fn new() -> Self {
        let (created, start) = (Instant::now(), wall_time().0);
        Self {
            start,
            #[cfg(target_os = "linux")]
            offset: start.wrapping_sub(micros_of(ClockId::Boottime)),
            created,
        }
    }
}

/// Returns the time at which a clock that is behind by `offset`, which may have wrapped, shows `micros`.
fn timestamp(offset: u64, micros: u64) -> Timestamp {
    Timestamp(offset.wrapping_add(micros).min(Timestamp::MAX.0))
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    /// Reads the operating system's clock directly, because `Instant` takes as many instructions as a third of the rest
    /// of a decision.
    #[inline]
    fn now(&self) -> Timestamp {
        #[cfg(target_os = "linux")]
        if tokio_clock::runs() {
            return timestamp(self.offset, micros_of(ClockId::Boottime));
        }
        timestamp(self.start, micros(self.created.elapsed()))
    }

    fn wall_time(&self) -> Timestamp {
        if tokio_clock::runs() { wall_time() } else { self.now() }
    }
}

/// Reads a clock, in µs. The wall clock may have been set to a time before the epoch.
#[cfg(target_os = "linux")]
#[inline]
fn micros_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.max(0).cast_unsigned() * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Reads the wall clock.
#[inline]
fn wall_time() -> Timestamp {
    #[cfg(target_os = "linux")]
    let now = micros_of(ClockId::Realtime);
    #[cfg(not(target_os = "linux"))]
    let now = micros(std::time::UNIX_EPOCH.elapsed().unwrap_or_default());
    timestamp(0, now)
}

/// Converts to µs: cheaper than `as_micros`, which computes 128 bits.
#[inline]
fn micros(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000).saturating_add(span.subsec_micros().into())
}

/// Detects at compile time whether Tokio's clock can be paused, which requires its feature `test-util`.
///
/// A crate can't query the features of another one. But `tokio::time::pause` exists only with that feature, so the name
/// `pause` refers to Tokio's function with the feature, and to the function below without it.
mod tokio_clock {
    const CAN_BE_PAUSED: bool = {
        // A glob import in this block takes precedence over the items of the module.
        #[allow(unused_imports)]
        use tokio::time::*;
        size_of_result(pause) == 0
    };

    /// Returns whether Tokio's clock is that of the operating system: it neither is paused nor was advanced.
    #[inline]
    pub(super) fn runs() -> bool {
        use std::time::Instant;

        let before = CAN_BE_PAUSED.then(Instant::now);
        before.is_none_or(|before| {
            let now = tokio::time::Instant::now().into_std();
            (before..=Instant::now()).contains(&now)
        })
    }

    /// Unlike Tokio's function, returns a value.
    #[allow(dead_code)]
    fn pause() -> u8 {
        0
    }

    const fn size_of_result<R>(_: fn() -> R) -> usize {
        size_of::<R>()
    }
}

/// Reads the processor's cycle counter, which is cheaper than the [`SystemClock`]: a decision about a key in the
/// processor's caches takes up to a tenth less time. Starts at the wall clock's time when it is created. On machines
/// whose counter is not constant, or differs between cores, it reads the monotonic clock of the operating system.
///
/// - The counter's frequency is measured once per process, with an error of a few parts per million. After a day, the
///   clock may therefore deviate from the operating system's by a tenth of a second, so that windows begin early or
///   late by as much. Waits are not affected, because they are measured by this clock too.
/// - The measurement takes up to 200 ms, when a process creates its first `CycleClock`.
/// - Many processors stop or reset the counter while the machine is suspended, and it stands still while a virtual
///   machine is paused. Then periods last as much longer: use the [`SystemClock`] on such machines. Calendar windows are
///   not affected, because they follow the wall clock.
/// - `tokio::time::pause` does not stop it.
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
    /// The wall clock's time at creation, in µs since the Unix epoch.
    created_at: u64,
    /// The counter's value at creation.
    start: u64,
}

#[cfg(feature = "cycle-clock")]
impl CycleClock {
    /// Creates a clock that starts at the wall clock's current time.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let created_at = SystemClock::new().now().as_micros();
        Self { created_at, start: counter.raw(), counter }
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
        let elapsed = self.counter.delta_as_nanos(self.start, self.counter.raw()) / 1_000;
        timestamp(self.created_at, elapsed)
    }

    fn wall_time(&self) -> Timestamp {
        wall_time()
    }
}

/// A clock for tests, which stands still until it is [advanced](Self::advance) or [set](Self::set). Clones share the
/// time.
///
/// It does not affect Tokio's timers, which [`Limiter::wait`](crate::Limiter::wait) and the delays of a
/// [`LeakyBucketQueue`](crate::LeakyBucketQueue) use. To test these, use the [`SystemClock`] and
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

    #[tokio::test(start_paused = true)]
    async fn an_action_happens_at_most_once_per_interval() {
        let (cooldown, minute) = (Cooldown::default(), Duration::from_secs(60));
        let mut happened = 0;
        for _ in 0..600 {
            happened += u32::from(cooldown.try_start(minute));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(happened, 10);
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

    /// Asserts that a clock of µs runs at the rate of `Instant`, with an error of at most `ppm` parts per million.
    /// Reads an `Instant` before and after each reading of the clock, so that the test does not depend on the load.
    #[cfg(any(target_os = "linux", feature = "cycle-clock"))]
    fn assert_constant_rate(clock: impl Fn() -> u64, ppm: u64) {
        use std::time::Instant;

        let read = || (Instant::now(), clock(), Instant::now());
        let [first, second] = std::array::from_fn(|_| (read(), std::thread::sleep(Duration::from_millis(50))).0);
        let micros = |from: Instant, to: Instant| to.duration_since(from).as_micros() as u64;
        let (least, most) = (micros(first.2, second.0), micros(first.0, second.2));
        let elapsed = second.1 - first.1;
        let [below, above] = [least, most].map(|span| span * ppm / 1_000_000 + 1);
        assert!((least - below..=most + above).contains(&elapsed), "{least} {elapsed} {most}");
    }

    #[test]
    fn a_wall_clock_behind_the_monotonic_clock_is_supported() {
        let uptime = 3_600_000_000;
        for wall in [0_u64, 1, uptime - 1, uptime, 1_767_225_600_000_000] {
            let offset = wall.wrapping_sub(uptime);
            assert_eq!(timestamp(offset, uptime), Timestamp(wall));
            assert_eq!(timestamp(offset, uptime + 5), Timestamp(wall + 5));
        }
        assert_eq!(timestamp(Timestamp::MAX.0, uptime), Timestamp::MAX);
    }

    /// The feature `test-util` is enabled in this crate's tests.
    #[tokio::test(start_paused = true)]
    async fn the_system_clock_follows_the_paused_clock_of_tokio() {
        let clock = SystemClock::new();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().as_micros() - before.as_micros(), 3_000_000);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_time_since_boot_runs_at_the_rate_of_instants() {
        assert_constant_rate(|| micros_of(ClockId::Boottime), 0);
    }

    #[cfg(feature = "cycle-clock")]
    #[test]
    fn cycles_are_converted_to_microseconds() {
        let clock = CycleClock::new();
        assert_constant_rate(|| clock.now().as_micros(), 10_000);
    }
}
