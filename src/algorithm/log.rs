//! A log of charges, the state of sliding logs and sliding windows.
//!
//! A sliding window divides time into buckets. A token counts in the bucket of its charge and in those that follow, for
//! a period in all. A log of every request has buckets of 1 µs.

use smallvec::SmallVec;

use super::settings::{Algorithm, Kind};
use super::state::{CompactState, take_instant, take_u32};

/// The charges of a key, summed up by bucket. Buckets without charges have no entry.
///
/// Entries hold running totals rather than counts, so that a sum is a difference, and a binary search finds the entry
/// with which a given number of tokens has expired. Totals are modulo 2^32, because fewer tokens count at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Log {
    /// The instant, in µs, from which nothing counts: a period after the start of the newest bucket.
    pub(crate) expires_at: u64,
    /// The total before the first entry.
    base: u32,
    /// Oldest first. The first ones may have expired.
    entries: SmallVec<[Entry; 1]>,
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

/// The part of a log that counts at an instant.
struct View<'l> {
    /// The start of the current bucket.
    current: u64,
    /// The total before the entries that count.
    base: u32,
    entries: &'l [Entry],
    /// The tokens that count.
    used: u64,
}

impl View<'_> {
    #[inline]
    fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        // Every entry holds at least one token.
        let bucket = match self.used.saturating_sub(most) {
            0 => return 0,
            1 => self.entries[0].start,
            excess => self.last_of(excess),
        };
        (bucket + algorithm.span).saturating_sub(now)
    }

    /// Returns the start of the bucket that holds the last of the first `tokens`.
    #[inline(never)]
    fn last_of(&self, tokens: u64) -> u64 {
        let index = self.entries.partition_point(|entry| u64::from(entry.total.wrapping_sub(self.base)) < tokens);
        self.entries.get(index).map_or(self.current, |entry| entry.start)
    }
}

impl Log {
    #[inline]
    pub(super) fn used(&self, algorithm: &Algorithm, now: u64) -> u64 {
        self.view(algorithm, now).used
    }

    pub(super) fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        self.view(algorithm, now).wait(algorithm, now, most)
    }

    /// Returns when nothing counts any more (`expires_at`), when more tokens remain (`at`), and the tokens in use.
    pub(super) fn summary(&self, algorithm: &Algorithm, now: u64) -> CompactState {
        let view = self.view(algorithm, now);
        match view.used {
            0 => CompactState::UNUSED,
            used => {
                let at = now + view.wait(algorithm, now, used.min(algorithm.capacity) - 1);
                CompactState { expires_at: self.expires_at, at, detail: used }
            }
        }
    }

    pub(super) fn charge(&mut self, algorithm: &Algorithm, now: u64, cost: u64) {
        let View { current, base, entries, used } = self.view(algorithm, now);
        let expired = self.entries.len() - entries.len();
        // Once there are enough of them to pay for moving the others.
        if expired * 16 >= self.entries.len() {
            self.remove_first(expired);
        }
        // No more than the limit, which fits.
        self.record(algorithm, current, base.wrapping_add((used + cost) as u32));
    }

    /// Takes `cost` out of the bucket of the charge, which was the newest then. This takes time in proportion to the
    /// number of entries that move.
    pub(super) fn refund(&mut self, algorithm: &Algorithm, mark: CompactState, now: u64, cost: u64) {
        let View { base, entries, .. } = self.view(algorithm, now);
        let bucket = mark.expires_at.saturating_sub(algorithm.span);
        let Ok(index) = entries.binary_search_by_key(&bucket, |entry| entry.start) else { return };
        let before = index.checked_sub(1).map_or(base, |last| entries[last].total);
        let charged = entries[index].total.wrapping_sub(before);
        let back = u64::from(charged).min(cost) as u32;
        let index = self.entries.len() - entries.len() + index;
        for entry in &mut self.entries[index..] {
            entry.total = entry.total.wrapping_sub(back);
        }
        if back == charged {
            // What had expired when the newest bucket was charged does not count again without it.
            let expired = self.expired(algorithm, self.newest());
            self.entries.remove(index);
            self.remove_first(expired);
            self.expires_at = if self.entries.is_empty() { 0 } else { self.newest() + algorithm.span };
        }
    }

    /// Removes the first entries, which have expired.
    fn remove_first(&mut self, expired: usize) {
        let Some(last) = expired.checked_sub(1) else { return };
        self.base = self.entries[last].total;
        self.entries.drain(..expired);
        // Small allocations are kept: they would only be made again.
        if self.entries.capacity() > 32 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
    }

    /// Sets the total up to and including a bucket, which is the newest one.
    #[inline]
    fn record(&mut self, algorithm: &Algorithm, start: u64, total: u32) {
        match self.entries.last_mut() {
            Some(newest) if newest.start == start => newest.total = total,
            _ => self.entries.push(Entry { start, total }),
        }
        self.expires_at = start + algorithm.span;
    }

    #[inline(always)]
    fn view(&self, algorithm: &Algorithm, now: u64) -> View<'_> {
        let entries = self.entries.as_slice();
        let Some(newest) = entries.last() else {
            return View { current: bucket_of(algorithm, now), base: self.base, entries, used: 0 };
        };
        // If the clock has stepped back behind the newest bucket, time stands still in that.
        let current = bucket_of(algorithm, now).max(newest.start);
        // Usually the oldest entry still counts.
        let expired = if entries[0].start + algorithm.span > current { 0 } else { self.expired(algorithm, current) };
        let base = expired.checked_sub(1).map_or(self.base, |last| entries[last].total);
        View { current, base, entries: &entries[expired..], used: newest.total.wrapping_sub(base).into() }
    }

    /// Returns the number of entries that have expired when a bucket is the current one.
    #[inline(never)]
    fn expired(&self, algorithm: &Algorithm, current: u64) -> usize {
        self.entries.partition_point(|entry| entry.start + algorithm.span <= current)
    }

    /// Returns the start of the newest bucket, or 0.
    fn newest(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.start)
    }

    /// Returns the bytes allocated on the heap.
    pub(crate) fn heap(&self) -> usize {
        if self.entries.spilled() { self.entries.capacity() * size_of::<Entry>() } else { 0 }
    }

    /// Appends the bytes of the log: see [`key_state`](super::key_state).
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.expires_at.to_le_bytes());
        bytes.extend([self.base, self.entries.len() as u32].map(u32::to_le_bytes).as_flattened());
        for &Entry { start, total } in &self.entries {
            bytes.extend(start.to_le_bytes());
            bytes.extend(total.to_le_bytes());
        }
    }

    /// Takes the bytes of a log, or returns `None` if they are none.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (expires_at, base, len) = (take_instant(bytes)?, take_u32(bytes)?, take_u32(bytes)?);
        let entries = (0..len).map(|_| Some(Entry { start: take_instant(bytes)?, total: take_u32(bytes)? }));
        Some(Self { expires_at, base, entries: entries.collect::<Option<_>>()? })
    }

    /// Creates a log from entries, oldest first: an instant of the bucket, the total up to and including it, and the
    /// tokens charged in it. The first one is the oldest that counts. Returns `None` if they are out of order.
    #[allow(dead_code, reason = "only used by stores that keep logs elsewhere")]
    pub(crate) fn of_entries(
        algorithm: &Algorithm,
        entries: impl IntoIterator<Item = (u64, u32, u32)>,
    ) -> Option<Self> {
        let mut log = Self::default();
        for (instant, total, charged) in entries {
            let start = bucket_of(algorithm, instant);
            let used = |total: u32| total.wrapping_sub(log.base);
            match log.entries.last() {
                None => log.base = total.wrapping_sub(charged),
                Some(newest) if start < newest.start || used(total) < used(newest.total) => return None,
                Some(_) => {}
            }
            log.record(algorithm, start, total);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::SlidingLog;

    #[test]
    fn a_refund_brings_no_expired_charge_back() {
        let algorithm = SlidingLog::new(100, Duration::from_micros(100)).into();
        let mut log = Log::default();
        for now in 1_000..1_040 {
            log.charge(&algorithm, now, 1);
        }
        log.charge(&algorithm, 1_101, 1);
        assert_eq!(log.used(&algorithm, 1_101), 39, "the first two have expired");
        let mark = log.summary(&algorithm, 1_101);
        log.refund(&algorithm, mark, 1_101, 1);
        for now in [1_101, 1_050] {
            assert_eq!(log.used(&algorithm, now), 38, "at {now}");
        }
    }

    #[test]
    fn a_refund_keeps_charges_that_count_again_after_a_step_back() {
        let algorithm = SlidingLog::new(100, Duration::from_micros(100)).into();
        let mut log = Log::default();
        log.charge(&algorithm, 1_000, 7);
        log.charge(&algorithm, 1_099, 1);
        let mark = log.summary(&algorithm, 1_099);
        log.refund(&algorithm, mark, 1_100, 1);
        assert_eq!([1_099, 1_100].map(|now| log.used(&algorithm, now)), [7, 0]);
    }
}
