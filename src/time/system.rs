//! The machine's own clock.

use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::{Clock, Timestamp, clamp};

/// The machine's monotonic clock, set by its wall clock once, when it was made.
///
/// So windows align with the wall clock, and no correction of it (NTP, an operator) moves them.
/// It stands still under `tokio::time::pause`, as Tokio's timers do.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// How far the wall clock was ahead of what is read.
    ahead: u64,
    /// What Tokio's clock is read from.
    since: Instant,
}

impl SystemClock {
    /// A clock that the wall clock has just set.
    #[must_use]
    pub fn new() -> Self {
        let since = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { ahead: ahead(clamp(wall.as_micros()), read(since)), since }
    }
}

/// How far `wall` is ahead of what was `read`. Less than nothing where the wall clock was not set: it wraps, and back
/// when what is read is added.
fn ahead(wall: u64, read: u64) -> u64 {
    wall.wrapping_sub(read)
}

fn told(ahead: u64, read: u64) -> Timestamp {
    Timestamp(ahead.wrapping_add(read).min(Timestamp::MAX.0))
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        told(self.ahead, read(self.since))
    }
}

/// The monotonic clock, in µs: where nobody can pause Tokio's, the machine's itself, without the way by `Instant`, which
/// takes as many instructions as a third of the rest of a decision.
#[inline]
fn read(since: Instant) -> u64 {
    #[cfg(target_os = "linux")]
    if !pausable::IS {
        return machine();
    }
    let elapsed = since.elapsed();
    // Not `as_micros`, whose 128 bits this path has no use for: 2^64 µs are 584,554 years.
    elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
}

/// What `Instant` reads, too.
#[cfg(target_os = "linux")]
#[inline]
fn machine() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Whether Tokio's clock can be paused: whether somebody has enabled its feature `test-util`, as tests do. No crate is
/// told the features of another one, but a name tells: without the feature there is no `tokio::time::pause`.
#[cfg(target_os = "linux")]
mod pausable {
    pub(super) const IS: bool = {
        // What it has goes before what stands outside of this block.
        #[allow(unused_imports)]
        use tokio::time::*;
        is_tokios(pause)
    };

    struct Missing;

    #[allow(dead_code)]
    fn pause() -> Missing {
        Missing
    }

    trait Found {
        const IS_TOKIOS: bool;
    }

    impl Found for () {
        const IS_TOKIOS: bool = true;
    }

    impl Found for Missing {
        const IS_TOKIOS: bool = false;
    }

    const fn is_tokios<F: Found>(_: fn() -> F) -> bool {
        F::IS_TOKIOS
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wall_clock_that_is_behind_the_machine_is_told_all_the_same() {
        let uptime = 3_600_000_000;
        for wall in [0, 1, uptime - 1, uptime, 1_767_225_600_000_000] {
            let ahead = ahead(wall, uptime);
            assert_eq!(told(ahead, uptime), Timestamp(wall));
            assert_eq!(told(ahead, uptime + 5), Timestamp(wall + 5));
        }
        assert_eq!(told(ahead(Timestamp::MAX.0, 0), uptime), Timestamp::MAX);
    }

    /// As it does here, and wherever else `test-util` is enabled.
    #[tokio::test(start_paused = true)]
    async fn the_system_clock_stands_still_with_tokios() {
        let clock = SystemClock::new();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().as_micros() - before.as_micros(), 3_000_000);
    }

    /// What is read where nobody can pause it, as in none of this crate's own tests.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_machines_clock_goes_like_instants() {
        crate::time::tests::assert_even(machine, 0);
    }
}
