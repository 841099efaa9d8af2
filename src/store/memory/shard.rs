//! A part of the store, behind one lock: its table, and the entry that it evicts when it is full.

use std::mem;
use std::sync::MutexGuard;

use super::sketches::Sketches;
use super::table::{EvictionRank, RankedFingerprint, Table};
use crate::algorithm::{KeyState, NO_END};
use crate::decision::Charge;

/// The locked shards of a request, each with its index.
pub(super) type Locked<'s> = [(usize, MutexGuard<'s, Shard>)];

/// A part of the store's keys.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: Table,
    /// The counts of keys for which the table has no room, if the store keeps any.
    pub(super) sketches: Sketches,
    /// The slots to be swept next, in quarters of a slot.
    due: u32,
    /// The amount that each request adds to `due`, in quarters of a slot.
    pace: u32,
}

/// The minimum number of slots that a sweep inspects, in quarters of a slot.
const MIN_SWEEP: u32 = 4 * 64;

/// The number of slots to be swept that each request adds, in quarters of a slot, after a sweep that removed nothing.
/// It is small because entries that another core has just written take long to read.
const IDLE_PACE: u32 = 1;

/// The same, after a sweep that removed an entry.
const BUSY_PACE: u32 = 8;

/// The number of slots to be swept that each new key adds, and each request that is counted in a sketch, in quarters of
/// a slot: several, so that a store in which all states soon expire is not much larger than its current states.
const NEW_KEY_PACE: u32 = 16;

impl Shard {
    pub(super) fn new() -> Self {
        Self { table: Table::default(), sketches: Sketches::default(), due: 0, pace: IDLE_PACE }
    }

    /// Adds an entry, in place of another one if there are `max_keys`, but none that is `spared`. An entry without a
    /// rank has the lowest one, and displaces no denied one. Returns whether there was room. Entries of requests in flight
    /// take no room from others: there are no more of them than requests. Other entries may move.
    pub(super) fn add(
        &mut self,
        fingerprint: u128,
        state: KeyState,
        rank: Option<EvictionRank>,
        spared: &[u128],
        max_keys: usize,
        expiry_limit: impl Fn() -> u64,
    ) -> bool {
        if self.is_full(max_keys) {
            match self.table.candidate(spared, expiry_limit()) {
                Some(candidate) if candidate.is_in_flight() && rank.is_none() => return false,
                Some(candidate) if candidate.is_in_flight() => {}
                Some(candidate) if rank.is_some() || candidate.rank < EvictionRank::DENIED => {
                    self.table.remove(candidate.slot);
                }
                None if state.expires_at() == NO_END => {}
                _ => return false,
            }
        }
        self.due += NEW_KEY_PACE;
        self.table.insert(fingerprint, state).set_rank(rank.unwrap_or(EvictionRank::LOWEST));
        true
    }

    /// Stores a state in the sketch of its limit, for which the table has no room.
    pub(super) fn add_to_sketch(&mut self, charge: &Charge, state: &KeyState) {
        if self.table.len() > 0 {
            // So that expired keys soon make room in the table.
            self.due += NEW_KEY_PACE;
        }
        self.sketches.set(charge, state);
    }

    /// Returns whether the table has no room for a new key.
    pub(super) fn is_full(&self, max_keys: usize) -> bool {
        self.table.len() >= max_keys
    }

    /// Counts a request. Every few requests, returns how many slots of the store are to be swept, and 0 otherwise.
    pub(super) fn sweep_due(&mut self) -> usize {
        self.due += self.pace;
        if self.due < MIN_SWEEP { 0 } else { mem::take(&mut self.due) as usize / 4 }
    }

    /// Sets how much its requests sweep, by whether the last sweep has removed an entry.
    pub(super) fn set_pace(&mut self, has_removed: bool) {
        self.pace = if has_removed { BUSY_PACE } else { IDLE_PACE };
    }
}

/// An entry that can be evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// [`EvictionRank::LOWEST`] if the entry has expired.
    pub(super) rank: EvictionRank,
    expires_at: u64,
    pub(super) slot: usize,
}

impl Candidate {
    /// Returns whether the key is of requests in flight, so that it is not evicted.
    fn is_in_flight(&self) -> bool {
        self.expires_at == NO_END
    }

    /// Returns the order in which candidates are evicted.
    fn order(&self) -> (bool, EvictionRank, u64) {
        (self.is_in_flight(), self.rank, self.expires_at)
    }
}

/// The number of entries that an eviction chooses from.
const SAMPLE: usize = 16;

/// The same, if all of the first ones were denied: evicting one of them would lift its limit.
const SAMPLE_OF_DENIED: usize = 24;

/// The maximum number of slots that an eviction inspects. At the cap, a table is more than a third full, so this many
/// slots almost always hold a full sample.
const SAMPLE_SLOTS: usize = 64;

impl Table {
    /// Chooses the entry to evict among the next few, and moves the hand past them.
    ///
    /// Entries that have expired at `now` come first, whatever their rank; then those of the lowest rank, and of these
    /// the one that expires first. So a denied key is evicted only if all in the sample were denied. Entries of
    /// `spared` fingerprints are never chosen, and those of requests in flight are not evicted. `None` if the sample holds
    /// no others.
    pub(super) fn candidate(&mut self, spared: &[u128], now: u64) -> Option<Candidate> {
        let mut lowest: Option<Candidate> = None;
        let mut seen = 0;
        for _ in 0..self.slots.len().min(SAMPLE_SLOTS) {
            let slot = if self.hand < self.slots.len() { self.hand } else { 0 };
            self.hand = slot + 1;
            let entry = &self.slots[slot];
            let found = entry.fingerprint.without_rank();
            if entry.is_empty() || spared.iter().any(|&spared| RankedFingerprint::new(spared).without_rank() == found) {
                continue;
            }
            let expires_at = entry.expires_at();
            let rank = if expires_at <= now { EvictionRank::LOWEST } else { entry.rank() };
            // Of equal entries the first one, so that evictions are spread over the whole table.
            let candidate = Candidate { rank, expires_at, slot };
            if lowest.is_none_or(|lowest| candidate.order() < lowest.order()) {
                lowest = Some(candidate);
            }
            seen += 1;
            let all_denied = lowest.is_some_and(|lowest| lowest.rank == EvictionRank::DENIED);
            let sample = if all_denied { SAMPLE_OF_DENIED } else { SAMPLE };
            if seen >= sample {
                break;
            }
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{CompactState, KeyState};

    /// Returns a pseudorandom fingerprint of the key `n` (SplitMix64).
    fn scattered(n: u128) -> u128 {
        let mut mixed = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(mixed ^ mixed >> 31) << 64
    }

    fn insert(table: &mut Table, n: u128, until: u64, rank: EvictionRank) {
        let state = CompactState { expires_at: until, ..CompactState::UNUSED };
        table.insert(scattered(n), KeyState::Compact(state)).set_rank(rank);
    }

    #[test]
    fn the_lowest_rank_is_evicted_first_and_a_denied_entry_last() {
        let mut table = Table::default();
        for n in 0..10 {
            insert(&mut table, n, 1_000, EvictionRank::DENIED);
        }
        insert(&mut table, 77, 1_000, EvictionRank(3));
        insert(&mut table, 78, 2_000, EvictionRank(2));
        for rank in [EvictionRank(2), EvictionRank(3), EvictionRank::DENIED] {
            let candidate = table.candidate(&[], 5).unwrap();
            assert_eq!(candidate.rank, rank);
            table.remove(candidate.slot);
        }
    }

    #[test]
    fn an_expired_entry_is_evicted_first_even_if_it_was_denied() {
        let mut table = Table::default();
        insert(&mut table, 0, 50, EvictionRank(0));
        insert(&mut table, 1, 10, EvictionRank::DENIED);
        insert(&mut table, 2, 60, EvictionRank::DENIED);
        let Ok(expired) = table.find(scattered(1)) else { panic!("it was inserted") };
        // Until it expires, an unused entry is evicted before it.
        assert_ne!(table.candidate(&[], 9).unwrap().slot, expired);
        assert_eq!(table.candidate(&[], 10).unwrap().slot, expired);
    }

    #[test]
    fn an_eviction_inspects_few_slots() {
        let denied = |n| {
            let mut table = Table::default();
            (0..n).for_each(|n| insert(&mut table, n, 1_000, EvictionRank::DENIED));
            table
        };
        let mut sparse = denied(10_000);
        for n in 1..10_000 {
            let Ok(at) = sparse.find(scattered(n)) else { panic!("it was inserted") };
            sparse.remove(at);
        }
        for mut table in [denied(10_000), sparse] {
            for _ in 0..1_000 {
                let before = table.hand;
                let _ = table.candidate(&[], 5);
                let slots = table.slots.len();
                let passed = (table.hand + slots - before) % slots;
                assert!((1..=64).contains(&passed), "the hand passed {passed} slots of {slots}");
            }
        }
    }

    #[test]
    fn denied_entries_stay_distributed_over_the_table() {
        const KEYS: u128 = 2_000;
        const PARTS: u128 = 16;
        let mut table = Table::default();
        (0..KEYS).for_each(|n| insert(&mut table, n, 1_000, EvictionRank::DENIED));
        let slots = table.slots.capacity();
        for n in KEYS..20 * KEYS {
            let candidate = table.candidate(&[], 5).unwrap();
            table.remove(candidate.slot);
            insert(&mut table, n, 1_000, EvictionRank::DENIED);
        }
        let mut parts = [0; PARTS as usize];
        for entry in table.slots.iter().filter(|entry| !entry.is_empty()) {
            parts[((u128::from(entry.fingerprint.high) * PARTS) >> 64) as usize] += 1;
        }
        let even = KEYS / PARTS;
        assert!(parts.iter().all(|&part| (even / 2..even * 2).contains(&part)), "{parts:?}, not {even} each");
        assert!(table.slots.capacity() <= slots + slots / 10, "{slots} slots grew to {}", table.slots.capacity());
    }
}
