//! Actions that happen at most once per interval, such as lines in the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The time until an action may happen again. It may happen at once when this is created.
#[derive(Debug)]
pub(crate) struct Cooldown {
    created: Instant,
    /// The end of the interval, in µs after `created`.
    end: AtomicU64,
}

impl Cooldown {
    pub(crate) fn new() -> Self {
        Self { created: Instant::now(), end: AtomicU64::new(0) }
    }

    /// Returns whether the action may happen now. If so, starts an interval: of concurrent calls, one returns `true`.
    pub(crate) fn try_start(&self, interval: Duration) -> bool {
        let (now, end) = (self.created.elapsed(), self.end.load(Ordering::Relaxed));
        let next = now.saturating_add(interval).as_micros() as u64;
        now.as_micros() as u64 >= end
            && self.end.compare_exchange(end, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Starts an interval, whether or not the last one is over.
    #[cfg(feature = "tracing")]
    pub(crate) fn restart(&self, interval: Duration) {
        self.end.store((self.created.elapsed() + interval).as_micros() as u64, Ordering::Relaxed);
    }
}
