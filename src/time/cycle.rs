//! A clock that reads the processor's cycle counter.

use super::{Clock, SystemClock, Timestamp};

/// Reads the processor's cycle counter, which is cheaper than the [`SystemClock`]: a decision about a key in the
/// processor's caches takes up to a tenth less time. Starts at the wall clock's time when it is created. On machines
/// whose counter is not constant, or differs between cores, it reads the monotonic clock of the operating system.
///
/// - The counter's frequency is measured once per process, with an error of a few parts per million. After a day, the
///   clock may therefore deviate from the operating system's by a tenth of a second, so that windows begin early or late
///   by as much. Waits are not affected, because they are measured by this clock too.
/// - The measurement takes up to 200 ms, when a process creates its first `CycleClock`.
/// - `tokio::time::pause` does not stop it.
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
    /// The wall clock's time at creation, in µs since the Unix epoch.
    created_at: u64,
    /// The counter's value at creation.
    start: u64,
}

impl CycleClock {
    /// Creates a clock that starts at the wall clock's current time.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let created_at = SystemClock::new().now().as_micros();
        Self { created_at, start: counter.raw(), counter }
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
        let elapsed = self.counter.delta_as_nanos(self.start, self.counter.raw()) / 1_000;
        Timestamp((self.created_at + elapsed).min(Timestamp::MAX.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::tests::assert_constant_rate;

    #[test]
    fn cycles_are_converted_to_microseconds() {
        let clock = CycleClock::new();
        assert_constant_rate(|| clock.now().as_micros(), 10_000);
    }
}
