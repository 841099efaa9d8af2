//! A hash table in sorted order: open addressing that grows in small steps and wastes little memory.
//!
//! A key's fingerprint is random, so its leading bits say roughly where it would stand in a sorted array: its *home*.
//! Every entry stands in its home slot or a little behind it, in sorted order, with no gap in between (Knuth's ordered
//! hash table, 6.4 exercise 66; "linear Robin Hood"). So a lookup ends at the first larger fingerprint, the table grows
//! in one pass over the old and the new slots and to any size, not only to powers of two, and an entry is removed by
//! moving its followers one slot back, without tombstones.
//!
//! An entry is a fingerprint, the rank at which it is evicted, and a state.

use std::mem;
use std::num::NonZeroU64;

use crate::algorithm::{CompactState, KeyState, Log};

/// The share of its limit that a key had used when it was last decided, from 0 for nothing to 254 for all of it, or
/// [`EvictionRank::DENIED`]. At the cap, entries of low ranks are evicted first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct EvictionRank(pub(super) u8);

impl EvictionRank {
    pub(super) const DENIED: Self = Self(u8::MAX);

    /// The first rank to be evicted.
    pub(super) const LOWEST: Self = Self(0);

    /// Returns the rank of a key that has used so many tokens of `capacity`.
    #[inline]
    pub(super) const fn new(used: u64, capacity: u64) -> Self {
        Self(if used < capacity { (used * 254 / capacity) as u8 } else { 254 })
    }
}

/// An entry of a table, or an empty slot.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) fingerprint: RankedFingerprint,
    state: Stored,
}

/// The state of an entry. `Log(None)` is an empty slot.
#[derive(Debug)]
enum Stored {
    /// A [`CompactState`], which has not expired at 0. So both kinds take no more than that.
    Compact {
        expires_at: NonZeroU64,
        at: u64,
        detail: u64,
    },
    Log(Option<Box<Log>>),
}

const _: () = assert!(size_of::<Entry>() == 40);

/// A fingerprint whose last 8 bits are replaced by the entry's rank. Most comparisons only need the upper half.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedFingerprint {
    pub(super) high: u64,
    low: u64,
}

const RANK_MASK: u64 = 0xff;

impl RankedFingerprint {
    /// The largest fingerprint, at which every search ends.
    const EMPTY: Self = Self { high: u64::MAX, low: u64::MAX };

    /// Creates a fingerprint with the lowest rank.
    pub(super) fn new(fingerprint: u128) -> Self {
        Self { high: (fingerprint >> 64) as u64, low: fingerprint as u64 & !RANK_MASK }
    }

    pub(super) fn without_rank(self) -> (u64, u64) {
        (self.high, self.low & !RANK_MASK)
    }
}

impl Entry {
    /// Creates an empty slot.
    fn empty() -> Self {
        Self { fingerprint: RankedFingerprint::EMPTY, state: Stored::Log(None) }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.state, Stored::Log(None))
    }

    pub(super) fn expires_at(&self) -> u64 {
        match &self.state {
            Stored::Compact { expires_at, .. } => expires_at.get(),
            Stored::Log(log) => log.as_ref().map_or(0, |log| log.expires_at),
        }
    }

    /// Returns the state, unless it is a log.
    pub(super) fn compact_state(&self) -> CompactState {
        match &self.state {
            Stored::Compact { expires_at, at, detail } => {
                CompactState { expires_at: expires_at.get(), at: *at, detail: *detail }
            }
            Stored::Log(_) => CompactState::UNUSED,
        }
    }

    /// Takes the state, which is to be [set](Self::set_state) again: without its log, an entry is an empty slot.
    #[inline]
    pub(super) fn take_state(&mut self) -> KeyState {
        match &mut self.state {
            Stored::Compact { .. } => KeyState::Compact(self.compact_state()),
            Stored::Log(log) => KeyState::Log(log.take().unwrap_or_default()),
        }
    }

    /// Sets the state, which is in use: an unused one would be an empty slot.
    #[inline]
    pub(super) fn set_state(&mut self, state: KeyState) {
        debug_assert!(state.expires_at() > 0, "the table removes entries that are unused");
        self.state = match state {
            KeyState::Compact(CompactState { expires_at, at, detail }) => match NonZeroU64::new(expires_at) {
                Some(expires_at) => Stored::Compact { expires_at, at, detail },
                None => Stored::Log(None),
            },
            KeyState::Log(log) => Stored::Log(Some(log)),
        };
    }

    /// Returns the bytes that the state has allocated.
    pub(super) fn heap(&self) -> usize {
        match &self.state {
            Stored::Log(Some(log)) => size_of::<Log>() + log.heap(),
            _ => 0,
        }
    }

    pub(super) fn rank(&self) -> EvictionRank {
        EvictionRank((self.fingerprint.low & RANK_MASK) as u8)
    }

    #[inline]
    pub(super) fn set_rank(&mut self, rank: EvictionRank) {
        self.fingerprint.low = self.fingerprint.low & !RANK_MASK | u64::from(rank.0);
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) slots: Vec<Entry>,
    /// The number of home slots. A few more slots behind them take entries that are pushed out.
    homes: usize,
    len: usize,
    /// Whether a log was inserted, so that entries may have allocated memory.
    has_logs: bool,
    /// The slot at which the next sweep or eviction begins. As both move it on, evictions are spread over the whole
    /// table, as insertions are: otherwise entries would pile up where nothing is evicted.
    pub(super) hand: usize,
}

const SMALLEST: usize = 8;

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn home(&self, fingerprint: RankedFingerprint) -> usize {
        ((u128::from(fingerprint.high) * self.homes as u128) >> 64) as usize
    }

    /// Returns the slot of a fingerprint, or, as an error, the slot at which it would be inserted.
    pub(super) fn find(&self, fingerprint: u128) -> Result<usize, usize> {
        let sought = RankedFingerprint::new(fingerprint);
        let mut slot = self.home(sought);
        while let Some(entry) = self.slots.get(slot) {
            if entry.fingerprint.high >= sought.high {
                let found = entry.fingerprint.without_rank();
                if entry.is_empty() {
                    break;
                }
                if found == sought.without_rank() {
                    return Ok(slot);
                }
                if found > sought.without_rank() {
                    break;
                }
            }
            slot += 1;
        }
        Err(slot)
    }

    /// Adds an entry of the lowest rank for a fingerprint that is not in the table. Other entries may move.
    pub(super) fn insert(&mut self, fingerprint: u128, state: KeyState) -> &mut Entry {
        // At most nine tenths full: at that, a lookup reads three cache lines on average.
        if (self.len + 1) * 10 > self.homes * 9 {
            self.resize((self.homes + self.homes / 8).max(self.len + 2).max(SMALLEST));
        }
        let (Ok(slot) | Err(slot)) = self.find(fingerprint);
        let gap = self.slots[slot..].iter().position(Entry::is_empty);
        let gap = gap.map_or(self.slots.len(), |distance| slot + distance);
        if gap == self.slots.len() {
            Self::push(&mut self.slots, self.homes, Entry::empty());
        }
        self.has_logs |= matches!(state, KeyState::Log(_));
        self.slots[slot..=gap].rotate_right(1);
        self.len += 1;
        let entry = &mut self.slots[slot];
        entry.fingerprint = RankedFingerprint::new(fingerprint);
        entry.set_state(state);
        entry
    }

    /// Removes an entry. Other entries may move.
    pub(super) fn remove(&mut self, slot: usize) {
        let mut end = slot + 1;
        while end < self.slots.len() && !self.slots[end].is_empty() && self.home(self.slots[end].fingerprint) < end {
            end += 1;
        }
        self.slots[slot..end].rotate_left(1);
        self.slots[end - 1] = Entry::empty();
        self.len -= 1;
    }

    /// Returns the number of slots to reserve for entries that are pushed out at the end.
    fn spare(homes: usize) -> usize {
        8 + homes / 64
    }

    /// Adds a slot at the end of `slots`, and capacity for only a few more if there is none: by default, a vector
    /// doubles.
    fn push(slots: &mut Vec<Entry>, homes: usize, entry: Entry) {
        if slots.len() == slots.capacity() {
            slots.reserve_exact(Self::spare(homes));
        }
        slots.push(entry);
    }

    /// Moves all entries, in one pass, to a table with that many homes.
    fn resize(&mut self, homes: usize) {
        let mut resized = Vec::with_capacity(homes + Self::spare(homes));
        let old = mem::take(&mut self.slots);
        self.homes = homes;
        for entry in old.into_iter().filter(|entry| !entry.is_empty()) {
            let home = self.home(entry.fingerprint);
            while resized.len() < home {
                resized.push(Entry::empty());
            }
            Self::push(&mut resized, homes, entry);
        }
        while resized.len() < homes + 8 {
            resized.push(Entry::empty());
        }
        self.slots = resized;
    }

    /// Inspects the next `count` slots, and removes entries that have expired at `now`. Returns whether there were any.
    pub(super) fn sweep(&mut self, count: usize, now: u64) -> bool {
        let before = self.len;
        for _ in 0..count.min(self.slots.len()) {
            self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
            let entry = &self.slots[self.hand];
            if !entry.is_empty() && entry.expires_at() <= now {
                self.remove(self.hand);
            } else {
                self.hand += 1;
            }
        }
        if self.homes > SMALLEST && self.len < self.homes / 3 {
            self.resize((self.len + self.len / 2).max(SMALLEST));
        }
        self.len < before
    }

    /// Returns the bytes allocated on the heap.
    pub(super) fn heap(&self) -> usize {
        let logs = if self.has_logs { self.slots.iter().map(Entry::heap).sum() } else { 0 };
        self.slots.capacity() * size_of::<Entry>() + logs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const RANK: u128 = RANK_MASK as u128;

    /// Returns a state that expires at an instant.
    fn until(expires_at: u64) -> KeyState {
        KeyState::Compact(CompactState { expires_at, ..CompactState::UNUSED })
    }

    /// Fingerprints clustered at the start, in the middle and at the end of the table.
    fn fingerprints() -> impl Strategy<Value = u128> {
        let near = |base: u128| (0u128..24).prop_map(move |n| base + (n << 8));
        prop_oneof![any::<u128>().prop_map(|p| p & !RANK), near(0), near(1 << 127), near(!RANK - (24 << 8))]
    }

    proptest! {
        /// After any insertions and removals, the table has the entries of a sorted map.
        #[test]
        fn the_table_agrees_with_a_sorted_map(
            steps in prop::collection::vec((fingerprints(), 0u8..8, 1u64..100), 1..600),
        ) {
            let mut table = Table::default();
            let mut map = BTreeMap::new();
            for (fingerprint, action, until) in steps {
                match (action, table.find(fingerprint)) {
                    (0..=4, Ok(at)) => {
                        table.slots[at].set_state(self::until(until));
                        table.slots[at].set_rank(EvictionRank(until as u8));
                        map.insert(fingerprint, until);
                    }
                    (0..=4, Err(_)) => {
                        table.insert(fingerprint, self::until(until));
                        map.insert(fingerprint, until);
                    }
                    (5..=6, Ok(at)) => {
                        table.remove(at);
                        map.remove(&fingerprint);
                    }
                    (5..=6, Err(_)) => prop_assert!(!map.contains_key(&fingerprint)),
                    _ => {
                        // A sweep that removes nothing has looked at every slot.
                        while table.sweep(usize::MAX, until) {}
                        map.retain(|_, kept| *kept > until);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (&fingerprint, &until) in &map {
                    let Ok(at) = table.find(fingerprint) else { panic!("{fingerprint:x} is lost") };
                    prop_assert_eq!(table.slots[at].take_state(), self::until(until));
                }
            }
        }
    }

    #[test]
    fn a_large_table_wastes_at_most_a_quarter() {
        let mut table = Table::default();
        for n in 0..50_000u128 {
            table.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835), until(1));
            let used = table.len() * size_of::<Entry>();
            assert!(table.len() < 1_000 || table.heap() * 3 <= used * 4, "{} of {}", used, table.heap());
        }
    }

    /// Entries that are pushed out at the end take a few more slots, not twice as many.
    #[test]
    fn entries_crowded_at_the_end_do_not_double_the_table() {
        let mut table = Table::default();
        for n in 0..1_000u128 {
            table.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 8 << 8, until(1));
        }
        for n in 0..40 {
            table.insert(!RANK - (n << 8), until(1));
            let used = table.len() * size_of::<Entry>();
            assert!(table.heap() * 3 <= used * 4, "{} of {}", used, table.heap());
        }
    }
}
