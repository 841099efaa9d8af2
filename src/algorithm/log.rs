//! A log of charges, the state of sliding logs and sliding windows.
//!
//! A sliding window divides time into buckets. A token counts in the bucket of its charge and in those that follow, for
//! a period in all. A log of every request has buckets of 1 µs.

use super::settings::{Algorithm, Kind};
use super::state::{CompactState, take_instant, take_u32};

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

    /// Appends the bytes of the log: see [`key_state`](super::key_state).
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

impl Log {
    #[inline]
    pub(super) fn used(&self, algorithm: &Algorithm, now: u64) -> u64 {
        self.view(algorithm, now).used
    }

    #[inline]
    pub(super) fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        let view = self.view(algorithm, now);
        // Every entry holds at least one token.
        let bucket = match view.used.saturating_sub(most) {
            0 => return 0,
            1 => view.oldest,
            excess if excess == view.used => self.newest(algorithm),
            excess => self.last_of(algorithm, &view, excess),
        };
        (bucket + algorithm.span).saturating_sub(now)
    }

    /// Returns when nothing counts any more (`expires_at`), when more tokens remain (`at`), and the tokens in use.
    pub(super) fn summary(&self, algorithm: &Algorithm, now: u64) -> CompactState {
        match self.used(algorithm, now) {
            0 => CompactState::UNUSED,
            used => {
                let at = now + self.wait(algorithm, now, used.min(algorithm.capacity) - 1);
                CompactState { expires_at: self.expires_at, at, detail: used }
            }
        }
    }

    #[inline]
    pub(super) fn charge(&mut self, algorithm: &Algorithm, now: u64, cost: u64) -> u64 {
        let view = self.view(algorithm, now);
        let newest = self.newest(algorithm);
        if view.expired > 0 || view.oldest != self.oldest {
            self.expire(&view);
        }
        if view.used == 0 {
            self.oldest = view.current;
        } else if newest != view.current {
            self.push(Entry { start: newest, total: self.total });
        }
        // No more than the limit, which fits.
        self.total = self.total.wrapping_add(cost as u32);
        self.expires_at = view.current + algorithm.span;
        view.used + cost
    }

    /// Takes `cost` out of the bucket of the charge, which was the newest then. This takes time in proportion to the
    /// number of later entries.
    pub(super) fn refund(&mut self, algorithm: &Algorithm, mark: CompactState, now: u64, cost: u64) {
        let View { oldest, used, .. } = self.view(algorithm, now);
        let bucket = mark.expires_at.saturating_sub(algorithm.span);
        if used == 0 || bucket < oldest {
            return;
        }
        let newest = self.newest(algorithm);
        let index = self.older.partition_point(|entry| entry.start < bucket);
        let is_newest = index == self.older.len();
        let (start, total) = self.older.get(index).map_or((newest, self.total), |entry| (entry.start, entry.total));
        if start != bucket {
            return;
        }
        let charged = total.wrapping_sub(self.total_before(index));
        let back = u64::from(charged).min(cost) as u32;
        for entry in &mut self.older[index..] {
            entry.total = entry.total.wrapping_sub(back);
        }
        self.total = self.total.wrapping_sub(back);
        if back < charged {
            return;
        }
        if !is_newest {
            self.older.remove(index);
            if bucket == self.oldest {
                self.oldest = self.older.get(index).map_or(newest, |entry| entry.start);
            }
        } else if bucket == self.oldest {
            *self = Self::default();
        } else if let Some(last) = self.older.pop() {
            self.expires_at = last.start + algorithm.span;
        }
    }

    /// Returns the start of the newest bucket.
    #[inline]
    fn newest(&self, algorithm: &Algorithm) -> u64 {
        self.expires_at.saturating_sub(algorithm.span)
    }

    #[inline]
    fn view(&self, algorithm: &Algorithm, now: u64) -> View {
        // If the clock has stepped back behind the newest bucket, time stands still in that.
        let current = bucket_of(algorithm, now).max(self.newest(algorithm));
        // Usually the oldest entry still counts.
        if self.oldest + algorithm.span > current {
            let used = self.total.wrapping_sub(self.base).into();
            return View { current, oldest: self.oldest, base: self.base, expired: 0, used };
        }
        self.view_past_expired(algorithm, current)
    }

    /// Returns the view of a log whose oldest entries have expired.
    #[inline(never)]
    fn view_past_expired(&self, algorithm: &Algorithm, current: u64) -> View {
        if self.expires_at <= current {
            return View { current, oldest: current, base: self.total, expired: self.older.len(), used: 0 };
        }
        let expired = self.older.partition_point(|entry| entry.start + algorithm.span <= current);
        let oldest = self.older.get(expired).map_or(self.newest(algorithm), |entry| entry.start);
        let base = self.total_before(expired);
        View { current, oldest, base, expired, used: self.total.wrapping_sub(base).into() }
    }

    /// Returns the start of the bucket that holds the last of the first `tokens` that count.
    #[inline(never)]
    fn last_of(&self, algorithm: &Algorithm, view: &View, tokens: u64) -> u64 {
        let upto = |entry: &Entry| u64::from(entry.total.wrapping_sub(view.base));
        let index = self.older.partition_point(|entry| entry.start < view.oldest || upto(entry) < tokens);
        self.older.get(index).map_or(self.newest(algorithm), |entry| entry.start)
    }

    /// Creates a log from entries, oldest first: an instant of the bucket, the total up to and including it, and the
    /// tokens charged in it. The first one is the oldest that counts. Returns `None` if they are out of order.
    #[allow(dead_code, reason = "only used by stores that keep logs elsewhere")]
    pub(crate) fn of_entries(
        algorithm: &Algorithm,
        entries: impl IntoIterator<Item = (u64, u32, u32)>,
    ) -> Option<Self> {
        let mut log = Self::default();
        for (index, (instant, total, charged)) in entries.into_iter().enumerate() {
            let (start, newest) = (bucket_of(algorithm, instant), log.newest(algorithm));
            if index == 0 {
                (log.oldest, log.base) = (start, total.wrapping_sub(charged));
            } else if start < newest || total.wrapping_sub(log.base) < log.total.wrapping_sub(log.base) {
                return None;
            } else if start > newest {
                log.older.push(Entry { start: newest, total: log.total });
            }
            (log.expires_at, log.total) = (start + algorithm.span, total);
        }
        Some(log)
    }
}

/// Returns the start of the bucket that contains `now`.
#[inline]
fn bucket_of(algorithm: &Algorithm, now: u64) -> u64 {
    match algorithm.kind {
        Kind::Log(Some(buckets)) => now - now % (algorithm.span / u64::from(buckets)),
        // A log of every request is a log of buckets of 1 µs.
        _ => now,
    }
}
