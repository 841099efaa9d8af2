//! A count for each window, wherever windows begin and end.

use super::{Exact, Room, Standing};
use crate::record::Record;

/// A limit that counts in windows. A key remembers the end of its window, and its count.
pub(super) trait Windows {
    /// The most that a window may count.
    fn most(&self) -> u64;

    /// The end of the window that counts at `now`, and what it counts: of one that is later than `now`, time
    /// stands still until then, as a clock stepped back.
    fn current(&self, record: &Record, now: u64) -> (u64, u64);
}

fn record(until: u64, count: u64) -> Record {
    if count == 0 { Record::EMPTY } else { Record { until, detail: count } }
}

impl<W: Windows> Exact<Record> for W {
    #[inline(always)]
    fn peek(&self, record: &Record, now: u64, cost: u64) -> Room {
        let (end, count) = self.current(record, now);
        match self.most().checked_sub(cost) {
            None => Room::Never,
            Some(most) if count <= most => Room::NOW,
            Some(_) => Room::After(u128::from(end - now)),
        }
    }

    #[inline(always)]
    fn commit(&self, record: &mut Record, now: u64, cost: u64) -> Record {
        let (until, count) = self.current(record, now);
        *record = self::record(until, count + cost);
        *record
    }

    #[inline(always)]
    fn standing(&self, record: &Record, now: u64) -> Standing {
        let (end, count) = self.current(record, now);
        if count == 0 {
            return Standing::untouched(self.most());
        }
        let left = u128::from(end - now);
        Standing { remaining: self.most().saturating_sub(count), more_after: Some(left), reset_after: left }
    }

    fn refund(&self, record: &mut Record, mark: Record, now: u64, cost: u64) {
        // What is over stays as it is: a clock may step back into it.
        if record.until == mark.until && record.until > now {
            *record = self::record(record.until, record.detail.saturating_sub(cost));
        }
    }
}
