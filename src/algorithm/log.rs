//! A log of what was taken and when: what both exact sliding windows share.
//!
//! Time is cut into buckets of `width` µs, and a token counts for a `period` of whole ones: its own and
//! those that follow. A log of every request is that with buckets of 1 µs.

use super::{Room, Standing};
use crate::record::Record;

/// What was taken in each bucket in which something was taken. Most decisions are about the oldest and the newest
/// only, which are at hand; what lies between is on the heap.
///
/// Totals count modulo 2^32: all that counts at a time is less.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The instant, in µs, from which the log means nothing any more: a period after the start of its newest bucket.
    pub(crate) until: u64,
    /// The start of its oldest bucket.
    oldest: u64,
    /// All that was ever taken before that one.
    base: u32,
    /// All that was ever taken.
    total: u32,
    /// All entries but the newest, oldest first. Those before `oldest` are forgotten: they are there until their
    /// room is needed.
    older: Vec<Entry>,
}

// Packed, as padding would be a quarter of it.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
struct Entry {
    /// When its bucket began, in µs.
    start: u64,
    /// All that was ever taken up to and in this bucket: sums are differences, found by binary search.
    total: u32,
}

impl Log {
    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.older.capacity() * size_of::<Entry>()
    }

    /// The total before the older entry at `index`, or before the newest one.
    fn before(&self, index: usize) -> u32 {
        index.checked_sub(1).map_or(self.base, |last| self.older[last].total)
    }

    /// Notes that nothing before the bucket of `view` counts.
    fn forget(&mut self, view: &View) {
        (self.oldest, self.base) = (view.oldest, view.base);
        let left = self.older.len() - view.past;
        // Small ones are left alone: they would only be allocated again.
        let is_wide = self.older.capacity() > 32 && left < self.older.capacity() / 4;
        if left == 0 || is_wide {
            self.older.drain(..view.past);
        }
        if is_wide {
            self.older.shrink_to(left * 2);
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.older.len() == self.older.capacity() {
            // What is forgotten makes room, if it is enough for all that has to be moved.
            let forgotten = self.older.partition_point(|entry| entry.start < self.oldest);
            if forgotten * 16 >= self.older.len() {
                self.older.drain(..forgotten);
            }
        }
        self.older.push(entry);
    }
}

/// The rule over a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) limit: u64,
    pub(crate) width: u64,
    pub(crate) period: u64,
}

/// The part of a log that counts at an instant.
struct View {
    /// The start of the bucket that counts as the present one.
    present: u64,
    /// The start of the first bucket that counts.
    oldest: u64,
    /// All that was taken before that one.
    base: u32,
    /// How many of the older entries are known not to count.
    past: usize,
    /// How many tokens count.
    used: u64,
}

impl Span {
    /// When the newest bucket of a log began.
    #[inline]
    fn newest(&self, log: &Log) -> u64 {
        log.until.saturating_sub(self.period)
    }

    #[inline]
    fn view(&self, log: &Log, now: u64) -> View {
        // A newer entry than the clock's bucket was left before the clock stepped back: time stands
        // still until then.
        let present = (now - now % self.width).max(self.newest(log));
        // The first one counts, mostly: there is nothing to search.
        if log.oldest + self.period > present {
            let used = log.total.wrapping_sub(log.base).into();
            return View { present, oldest: log.oldest, base: log.base, past: 0, used };
        }
        self.view_behind(log, present)
    }

    /// The same of a log whose first entries don't count.
    #[inline(never)]
    fn view_behind(&self, log: &Log, present: u64) -> View {
        if log.until <= present {
            return View { present, oldest: present, base: log.total, past: log.older.len(), used: 0 };
        }
        let past = log.older.partition_point(|entry| entry.start + self.period <= present);
        let oldest = log.older.get(past).map_or(self.newest(log), |entry| entry.start);
        let base = log.before(past);
        View { present, oldest, base, past, used: log.total.wrapping_sub(base).into() }
    }

    /// How long until `tokens` of those that count no longer do.
    #[inline]
    fn freed(&self, log: &Log, view: &View, tokens: u64, now: u64) -> u128 {
        // Each entry holds some, so that the first to pass frees one, and all have passed with the last.
        let bucket = match tokens {
            0..=1 => view.oldest,
            _ if tokens >= view.used => self.newest(log),
            _ => self.search(log, view, tokens),
        };
        u128::from((bucket + self.period).saturating_sub(now))
    }

    /// The start of the bucket with which `tokens` of those that count no longer do.
    #[inline(never)]
    fn search(&self, log: &Log, view: &View, tokens: u64) -> u64 {
        let freed = |entry: &Entry| u64::from(entry.total.wrapping_sub(view.base));
        let index = log.older.partition_point(|entry| entry.start < view.oldest || freed(entry) < tokens);
        log.older.get(index).map_or(self.newest(log), |entry| entry.start)
    }

    pub(super) fn peek(&self, log: &Log, now: u64, cost: u64) -> Room {
        self.room(log, &self.view(log, now), now, cost)
    }

    fn room(&self, log: &Log, view: &View, now: u64, cost: u64) -> Room {
        let Some(most) = self.limit.checked_sub(cost) else { return Room::Never };
        match view.used.checked_sub(most) {
            None | Some(0) => Room::NOW,
            Some(over) => Room::After(self.freed(log, view, over, now)),
        }
    }

    pub(super) fn commit(&self, log: &mut Log, now: u64, cost: u64) -> Record {
        let view = self.view(log, now);
        self.append(log, &view, cost)
    }

    /// Takes `cost` in the present bucket, and forgets what is before the first one that counts.
    #[inline]
    fn append(&self, log: &mut Log, view: &View, cost: u64) -> Record {
        let newest = self.newest(log);
        if view.past > 0 || view.oldest != log.oldest {
            log.forget(view);
        }
        if view.used == 0 {
            log.oldest = view.present;
        } else if newest != view.present {
            log.push(Entry { start: newest, total: log.total });
        }
        // No more than the limit, which fits.
        log.total = log.total.wrapping_add(cost as u32);
        log.until = view.present + self.period;
        Record { until: view.present, detail: 0 }
    }

    pub(super) fn take(&self, log: &mut Log, now: u64, cost: u64) -> (Record, Standing) {
        let mark = self.commit(log, now, cost);
        (mark, self.standing(log, now))
    }

    /// Takes `cost` if there is room, with one look at the log.
    #[inline(always)]
    pub(super) fn take_at_once(&self, log: &mut Log, now: u64, cost: u64) -> Option<(Room, Record, Standing)> {
        let view = self.view(log, now);
        let remaining = self.limit.checked_sub(view.used)?.checked_sub(cost)?;
        let mark = self.append(log, &view, cost);
        // Each entry holds some, so that the first to pass makes room, and all have passed with the last.
        let more_after = Some((log.oldest + self.period).saturating_sub(now).into());
        let reset_after = log.until.saturating_sub(now).into();
        Some((Room::NOW, mark, Standing { remaining, more_after, reset_after }))
    }

    pub(super) fn standing(&self, log: &Log, now: u64) -> Standing {
        self.left(log, &self.view(log, now), now)
    }

    fn left(&self, log: &Log, view: &View, now: u64) -> Standing {
        let used = view.used;
        if used == 0 {
            return Standing::untouched(self.limit);
        }
        let over = used.saturating_sub(self.limit);
        Standing {
            remaining: self.limit.saturating_sub(used),
            more_after: Some(self.freed(log, view, over + 1, now)),
            reset_after: self.freed(log, view, used, now),
        }
    }

    /// It has no rate.
    pub(super) fn adopt(&self, _: &mut Log, _: u64) {}

    /// Takes `cost` out of the bucket that `mark` names. Later buckets are untouched, but for
    /// their running totals: this takes as long as there are later ones.
    pub(super) fn refund(&self, log: &mut Log, mark: Record, now: u64, cost: u64) {
        let View { oldest, used, .. } = self.view(log, now);
        let bucket = mark.until;
        if used == 0 || bucket < oldest {
            return;
        }
        let newest = self.newest(log);
        let index = log.older.partition_point(|entry| entry.start < bucket);
        let is_newest = index == log.older.len();
        let (start, upto) = log.older.get(index).map_or((newest, log.total), |entry| (entry.start, entry.total));
        if start != bucket {
            return;
        }
        let taken = upto.wrapping_sub(log.before(index));
        let back = u64::from(taken).min(cost) as u32;
        for entry in &mut log.older[index..] {
            entry.total = entry.total.wrapping_sub(back);
        }
        log.total = log.total.wrapping_sub(back);
        if back < taken {
            return;
        }
        if !is_newest {
            log.older.remove(index);
            if bucket == log.oldest {
                log.oldest = log.older.get(index).map_or(newest, |entry| entry.start);
            }
        } else if bucket == log.oldest {
            *log = Log::default();
        } else if let Some(last) = log.older.pop() {
            log.until = last.start + self.period;
        }
    }

    /// The log of these entries, oldest first, each with an instant of its bucket, all that was taken up to and in that,
    /// and what was taken in it; `None` if they are in no order. The first is the oldest that counts.
    #[allow(dead_code, reason = "for stores outside this process")]
    pub(crate) fn rebuild(&self, entries: &[(u64, [u32; 2])]) -> Option<Log> {
        let mut log = Log::default();
        for (index, &(instant, [total, taken])) in entries.iter().enumerate() {
            let start = instant - instant % self.width;
            let newest = self.newest(&log);
            if index == 0 {
                (log.oldest, log.base) = (start, total.wrapping_sub(taken));
            } else if start < newest || total.wrapping_sub(log.base) < log.total.wrapping_sub(log.base) {
                return None;
            } else if start > newest {
                log.older.push(Entry { start: newest, total: log.total });
            }
            (log.until, log.total) = (start + self.period, total);
        }
        Some(log)
    }
}
