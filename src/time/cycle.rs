//! The processor's cycle counter.

use super::{Clock, SystemClock, Timestamp};

/// The processor's cycle counter, set by the wall clock once, when it was made: cheaper to read than the
/// [`SystemClock`], so that a decision about a key in the processor's caches takes up to a tenth less time.
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
#[derive(Clone, Debug)]
pub struct CycleClock {
    counter: quanta::Clock,
    wall: u64,
    since: u64,
}

impl CycleClock {
    /// A clock that the wall clock has just set.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let wall = SystemClock::new().now().as_micros();
        Self { wall, since: counter.raw(), counter }
    }
}

impl Default for CycleClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for CycleClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.counter.delta_as_nanos(self.since, self.counter.raw()) / 1_000;
        Timestamp((self.wall + elapsed).min(Timestamp::MAX.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::tests::assert_even;

    #[test]
    fn cycles_are_microseconds() {
        let clock = CycleClock::new();
        assert_even(|| clock.now().as_micros(), 10_000);
    }
}
