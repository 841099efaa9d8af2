//! A counter for this window and a weighted one for the window before.

use super::ratio::{mul_div, mul_div_ceil};
use super::shape::window_constructors;
use super::{Exact, Room, Standing};
use crate::record::Record;

/// At most `limit` tokens in a sliding `period`, estimated: what this aligned window counts, plus
/// what the window before counted times the share of it that the sliding one still covers.
///
/// - **Admits at most**: `limit` in any period, if the last window's requests were evenly spread,
///   which they are taken to be; close to that in practice, and never over twice.
/// - **Remembers**: 16 bytes a key: two counts and their window.
/// - **Choose it when** a [`FixedWindow`](crate::FixedWindow)'s burst at the edge would hurt and a
///   [`SlidingLog`](crate::SlidingLog) would remember too much.
///
/// ```
/// use tower_ratelimit::{Rounding, SlidingWindowCounter};
///
/// let strict = SlidingWindowCounter::per_minute(100);
/// let lenient = SlidingWindowCounter::per_minute(100).rounding(Rounding::Down);
/// # let _ = (strict, lenient);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingWindowCounter {
    pub(crate) limit: u32,
    pub(crate) period: u64,
    pub(crate) rounding: Rounding,
}

/// How a [`SlidingWindowCounter`] rounds the share of the window before.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Rounding {
    /// A started token counts whole: never more than the estimate allows.
    #[default]
    Up,
    /// A started token does not count.
    Down,
}

window_constructors!(SlidingWindowCounter, "a sliding");

/// The two windows that count at an instant.
struct Windows {
    start: u64,
    before: u64,
    count: u64,
}

impl SlidingWindowCounter {
    const fn of(limit: u32, period: u64) -> Self {
        Self { limit, period, rounding: Rounding::Up }
    }

    /// Another rounding.
    #[must_use]
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// The windows of a record at `now`, and the instant at which to look at them: `now`, or, when
    /// a clock stepped back, their start, at which time stands still until then.
    #[inline]
    fn windows(&self, record: &Record, now: u64) -> (Windows, u64) {
        let start = now - now % self.period;
        // A record means something until the window after its own has passed.
        let own = record.until.saturating_sub(2 * self.period);
        let [before, count] = [record.detail >> 32, record.detail & u64::from(u32::MAX)];
        if record.until <= start {
            (Windows { start, before: 0, count: 0 }, now)
        } else if record.until <= start + self.period {
            (Windows { start, before: count, count: 0 }, now)
        } else {
            let start = own.max(start);
            (Windows { start, before, count }, now.max(start))
        }
    }

    #[inline]
    fn record(&self, windows: &Windows) -> Record {
        match *windows {
            Windows { before: 0, count: 0, .. } => Record::EMPTY,
            // The window before, seen as its own.
            Windows { start, before, count: 0 } => Record { until: start + self.period, detail: before },
            Windows { start, before, count } => Record { until: start + 2 * self.period, detail: before << 32 | count },
        }
    }

    /// What the window before still counts, `elapsed` µs into this one.
    #[inline]
    fn weighted(&self, before: u64, elapsed: u64) -> u64 {
        let share = match self.rounding {
            Rounding::Up => mul_div_ceil(before, self.period - elapsed, self.period),
            Rounding::Down => mul_div(before, self.period - elapsed, self.period),
        };
        share as u64
    }

    /// How many µs into a window the one before counts `most` or less.
    #[inline]
    fn faded(&self, before: u64, most: u64) -> u64 {
        if before == 0 {
            return 0;
        }
        let covered = match self.rounding {
            Rounding::Up => mul_div(most, self.period, before),
            Rounding::Down => mul_div_ceil(most + 1, self.period, before) - 1,
        };
        self.period - covered.min(u128::from(self.period)) as u64
    }

    #[inline]
    fn used(&self, windows: &Windows, at: u64) -> u64 {
        self.weighted(windows.before, at - windows.start) + windows.count
    }

    /// The first instant at which at most `most` tokens are used.
    #[inline]
    fn used_at_most(&self, most: u64, windows: &Windows) -> u64 {
        match most.checked_sub(windows.count) {
            Some(most) => windows.start + self.faded(windows.before, most),
            None => windows.start + self.period + self.faded(windows.count, most),
        }
    }
}

impl Exact<Record> for SlidingWindowCounter {
    #[inline(always)]
    fn peek(&self, record: &Record, now: u64, cost: u64) -> Room {
        let (windows, at) = self.windows(record, now);
        match self.capacity().checked_sub(cost) {
            None => Room::Never,
            Some(most) if self.used(&windows, at) <= most => Room::NOW,
            Some(most) => Room::After(u128::from(self.used_at_most(most, &windows) - now)),
        }
    }

    #[inline(always)]
    fn commit(&self, record: &mut Record, now: u64, cost: u64) -> Record {
        let (mut windows, _) = self.windows(record, now);
        windows.count += cost;
        *record = self.record(&windows);
        *record
    }

    #[inline(always)]
    fn standing(&self, record: &Record, now: u64) -> Standing {
        let (windows, at) = self.windows(record, now);
        let used = self.used(&windows, at).min(self.capacity());
        let grows = used.checked_sub(1).map(|less| u128::from(self.used_at_most(less, &windows) - now));
        let until = match windows {
            Windows { before: 0, count: 0, .. } => now,
            Windows { start, count: 0, .. } => start + self.period,
            Windows { start, .. } => start + 2 * self.period,
        };
        Standing { remaining: self.capacity() - used, more_after: grows, reset_after: u128::from(until - now) }
    }

    fn refund(&self, record: &mut Record, mark: Record, now: u64, cost: u64) {
        let (mut windows, _) = self.windows(record, now);
        let charged = mark.until.saturating_sub(2 * self.period);
        if charged == windows.start {
            windows.count = windows.count.saturating_sub(cost);
        } else if charged + self.period == windows.start {
            windows.before = windows.before.saturating_sub(cost);
        } else {
            return;
        }
        *record = self.record(&windows);
    }
}
