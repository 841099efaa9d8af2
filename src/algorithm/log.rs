//! A log of charges, the state of sliding logs and sliding windows.
//!
//! Time is divided into buckets of `width` µs. A token counts in the bucket of its charge and in those that follow, for
//! a `period` in all. A log of every request has buckets of 1 µs.

use super::rate_algorithm::{Availability, QuotaSnapshot, RateAlgorithm};
use super::read_bytes::{take_instant, take_u32};
use super::state::{ChargeMark, CompactState};

/// The charges of a key, summed up by bucket. Buckets without charges have no entry.
///
/// Most decisions need the oldest and the newest entry only, which are stored inline; the others are on the heap.
/// Entries hold running totals rather than counts, so that a sum is a difference, and a binary search finds the entry
/// with which a given number of tokens has expired. Totals are modulo 2^32, as fewer tokens count at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Log {
    /// The instant, in µs, from which nothing counts: a period after the start of the newest bucket.
    pub(crate) expires_at: u64,
    /// The start of the oldest bucket that counts, in µs.
    oldest: u64,
    /// The total before that bucket.
    base: u32,
    /// The total.
    total: u32,
    /// All entries but the newest, oldest first. Those before `oldest` have expired, and stay until their room is
    /// needed.
    older: Vec<Entry>,
}

// Packed: padding would take a quarter of it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(Rust, packed(4))]
struct Entry {
    /// The start of the bucket, in µs.
    start: u64,
    /// The total up to and including this bucket.
    total: u32,
}

impl Log {
    /// Returns the bytes allocated on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.older.capacity() * size_of::<Entry>()
    }

    /// Appends the bytes of the log: see [`encoding`](super::encoding).
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend([self.expires_at, self.oldest].map(u64::to_le_bytes).as_flattened());
        // Entries before the oldest have expired.
        let expired = self.older.partition_point(|entry| entry.start < self.oldest);
        let older = &self.older[expired..];
        bytes.extend([self.base, self.total, older.len() as u32].map(u32::to_le_bytes).as_flattened());
        for &Entry { start, total } in older {
            bytes.extend(start.to_le_bytes());
            bytes.extend(total.to_le_bytes());
        }
    }

    /// Takes the bytes of a log, or returns `None` if they are none.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let [expires_at, oldest] = [take_instant(bytes)?, take_instant(bytes)?];
        let [base, total, len] = [take_u32(bytes)?, take_u32(bytes)?, take_u32(bytes)?];
        let entries = (0..len).map(|_| Some(Entry { start: take_instant(bytes)?, total: take_u32(bytes)? }));
        let older = entries.collect::<Option<Vec<Entry>>>()?;
        Some(Self { expires_at, oldest, base, total, older })
    }

    /// Returns the total before the entry at `index` of the older ones, or before the newest one.
    fn total_before(&self, index: usize) -> u32 {
        index.checked_sub(1).map_or(self.base, |last| self.older[last].total)
    }

    /// Removes the entries that expired before `view`.
    fn expire(&mut self, view: &View) {
        (self.oldest, self.base) = (view.oldest, view.base);
        let left = self.older.len() - view.expired;
        // Small allocations are kept: they would only be made again.
        let is_wide = self.older.capacity() > 32 && left < self.older.capacity() / 4;
        if left == 0 || is_wide {
            self.older.drain(..view.expired);
        }
        if is_wide {
            self.older.shrink_to(left * 2);
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.older.len() == self.older.capacity() {
            // Expired entries make room, if there are enough of them to pay for moving the others.
            let expired = self.older.partition_point(|entry| entry.start < self.oldest);
            if expired * 16 >= self.older.len() {
                self.older.drain(..expired);
            }
        }
        self.older.push(entry);
    }
}

/// A limit on the tokens of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWindow {
    pub(crate) limit: u64,
    /// The length of a bucket, in µs: a divisor of the period.
    pub(crate) width: u64,
    /// In µs.
    pub(crate) period: u64,
}

/// The part of a log that counts at an instant.
struct View {
    /// The start of the current bucket.
    current: u64,
    /// The start of the first bucket that counts.
    oldest: u64,
    /// The total before that bucket.
    base: u32,
    /// The number of older entries that have expired.
    expired: usize,
    /// The tokens that count.
    used: u64,
}

impl RateAlgorithm<Log> for LogWindow {
    #[inline]
    fn peek(&self, log: &Log, now: u64, cost: u64) -> Availability {
        let view = self.view(log, now);
        let Some(most) = self.limit.checked_sub(cost) else { return Availability::Never };
        match view.used.checked_sub(most) {
            None | Some(0) => Availability::NOW,
            Some(excess) => Availability::After(self.time_until_expired(log, &view, excess, now)),
        }
    }

    /// The mark holds the start of the bucket.
    #[inline]
    fn commit(&self, log: &mut Log, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let view = self.view(log, now);
        let newest = self.newest(log);
        if view.expired > 0 || view.oldest != log.oldest {
            log.expire(&view);
        }
        if view.used == 0 {
            log.oldest = view.current;
        } else if newest != view.current {
            log.push(Entry { start: newest, total: log.total });
        }
        // No more than the limit, which fits.
        log.total = log.total.wrapping_add(cost as u32);
        log.expires_at = view.current + self.period;
        let snapshot = QuotaSnapshot {
            remaining: self.limit - view.used - cost,
            more_after: Some((log.oldest + self.period).saturating_sub(now)),
            reset_after: log.expires_at.saturating_sub(now),
        };
        (ChargeMark(CompactState { at: view.current, ..CompactState::UNUSED }), snapshot)
    }

    #[inline]
    fn snapshot(&self, log: &Log, now: u64) -> QuotaSnapshot {
        let view = self.view(log, now);
        if view.used == 0 {
            return QuotaSnapshot::unused(self.limit);
        }
        let excess = view.used.saturating_sub(self.limit);
        QuotaSnapshot {
            remaining: self.limit.saturating_sub(view.used),
            more_after: Some(self.time_until_expired(log, &view, excess + 1, now)),
            reset_after: log.expires_at.saturating_sub(now),
        }
    }

    /// Takes `cost` out of the bucket of the charge, which takes time in proportion to the number of later entries.
    fn refund(&self, log: &mut Log, mark: ChargeMark, now: u64, cost: u64) {
        let View { oldest, used, .. } = self.view(log, now);
        let bucket = mark.0.at;
        if used == 0 || bucket < oldest {
            return;
        }
        let newest = self.newest(log);
        let index = log.older.partition_point(|entry| entry.start < bucket);
        let is_newest = index == log.older.len();
        let (start, total) = log.older.get(index).map_or((newest, log.total), |entry| (entry.start, entry.total));
        if start != bucket {
            return;
        }
        let charged = total.wrapping_sub(log.total_before(index));
        let back = u64::from(charged).min(cost) as u32;
        for entry in &mut log.older[index..] {
            entry.total = entry.total.wrapping_sub(back);
        }
        log.total = log.total.wrapping_sub(back);
        if back < charged {
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
            log.expires_at = last.start + self.period;
        }
    }
}

impl LogWindow {
    /// Returns the start of the newest bucket of a log.
    #[inline]
    fn newest(&self, log: &Log) -> u64 {
        log.expires_at.saturating_sub(self.period)
    }

    #[inline]
    fn view(&self, log: &Log, now: u64) -> View {
        // If the clock has stepped back behind the newest bucket, time stands still in that.
        let current = (now - now % self.width).max(self.newest(log));
        // Usually the oldest entry still counts.
        if log.oldest + self.period > current {
            let used = log.total.wrapping_sub(log.base).into();
            return View { current, oldest: log.oldest, base: log.base, expired: 0, used };
        }
        self.view_past_expired(log, current)
    }

    /// Returns the view of a log whose oldest entries have expired.
    #[inline(never)]
    fn view_past_expired(&self, log: &Log, current: u64) -> View {
        if log.expires_at <= current {
            return View { current, oldest: current, base: log.total, expired: log.older.len(), used: 0 };
        }
        let expired = log.older.partition_point(|entry| entry.start + self.period <= current);
        let oldest = log.older.get(expired).map_or(self.newest(log), |entry| entry.start);
        let base = log.total_before(expired);
        View { current, oldest, base, expired, used: log.total.wrapping_sub(base).into() }
    }

    /// Returns the time until `tokens` of those that count have expired, in µs.
    #[inline]
    fn time_until_expired(&self, log: &Log, view: &View, tokens: u64, now: u64) -> u64 {
        // Every entry holds at least one token.
        let bucket = match tokens {
            0..=1 => view.oldest,
            _ if tokens >= view.used => self.newest(log),
            _ => self.last_of(log, view, tokens),
        };
        (bucket + self.period).saturating_sub(now)
    }

    /// Returns the start of the bucket that holds the last of the first `tokens` that count.
    #[inline(never)]
    fn last_of(&self, log: &Log, view: &View, tokens: u64) -> u64 {
        let upto = |entry: &Entry| u64::from(entry.total.wrapping_sub(view.base));
        let index = log.older.partition_point(|entry| entry.start < view.oldest || upto(entry) < tokens);
        log.older.get(index).map_or(self.newest(log), |entry| entry.start)
    }

    /// Rebuilds a log from entries, oldest first: an instant of the bucket, the total up to and including it, and the
    /// tokens charged in it. The first one is the oldest that counts. Returns `None` if they are out of order.
    #[allow(dead_code, reason = "only used by stores that keep logs elsewhere")]
    pub(crate) fn rebuild(&self, entries: impl IntoIterator<Item = (u64, u32, u32)>) -> Option<Log> {
        let mut log = Log::default();
        for (index, (instant, total, charged)) in entries.into_iter().enumerate() {
            let start = instant - instant % self.width;
            let newest = self.newest(&log);
            if index == 0 {
                (log.oldest, log.base) = (start, total.wrapping_sub(charged));
            } else if start < newest || total.wrapping_sub(log.base) < log.total.wrapping_sub(log.base) {
                return None;
            } else if start > newest {
                log.older.push(Entry { start: newest, total: log.total });
            }
            (log.expires_at, log.total) = (start + self.period, total);
        }
        Some(log)
    }
}
