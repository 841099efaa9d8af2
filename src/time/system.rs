//! The clock of the operating system.

use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::{Clock, Timestamp, clamp};

/// The monotonic clock of the operating system, which starts at the wall clock's time when it is created.
///
/// So windows align with the wall clock, but later corrections of the wall clock (by NTP or an operator) do not move
/// them. `tokio::time::pause` stops this clock along with Tokio's timers.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// The difference between the wall clock and the monotonic clock at creation, in µs. Wraps if it is negative.
    offset: u64,
    /// The instant of creation, which Tokio's clock is read relative to.
    created: Instant,
}

impl SystemClock {
    /// Creates a clock that starts at the wall clock's current time.
    #[must_use]
    pub fn new() -> Self {
        let created = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { offset: offset(clamp(wall.as_micros()), monotonic_micros(created)), created }
    }
}

/// Returns the difference between the two clocks. It is negative, and wraps, if the wall clock was never set;
/// [`timestamp`] reverses the wrapping.
fn offset(wall: u64, monotonic: u64) -> u64 {
    wall.wrapping_sub(monotonic)
}

fn timestamp(offset: u64, monotonic: u64) -> Timestamp {
    Timestamp(offset.wrapping_add(monotonic).min(Timestamp::MAX.0))
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        timestamp(self.offset, monotonic_micros(self.created))
    }
}

/// Reads the monotonic clock, in µs. If Tokio's clock can't be paused, this reads the operating system's clock directly,
/// because `Instant` takes as many instructions as a third of the rest of a decision.
#[inline]
fn monotonic_micros(created: Instant) -> u64 {
    #[cfg(target_os = "linux")]
    if !tokio_clock::CAN_BE_PAUSED {
        return os_clock_micros();
    }
    let elapsed = created.elapsed();
    // Cheaper than `as_micros`, which computes 128 bits: 2^64 µs are 584,554 years.
    elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
}

/// Reads the clock that `std::time::Instant` reads too.
#[cfg(target_os = "linux")]
#[inline]
fn os_clock_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Detects at compile time whether Tokio's clock can be paused, which requires its feature `test-util`.
///
/// A crate can't query the features of another one. But `tokio::time::pause` exists only with that feature, so the name
/// `pause` refers to Tokio's function with the feature, and to the function below without it.
#[cfg(target_os = "linux")]
mod tokio_clock {
    pub(super) const CAN_BE_PAUSED: bool = {
        // A glob import in this block takes precedence over the items of the module.
        #[allow(unused_imports)]
        use tokio::time::*;
        returns_unit(pause)
    };

    struct NotTokio;

    #[allow(dead_code)]
    fn pause() -> NotTokio {
        NotTokio
    }

    trait Returned {
        const IS_UNIT: bool;
    }

    /// The type that `tokio::time::pause` returns.
    impl Returned for () {
        const IS_UNIT: bool = true;
    }

    impl Returned for NotTokio {
        const IS_UNIT: bool = false;
    }

    const fn returns_unit<R: Returned>(_: fn() -> R) -> bool {
        R::IS_UNIT
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wall_clock_behind_the_monotonic_clock_is_supported() {
        let uptime = 3_600_000_000;
        for wall in [0, 1, uptime - 1, uptime, 1_767_225_600_000_000] {
            let offset = offset(wall, uptime);
            assert_eq!(timestamp(offset, uptime), Timestamp(wall));
            assert_eq!(timestamp(offset, uptime + 5), Timestamp(wall + 5));
        }
        assert_eq!(timestamp(offset(Timestamp::MAX.0, 0), uptime), Timestamp::MAX);
    }

    /// The feature `test-util` is enabled in this crate's tests.
    #[tokio::test(start_paused = true)]
    async fn the_system_clock_follows_the_paused_clock_of_tokio() {
        let clock = SystemClock::new();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().as_micros() - before.as_micros(), 3_000_000);
    }

    /// Applications read this clock; the tests of this crate can pause Tokio's clock, and read that.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_os_clock_runs_at_the_rate_of_instants() {
        crate::time::tests::assert_constant_rate(os_clock_micros, 0);
    }
}
