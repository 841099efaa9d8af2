//! Every request of the last period.

use super::log::LogWindow;
use super::macros::window_constructors;
use super::settings::{Settings, window_settings};
use super::state_period::StatePeriod;

/// At most `limit` tokens in any `period`, exactly: every allowed request is kept until it is `period` old.
///
/// - **Admits at most** `limit` tokens in any span of `period`.
/// - **Keeps** 48 bytes per key, 12 for each further request that was allowed in the last period, and up to twice as
///   much while it grows. Requests of the same microsecond share an entry.
/// - **Choose it** for small limits that must be exact: five attempts to log in, a payment. For large limits, a
///   [`SlidingWindow`](crate::SlidingWindow) is nearly as exact, and smaller.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/sliding_log.svg"))]
///
/// ```
/// use tower_ratelimit::SlidingLog;
///
/// let attempts = SlidingLog::per_minute(5);
/// # let _ = attempts;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingLog {
    limit: u32,
    pub(super) period: u64,
}

window_constructors!(SlidingLog, "any span of", "any");

impl SlidingLog {
    const fn from_checked(limit: u32, period: u64) -> Self {
        Self { limit, period }
    }

    /// A log of every request is a log of buckets of 1 µs.
    pub(super) fn log_window(&self) -> LogWindow {
        LogWindow { limit: self.capacity(), width: 1, period: self.period }
    }
}

impl Settings for SlidingLog {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Micros(self.period)
    }

    window_settings!();
}
