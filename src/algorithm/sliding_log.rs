//! Every request of the last period.

use super::log::{Log, Span};
use super::shape::{decided_by, window_constructors};

/// At most `limit` tokens in any `period`, exactly: every allowed request is remembered until it
/// is `period` old.
///
/// - **Admits at most**: `limit` in any period.
/// - **Remembers**: 48 bytes a key, 12 for each further request that was allowed in the last period, and up to
///   as much as that again for room to grow; requests of the same microsecond share them.
/// - **Choose it when** the limit is small and must be exact: five attempts to log in, a payment.
///   For large limits a [`SlidingWindow`](crate::SlidingWindow) is as good and remembers less.
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
    period: u64,
}

window_constructors!(SlidingLog, "any");

impl SlidingLog {
    const fn of(limit: u32, period: u64) -> Self {
        Self { limit, period }
    }

    #[inline]
    pub(crate) fn span(&self) -> Span {
        Span { limit: self.capacity(), width: 1, period: self.period }
    }
}

decided_by!(SlidingLog, span over Log);
