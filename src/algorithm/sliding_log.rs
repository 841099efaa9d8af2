//! Every request of the last period.

use super::constructors::window_constructors;
use super::log::{Log, Span};
use super::{Exact, Room, Standing};
use crate::record::Record;

/// At most `limit` tokens in any `period`, exactly: every allowed request is remembered until it
/// is `period` old.
///
/// - **Admits at most**: `limit` in any period.
/// - **Remembers**: 16 bytes a key for each request that was allowed in the last period, and 48
///   besides; requests of the same microsecond share them.
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

    fn span(&self) -> Span {
        Span { limit: self.capacity(), width: 1, buckets: self.period }
    }
}

impl Exact<Log> for SlidingLog {
    fn peek(&self, log: &Log, now: u64, cost: u64) -> Room {
        self.span().peek(log, now, cost)
    }

    fn commit(&self, log: &mut Log, now: u64, cost: u64) -> Record {
        self.span().commit(log, now, cost)
    }

    fn standing(&self, log: &Log, now: u64) -> Standing {
        self.span().standing(log, now)
    }

    fn refund(&self, log: &mut Log, mark: Record, now: u64, cost: u64) {
        self.span().refund(log, mark, now, cost);
    }
    fn fall_back(&self, log: &mut Log, now: u64) {
        self.span().fall_back(log, now);
    }
}
