//! A log of what was taken and when: what both exact sliding windows share.
//!
//! Time is cut into buckets of `width` µs, and a token counts for `buckets` of them: its own and
//! those that follow. A log of every request is that with buckets of 1 µs.

use std::collections::VecDeque;

#[cfg(feature = "redis")]
use super::twin::{self, Numbers, State};
use super::{Room, Standing};
use crate::record::Record;

/// What was taken in each bucket in which something was taken, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// All that was ever taken before the first entry, modulo 2^64.
    base: u64,
    /// The instant, in µs, from which the log means nothing any more.
    pub(crate) until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bucket: u64,
    /// All that was ever taken up to and in this bucket, modulo 2^64: sums are differences, found
    /// by binary search.
    total: u64,
}

impl Log {
    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// The running total before the entry at `index`.
    fn before(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(self.base, |last| self.entries[last].total)
    }

    fn last_total(&self) -> u64 {
        self.before(self.entries.len())
    }

    fn forget(&mut self, entries: usize) {
        self.base = self.before(entries);
        self.entries.drain(..entries);
        // Small ones are left alone: they would only be allocated again.
        if self.entries.capacity() > 32 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}

/// The rule over a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) limit: u64,
    pub(super) width: u64,
    pub(super) buckets: u64,
}

/// The part of a log that counts at an instant.
struct View<'a> {
    log: &'a Log,
    /// The bucket that counts as the present one.
    present: u64,
    /// The first entry that counts.
    first: usize,
}

impl View<'_> {
    fn used(&self) -> u64 {
        self.log.last_total().wrapping_sub(self.log.before(self.first))
    }
}

impl Span {
    fn view<'a>(&self, log: &'a Log, now: u64) -> View<'a> {
        // A newer entry than the clock's bucket was left before the clock stepped back: time stands
        // still until then.
        let present = log.entries.back().map_or(0, |newest| newest.bucket).max(now / self.width);
        let is_past = |entry: &Entry| entry.bucket + self.buckets <= present;
        // The first one counts, mostly: there is nothing to search.
        let first = if log.entries.front().is_some_and(is_past) { log.entries.partition_point(is_past) } else { 0 };
        View { log, present, first }
    }

    /// When a token taken in `bucket` no longer counts, in µs.
    fn passes(&self, bucket: u64) -> u64 {
        // What another width has left can lie beyond all time.
        (bucket + self.buckets).saturating_mul(self.width)
    }

    /// How long until `tokens` of those that count no longer do.
    fn freed(&self, view: &View<'_>, tokens: u64, now: u64) -> u128 {
        let start = view.log.before(view.first);
        let freed = |entry: &Entry| entry.total.wrapping_sub(start);
        let mut counting = view.first..view.log.entries.len();
        // Binary search: totals grow along the log.
        while counting.len() > 1 {
            let middle = counting.start + (counting.len() - 1) / 2;
            if freed(&view.log.entries[middle]) >= tokens {
                counting.end = middle + 1;
            } else {
                counting.start = middle + 1;
            }
        }
        let bucket = view.log.entries[counting.start].bucket;
        u128::from(self.passes(bucket).saturating_sub(now))
    }

    pub(super) fn peek(&self, log: &Log, now: u64, cost: u64) -> Room {
        let Some(most) = self.limit.checked_sub(cost) else { return Room::Never };
        let view = self.view(log, now);
        match view.used().checked_sub(most) {
            None | Some(0) => Room::NOW,
            Some(over) => Room::After(self.freed(&view, over, now)),
        }
    }

    pub(super) fn commit(&self, log: &mut Log, now: u64, cost: u64) -> Record {
        let View { present, first, .. } = self.view(log, now);
        self.append(log, present, first, cost)
    }

    /// Takes `cost` in the `present` bucket, and forgets what is before the `first` entry that counts.
    #[inline]
    fn append(&self, log: &mut Log, present: u64, first: usize, cost: u64) -> Record {
        let total = log.last_total().wrapping_add(cost);
        if first > 0 {
            log.forget(first);
        }
        match log.entries.back_mut() {
            Some(newest) if newest.bucket == present => newest.total = total,
            _ => log.entries.push_back(Entry { bucket: present, total }),
        }
        log.until = self.passes(present);
        Record { until: present, detail: 0 }
    }

    pub(super) fn take(&self, log: &mut Log, now: u64, cost: u64) -> (Record, Standing) {
        let mark = self.commit(log, now, cost);
        (mark, self.standing(log, now))
    }

    /// Takes `cost` if there is room, and tells what is left then: with one look at the log.
    #[inline]
    pub(super) fn settle<T>(
        &self,
        log: &mut Log,
        now: u64,
        cost: u64,
        tell: impl FnOnce(Room, Record, Standing) -> T,
    ) -> T {
        let view = self.view(log, now);
        let (present, first, used) = (view.present, view.first, view.used());
        let left = self.limit.checked_sub(used).and_then(|left| left.checked_sub(cost));
        let Some(remaining) = left else {
            return tell(self.peek(log, now, cost), Record::EMPTY, self.standing(log, now));
        };
        let mark = self.append(log, present, first, cost);
        // Each entry holds some, so that the first to pass makes room, and all have passed with the last.
        let oldest = log.entries.front().map_or(present, |oldest| oldest.bucket);
        let more_after = Some(self.passes(oldest).saturating_sub(now).into());
        let reset_after = log.until.saturating_sub(now).into();
        tell(Room::NOW, mark, Standing { remaining, more_after, reset_after })
    }

    pub(super) fn standing(&self, log: &Log, now: u64) -> Standing {
        let view = self.view(log, now);
        let used = view.used();
        if used == 0 {
            return Standing::untouched(self.limit);
        }
        let over = used.saturating_sub(self.limit);
        Standing {
            remaining: self.limit.saturating_sub(used),
            more_after: Some(self.freed(&view, over + 1, now)),
            reset_after: self.freed(&view, used, now),
        }
    }

    /// It has no rate.
    pub(super) fn adopt(&self, _: &mut Log, _: u64) {}

    /// Takes `cost` out of the bucket that `mark` names. Later buckets are untouched, but for
    /// their running totals: this takes as long as there are later ones.
    pub(super) fn refund(&self, log: &mut Log, mark: Record, now: u64, cost: u64) {
        let View { first, .. } = self.view(log, now);
        let index = log.entries.partition_point(|entry| entry.bucket < mark.until);
        if index < first || log.entries.get(index).is_none_or(|entry| entry.bucket != mark.until) {
            return;
        }
        let taken = log.entries[index].total.wrapping_sub(log.before(index));
        let back = taken.min(cost);
        for entry in log.entries.range_mut(index..) {
            entry.total = entry.total.wrapping_sub(back);
        }
        if back == taken {
            log.entries.remove(index);
        }
        log.until = log.entries.back().map_or(0, |newest| self.passes(newest.bucket));
    }
}

#[cfg(feature = "redis")]
impl Span {
    pub(super) fn letter(&self) -> u8 {
        b'l'
    }

    pub(super) fn numbers(&self, cost: u64, told: u64) -> Numbers {
        let cost = twin::within(cost, self.limit) as f64;
        [cost, self.limit as f64, self.width as f64, (self.width * self.buckets) as f64, told as f64]
            .into_iter()
            .collect()
    }

    pub(super) fn mark(&self, mark: &Record) -> State {
        State { micros: u128::from(mark.until) * u128::from(self.width), counts: [0, 0] }
    }

    /// The log whose oldest entry that counts is the first one `held`, and whose newest is the
    /// last. Some between may be left out: it decides as if what was taken in them had been taken
    /// in the next one.
    pub(super) fn recall(&self, held: &[State]) -> Option<Log> {
        let mut log = Log::default();
        let Some(oldest) = held.first() else { return Some(log) };
        // Totals are told modulo 2^32, and all that counts is less.
        let base = oldest.counts[0].wrapping_sub(oldest.counts[1]);
        for state in held {
            let bucket = state.instant()? / self.width;
            let total = u64::from(state.counts[0].wrapping_sub(base));
            match log.entries.back_mut() {
                Some(last) if last.bucket > bucket || last.total > total => return None,
                Some(last) if last.bucket == bucket => last.total = total,
                _ => log.entries.push_back(Entry { bucket, total }),
            }
        }
        log.until = log.entries.back().map_or(0, |newest| self.passes(newest.bucket));
        Some(log)
    }
}
