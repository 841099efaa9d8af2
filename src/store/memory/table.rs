//! A hash table in sorted order: open addressing that grows in small steps and wastes little memory.
//!
//! A key's fingerprint is random, so its leading bits say roughly where it would stand in a sorted array: its *home*.
//! Every entry stands in its home slot or a little behind it, in sorted order, with no gap in between (Knuth's ordered
//! hash table, 6.4 exercise 66; "linear Robin Hood"). So a look-up ends at the first larger fingerprint, the table grows
//! in one pass over the old and the new slots and to any size, not only to powers of two, and an entry is removed by
//! moving its followers one slot back, without tombstones.

use std::fmt::Debug;

use super::rank::EvictionRank;

/// A state that a table can hold. The default marks an empty slot.
pub(super) trait Expiring: Default {
    /// A type with the alignment of entries, so that none lies across two cache lines.
    type Aligned: Copy + Debug;

    /// The instant, in µs, from which the state means the same as that of an unused key. 0 for an empty slot.
    fn expires_at(&self) -> u64;
}

/// The alignment of entries that take half a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct HalfLine;

/// The alignment of entries that take a whole cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Line;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<T: Expiring> {
    fingerprint: RankedFingerprint,
    pub(super) state: T,
    _aligned: [T::Aligned; 0],
}

/// A fingerprint whose last 8 bits are replaced by the entry's rank. Most comparisons only need the upper half.
#[derive(Clone, Copy, Debug)]
struct RankedFingerprint {
    high: u64,
    low: u64,
}

const RANK: u64 = 0xff;

impl RankedFingerprint {
    /// The largest fingerprint, at which every search ends.
    const EMPTY: Self = Self { high: u64::MAX, low: u64::MAX };

    /// A fingerprint with the lowest rank.
    fn new(fingerprint: u128) -> Self {
        Self { high: (fingerprint >> 64) as u64, low: fingerprint as u64 & !RANK }
    }

    fn without_rank(self) -> (u64, u64) {
        (self.high, self.low & !RANK)
    }
}

impl<T: Expiring> Entry<T> {
    fn empty() -> Self {
        Self { fingerprint: RankedFingerprint::EMPTY, state: T::default(), _aligned: [] }
    }

    fn is_empty(&self) -> bool {
        self.state.expires_at() == 0
    }

    pub(super) fn rank(&self) -> EvictionRank {
        EvictionRank((self.fingerprint.low & RANK) as u8)
    }

    pub(super) fn set_rank(&mut self, rank: EvictionRank) {
        self.fingerprint.low = self.fingerprint.low & !RANK | u64::from(rank.0);
    }
}

/// The slot of a fingerprint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Slot {
    Occupied(usize),
    /// The fingerprint is not in the table, and would be inserted here.
    Vacant(usize),
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
    /// The candidate with the lowest value is evicted.
    pub(super) fn value(&self) -> (EvictionRank, u64) {
        (self.rank, self.expires_at)
    }
}

/// The number of entries that an eviction chooses from, and the number if all of the first ones were denied: a second
/// look is cheaper than a limit that is lifted.
const SAMPLE: usize = 16;
const SAMPLE_OF_DENIED: usize = 24;

/// The most slots that an eviction looks at. At the cap, a table is more than a third full, unless nearly all keys are in
/// the other table: that so many slots hold no sample is as good as impossible.
const SAMPLE_SLOTS: usize = 64;

#[derive(Debug)]
pub(super) struct Table<T: Expiring> {
    slots: Vec<Entry<T>>,
    /// The number of home slots. A few more slots behind them take what is pushed out.
    homes: usize,
    len: usize,
    /// The slot at which the next sweep or eviction begins. As both move it on, evictions are spread over the whole
    /// table, as insertions are: otherwise entries would pile up where nothing is evicted.
    hand: usize,
}

const SMALLEST: usize = 8;

impl<T: Expiring> Table<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), homes: 0, len: 0, hand: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn home(&self, fingerprint: RankedFingerprint) -> usize {
        ((u128::from(fingerprint.high) * self.homes as u128) >> 64) as usize
    }

    pub(super) fn find(&self, fingerprint: u128) -> Slot {
        let sought = RankedFingerprint::new(fingerprint);
        let mut slot = self.home(sought);
        while let Some(entry) = self.slots.get(slot) {
            if entry.fingerprint.high >= sought.high {
                let found = entry.fingerprint.without_rank();
                if found > sought.without_rank() || entry.is_empty() {
                    break;
                }
                if found == sought.without_rank() {
                    return Slot::Occupied(slot);
                }
            }
            slot += 1;
        }
        Slot::Vacant(slot)
    }

    #[cfg(test)]
    fn entry(&self, slot: usize) -> &Entry<T> {
        &self.slots[slot]
    }

    pub(super) fn entry_mut(&mut self, slot: usize) -> &mut Entry<T> {
        &mut self.slots[slot]
    }

    /// Adds an entry of the lowest rank for a fingerprint that is not in the table. Other entries may move.
    pub(super) fn insert(&mut self, fingerprint: u128, state: T) -> &mut Entry<T> {
        // At most nine tenths full: at that, a look-up reads three cache lines on average.
        if (self.len + 1) * 10 > self.homes * 9 {
            self.resize((self.homes + self.homes / 8).max(self.len + 2).max(SMALLEST));
        }
        let (Slot::Occupied(slot) | Slot::Vacant(slot)) = self.find(fingerprint);
        let gap = self.slots[slot..].iter().position(Entry::is_empty);
        let gap = gap.map_or(self.slots.len(), |distance| slot + distance);
        if gap == self.slots.len() {
            Self::push(&mut self.slots, self.homes, Entry::empty());
        }
        self.slots[slot..=gap].rotate_right(1);
        self.slots[slot] = Entry { fingerprint: RankedFingerprint::new(fingerprint), state, _aligned: [] };
        self.len += 1;
        &mut self.slots[slot]
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

    /// The number of slots to reserve for entries that are pushed out at the end.
    fn spare(homes: usize) -> usize {
        8 + homes / 64
    }

    /// Adds a slot at the end of `slots`, and capacity for only a few more if there is none: by default, a vector
    /// doubles.
    fn push(slots: &mut Vec<Entry<T>>, homes: usize, entry: Entry<T>) {
        if slots.len() == slots.capacity() {
            slots.reserve_exact(Self::spare(homes));
        }
        slots.push(entry);
    }

    /// Moves all entries, in one pass, to a table with that many homes.
    fn resize(&mut self, homes: usize) {
        let mut resized = Vec::with_capacity(homes + Self::spare(homes));
        let old = std::mem::take(&mut self.slots);
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

    /// Looks at the next `slots` slots, and removes entries that have expired at `now`.
    pub(super) fn sweep(&mut self, slots: usize, now: u64) {
        for _ in 0..slots.min(self.slots.len()) {
            self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
            let entry = &self.slots[self.hand];
            if !entry.is_empty() && entry.state.expires_at() <= now {
                self.remove(self.hand);
            } else {
                self.hand += 1;
            }
        }
        if self.homes > SMALLEST && self.len < self.homes / 3 {
            self.resize((self.len + self.len / 2).max(SMALLEST));
        }
    }

    /// Chooses the entry to evict among the next few, and moves the hand past them.
    ///
    /// Entries that have expired at `now` come first, whatever their rank; then those of the lowest rank, and of these
    /// the one that expires first. So a denied key is evicted only if all in the sample were denied. Entries of `spared`
    /// fingerprints are never chosen. `None` if the sample holds no others.
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
            let expires_at = entry.state.expires_at();
            let rank = if expires_at <= now { EvictionRank::LOWEST } else { entry.rank() };
            let candidate = Candidate { rank, expires_at, slot };
            if lowest.is_none_or(|lowest| candidate.value() < lowest.value()) {
                lowest = Some(candidate);
            }
            seen += 1;
            let all_denied = lowest.is_some_and(|lowest| lowest.rank == EvictionRank::DENIED);
            if seen >= if all_denied { SAMPLE_OF_DENIED } else { SAMPLE } {
                break;
            }
        }
        lowest
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(|entry| !entry.is_empty()).map(|entry| &entry.state)
    }

    /// The bytes allocated for the table itself, without those that states have allocated.
    pub(super) fn heap(&self) -> usize {
        self.slots.capacity() * size_of::<Entry<T>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const RANK: u128 = super::RANK as u128;

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Until(u64);

    impl Expiring for Until {
        type Aligned = HalfLine;

        fn expires_at(&self) -> u64 {
            self.0
        }
    }

    /// Fingerprints that crowd together, at the start, in the middle and at the end.
    fn fingerprints() -> impl Strategy<Value = u128> {
        let near = |base: u128| (0u128..24).prop_map(move |n| base + (n << 8));
        prop_oneof![any::<u128>().prop_map(|p| p & !RANK), near(0), near(1 << 127), near(!RANK - (24 << 8))]
    }

    proptest! {
        /// Whatever comes and goes, the table holds what a sorted map holds.
        #[test]
        fn the_table_holds_what_a_sorted_map_holds(steps in prop::collection::vec((fingerprints(), 0u8..8, 1u64..100), 1..600)) {
            let mut table = Table::<Until>::new();
            let mut map = BTreeMap::new();
            for (fingerprint, action, until) in steps {
                match (action, table.find(fingerprint)) {
                    (0..=4, Slot::Occupied(at)) => {
                        table.entry_mut(at).state = Until(until);
                        table.entry_mut(at).set_rank(EvictionRank(until as u8));
                        map.insert(fingerprint, until);
                    }
                    (0..=4, Slot::Vacant(_)) => {
                        table.insert(fingerprint, Until(until));
                        map.insert(fingerprint, until);
                    }
                    (5..=6, Slot::Occupied(at)) => {
                        table.remove(at);
                        map.remove(&fingerprint);
                    }
                    (5..=6, Slot::Vacant(_)) => prop_assert!(!map.contains_key(&fingerprint)),
                    _ => {
                        // A sweep that removes nothing has looked at every slot.
                        loop {
                            let before = table.len();
                            table.sweep(usize::MAX, until);
                            if table.len() == before {
                                break;
                            }
                        }
                        map.retain(|_, kept| *kept > until);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (&fingerprint, &until) in &map {
                    let Slot::Occupied(at) = table.find(fingerprint) else { panic!("{fingerprint:x} is lost") };
                    prop_assert_eq!(table.entry(at).state, Until(until));
                }
            }
        }
    }

    #[test]
    fn a_large_table_wastes_at_most_a_quarter() {
        let mut table = Table::<Until>::new();
        for n in 0..50_000u128 {
            table.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835), Until(1));
            let used = table.len() * size_of::<Entry<Until>>();
            assert!(table.len() < 1_000 || table.heap() * 3 <= used * 4, "{} of {}", used, table.heap());
        }
    }

    /// Entries that are pushed out at the end take a few more slots, not twice as many.
    #[test]
    fn entries_crowded_at_the_end_do_not_double_the_table() {
        let mut table = Table::<Until>::new();
        for n in 0..1_000u128 {
            table.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 8 << 8, Until(1));
        }
        for n in 0..40 {
            table.insert(!RANK - (n << 8), Until(1));
            let used = table.len() * size_of::<Entry<Until>>();
            assert!(table.heap() * 3 <= used * 4, "{} of {}", used, table.heap());
        }
    }

    /// The fingerprint of the key `n`, as random as a hash (SplitMix64).
    fn scattered(n: u128) -> u128 {
        let mut mixed = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(mixed ^ mixed >> 31) << 64
    }

    fn insert(table: &mut Table<Until>, n: u128, until: u64, rank: EvictionRank) {
        table.insert(scattered(n), Until(until)).set_rank(rank);
    }

    #[test]
    fn the_lowest_rank_is_evicted_first_and_a_denied_entry_last() {
        let mut table = Table::<Until>::new();
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
        let mut table = Table::<Until>::new();
        insert(&mut table, 0, 50, EvictionRank(0));
        insert(&mut table, 1, 10, EvictionRank::DENIED);
        insert(&mut table, 2, 60, EvictionRank::DENIED);
        let Slot::Occupied(expired) = table.find(scattered(1)) else { panic!("it was inserted") };
        // Before it has expired, it goes after the entry that has used nothing.
        assert_ne!(table.candidate(&[], 9).unwrap().slot, expired);
        assert_eq!(table.candidate(&[], 10).unwrap().slot, expired);
    }

    #[test]
    fn an_eviction_looks_at_few_slots_whatever_the_table_holds() {
        let denied = |n| {
            let mut table = Table::<Until>::new();
            (0..n).for_each(|n| insert(&mut table, n, 1_000, EvictionRank::DENIED));
            table
        };
        let mut sparse = denied(10_000);
        for n in 1..10_000 {
            let Slot::Occupied(at) = sparse.find(scattered(n)) else { panic!("it was inserted") };
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
    fn entries_stay_spread_over_the_table_while_all_are_denied() {
        const KEYS: u128 = 2_000;
        const PARTS: u128 = 16;
        let mut table = Table::<Until>::new();
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
