//! A hash table in sorted order: open addressing that grows in small steps and wastes little.
//!
//! A key's print is random, so its leading bits say roughly where it would stand in a sorted
//! array. Every entry stands at that place or a little behind it, in sorted order, with no gap in
//! between (Knuth's ordered hash table, 6.4 exercise 66; "linear Robin Hood"). So a look-up ends
//! at the first larger print, growing is one pass over both tables, any size will do, not only
//! powers of two, and an entry is removed by moving its followers one place up: no tombstones.

use std::fmt::Debug;

use crate::store::LimitSpec;

/// What a table can hold.
pub(super) trait Slot: Default {
    /// What is aligned as entries are to be, so that none lies across two cache lines.
    type Aligned: Copy + Debug;

    /// The instant, in µs, from which the slot's content means nothing any more. Zero for a slot
    /// that is empty.
    fn until(&self) -> u64;
}

/// Where entries take half a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct HalfLine;

/// Where they take a whole one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Line;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<T: Slot> {
    print: Print,
    pub(super) state: T,
    _aligned: [T::Aligned; 0],
}

/// The key's hash, but for the last 8 bits, which hold the entry's rank. In halves: most look-ups need
/// no more than the first to see that an entry is not the one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Print {
    high: u64,
    low: u64,
}

/// How much of its limit a key had used when it was last decided, from 0 for nothing to 254 for all of it, or
/// [`Rank::DENIED`]. At the cap, entries of low ranks are evicted first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Rank(u8);

impl Rank {
    pub(super) const DENIED: Self = Self(u8::MAX);

    /// The first rank to be evicted.
    pub(super) const LOWEST: Self = Self(0);

    /// The rank of a key to which so much of its limit is left.
    pub(super) fn of(remaining: u64, spec: &LimitSpec) -> Self {
        let capacity = spec.capacity();
        Self((capacity.saturating_sub(remaining) * 254 / capacity) as u8)
    }
}

const RANK: u64 = 0xff;

impl Print {
    /// No look-up goes on behind an empty slot.
    const EMPTY: Self = Self { high: u64::MAX, low: u64::MAX };

    #[inline]
    fn of(print: u128) -> Self {
        Self { high: (print >> 64) as u64, low: print as u64 & !RANK }
    }

    #[inline]
    fn rank(self) -> Rank {
        Rank((self.low & RANK) as u8)
    }

    #[inline]
    fn is(self, print: u128) -> bool {
        let other = Self::of(print);
        self.high == other.high && self.low & !RANK == other.low
    }

    #[inline]
    pub(super) fn set(&mut self, rank: Rank) {
        self.low = self.low & !RANK | u64::from(rank.0);
    }
}

impl<T: Slot> Entry<T> {
    fn empty() -> Self {
        Self { print: Print::EMPTY, state: T::default(), _aligned: [] }
    }

    fn is_empty(&self) -> bool {
        self.state.until() == 0
    }

    /// What it remembers, and its rank.
    #[inline]
    pub(super) fn seen(&self) -> (T, Rank)
    where
        T: Copy,
    {
        (self.state, self.print.rank())
    }

    /// What it remembers, and where its rank is.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut T, &mut Print) {
        (&mut self.state, &mut self.print)
    }
}

/// Where a print stands, or where it would.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    At(usize),
    Before(usize),
}

/// An entry that can be evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// [`Rank::LOWEST`] if the entry has expired.
    pub(super) rank: Rank,
    until: u64,
    pub(super) at: usize,
}

impl Candidate {
    /// The candidate with the lowest value is evicted.
    #[inline]
    pub(super) fn value(&self) -> (Rank, u64) {
        (self.rank, self.until)
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
// In this order: see the shard.
#[repr(C)]
pub(super) struct Table<T: Slot> {
    slots: Vec<Entry<T>>,
    /// The slots that prints are spread over. A few more behind them take what is pushed out.
    spread: usize,
    len: usize,
    /// The slot at which the next sweep or eviction begins. As both move it on, evictions are spread over the whole
    /// table, as insertions are: otherwise entries would pile up where nothing is evicted.
    hand: usize,
}

const SMALLEST: usize = 8;

impl<T: Slot> Table<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), spread: 0, len: 0, hand: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn home(&self, print: Print) -> usize {
        ((u128::from(print.high) * self.spread as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn find(&self, print: u128) -> Place {
        let print = Print::of(print);
        let mut at = self.home(print);
        while let Some(entry) = self.slots.get(at) {
            if entry.print.high >= print.high {
                let low = entry.print.low & !RANK;
                if entry.print.high > print.high || low > print.low || entry.is_empty() {
                    break;
                }
                if low == print.low {
                    return Place::At(at);
                }
            }
            at += 1;
        }
        Place::Before(at)
    }

    /// Reads where the search for a print begins, to have it nearby.
    #[inline]
    pub(super) fn touch(&self, print: u128) -> u64 {
        self.slots.get(self.home(Print::of(print))).map_or(0, |entry| entry.print.high)
    }

    pub(super) fn entry(&self, at: usize) -> &Entry<T> {
        &self.slots[at]
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, at: usize) -> &mut Entry<T> {
        &mut self.slots[at]
    }

    /// Adds an entry for a print that is not there. Whatever was found earlier may have moved.
    pub(super) fn insert(&mut self, print: u128, state: T) -> &mut Entry<T> {
        // At most nine tenths full: at that, a look-up reads three cache lines on average.
        if (self.len + 1) * 10 > self.spread * 9 {
            self.resize((self.spread + self.spread / 8).max(self.len + 2).max(SMALLEST));
        }
        let (Place::At(at) | Place::Before(at)) = self.find(print);
        let gap = self.slots[at..].iter().position(Entry::is_empty);
        let gap = gap.map_or(self.slots.len(), |distance| at + distance);
        if gap == self.slots.len() {
            Self::push(&mut self.slots, self.spread, Entry::empty());
        }
        self.slots[at..=gap].rotate_right(1);
        self.slots[at] = Entry { print: Print::of(print), state, _aligned: [] };
        self.len += 1;
        &mut self.slots[at]
    }

    pub(super) fn remove(&mut self, at: usize) {
        let mut end = at + 1;
        while end < self.slots.len() && !self.slots[end].is_empty() && self.home(self.slots[end].print) < end {
            end += 1;
        }
        self.slots[at..end].rotate_left(1);
        self.slots[end - 1] = Entry::empty();
        self.len -= 1;
    }

    /// How many slots are kept ready for what is pushed out at the end.
    fn spare(spread: usize) -> usize {
        8 + spread / 64
    }

    /// Adds a slot at the end of `slots`, and room for only a few more if there is none: left to
    /// itself, a vector takes twice as much.
    fn push(slots: &mut Vec<Entry<T>>, spread: usize, entry: Entry<T>) {
        if slots.len() == slots.capacity() {
            slots.reserve_exact(Self::spare(spread));
        }
        slots.push(entry);
    }

    /// Moves all entries, in one pass, to a table spread over `spread` slots.
    fn resize(&mut self, spread: usize) {
        let mut larger = Vec::with_capacity(spread + Self::spare(spread));
        let old = std::mem::take(&mut self.slots);
        self.spread = spread;
        for entry in old.into_iter().filter(|entry| !entry.is_empty()) {
            let home = self.home(entry.print);
            while larger.len() < home {
                larger.push(Entry::empty());
            }
            Self::push(&mut larger, spread, entry);
        }
        while larger.len() < spread + 8 {
            larger.push(Entry::empty());
        }
        self.slots = larger;
    }

    /// Looks at the next `slots` slots and drops what means nothing at `now` any more.
    pub(super) fn sweep(&mut self, slots: usize, now: u64) {
        for _ in 0..slots.min(self.slots.len()) {
            self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
            let entry = &self.slots[self.hand];
            if !entry.is_empty() && entry.state.until() <= now {
                self.remove(self.hand);
            } else {
                self.hand += 1;
            }
        }
        if self.spread > SMALLEST && self.len < self.spread / 3 {
            self.resize((self.len + self.len / 2).max(SMALLEST));
        }
    }

    /// Chooses the entry to evict among the next few, and moves the hand past them.
    ///
    /// Entries that have expired at `now` come first, whatever their rank; then those of the lowest rank, and of these
    /// the one that expires first. So a denied key is evicted only if all in the sample were denied. Entries of `spared`
    /// keys are never chosen. `None` if the sample holds no others.
    pub(super) fn candidate(&mut self, spared: &[u128], now: u64) -> Option<Candidate> {
        let mut lowest: Option<Candidate> = None;
        let mut seen = 0;
        for _ in 0..self.slots.len().min(SAMPLE_SLOTS) {
            let at = if self.hand < self.slots.len() { self.hand } else { 0 };
            self.hand = at + 1;
            let entry = &self.slots[at];
            if entry.is_empty() || spared.iter().any(|&print| entry.print.is(print)) {
                continue;
            }
            let until = entry.state.until();
            let rank = if until <= now { Rank::LOWEST } else { entry.print.rank() };
            let candidate = Candidate { rank, until, at };
            if lowest.is_none_or(|lowest| candidate.value() < lowest.value()) {
                lowest = Some(candidate);
            }
            seen += 1;
            let all_denied = lowest.is_some_and(|lowest| lowest.rank == Rank::DENIED);
            if seen >= if all_denied { SAMPLE_OF_DENIED } else { SAMPLE } {
                break;
            }
        }
        lowest
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(|entry| !entry.is_empty()).map(|entry| &entry.state)
    }

    /// Bytes on the heap, but for those of the states.
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

    impl Slot for Until {
        type Aligned = HalfLine;

        fn until(&self) -> u64 {
            self.0
        }
    }

    /// Prints that crowd together, at the start, in the middle and at the end.
    fn prints() -> impl Strategy<Value = u128> {
        let near = |base: u128| (0u128..24).prop_map(move |n| base + (n << 8));
        prop_oneof![any::<u128>().prop_map(|p| p & !RANK), near(0), near(1 << 127), near(!RANK - (24 << 8))]
    }

    proptest! {
        /// Whatever comes and goes, the table holds what a sorted map holds.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((prints(), 0u8..8, 1u64..100), 1..600)) {
            let mut table = Table::<Until>::new();
            let mut map = BTreeMap::new();
            for (print, action, until) in steps {
                match (action, table.find(print)) {
                    (0..=4, Place::At(at)) => {
                        table.entry_mut(at).state = Until(until);
                        table.entry_mut(at).parts().1.set(Rank(until as u8));
                        map.insert(print, until);
                    }
                    (0..=4, Place::Before(_)) => {
                        table.insert(print, Until(until));
                        map.insert(print, until);
                    }
                    (5..=6, Place::At(at)) => {
                        table.remove(at);
                        map.remove(&print);
                    }
                    (5..=6, Place::Before(_)) => prop_assert!(!map.contains_key(&print)),
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
                for (&print, &until) in &map {
                    let Place::At(at) = table.find(print) else { panic!("{print:x} is lost") };
                    prop_assert_eq!(table.entry(at).state, Until(until));
                }
            }
        }
    }

    #[test]
    fn it_wastes_at_most_a_quarter_once_it_is_large() {
        let mut table = Table::<Until>::new();
        for n in 0..50_000u128 {
            table.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835), Until(1));
            let used = table.len() * size_of::<Entry<Until>>();
            assert!(table.len() < 1_000 || table.heap() * 3 <= used * 4, "{} of {}", used, table.heap());
        }
    }

    /// What pushes the last slots' entries out takes a few slots more, not twice as many.
    #[test]
    fn a_crowd_at_the_end_does_not_double_it() {
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

    /// The print of the key `n`, as random as a hash (SplitMix64).
    fn scattered(n: u128) -> u128 {
        let mut mixed = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(mixed ^ mixed >> 31) << 64
    }

    fn insert(table: &mut Table<Until>, n: u128, until: u64, rank: Rank) {
        table.insert(scattered(n), Until(until)).parts().1.set(rank);
    }

    #[test]
    fn the_lowest_rank_goes_first_and_a_denied_one_last() {
        let mut table = Table::<Until>::new();
        for n in 0..10 {
            insert(&mut table, n, 1_000, Rank::DENIED);
        }
        insert(&mut table, 77, 1_000, Rank(3));
        insert(&mut table, 78, 2_000, Rank(2));
        for rank in [Rank(2), Rank(3), Rank::DENIED] {
            let candidate = table.candidate(&[], 5).unwrap();
            assert_eq!(candidate.rank, rank);
            table.remove(candidate.at);
        }
    }

    #[test]
    fn an_expired_entry_goes_before_all_others_even_if_it_was_denied() {
        let mut table = Table::<Until>::new();
        insert(&mut table, 0, 50, Rank(0));
        insert(&mut table, 1, 10, Rank::DENIED);
        insert(&mut table, 2, 60, Rank::DENIED);
        let Place::At(expired) = table.find(scattered(1)) else { panic!("it was inserted") };
        // Before it has expired, it goes after the entry that has used nothing.
        assert_ne!(table.candidate(&[], 9).unwrap().at, expired);
        assert_eq!(table.candidate(&[], 10).unwrap().at, expired);
    }

    #[test]
    fn an_eviction_looks_at_few_slots_whatever_the_table_holds() {
        let denied = |n| {
            let mut table = Table::<Until>::new();
            (0..n).for_each(|n| insert(&mut table, n, 1_000, Rank::DENIED));
            table
        };
        let mut sparse = denied(10_000);
        for n in 1..10_000 {
            let Place::At(at) = sparse.find(scattered(n)) else { panic!("it was inserted") };
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
        (0..KEYS).for_each(|n| insert(&mut table, n, 1_000, Rank::DENIED));
        let slots = table.slots.capacity();
        for n in KEYS..20 * KEYS {
            let candidate = table.candidate(&[], 5).unwrap();
            table.remove(candidate.at);
            insert(&mut table, n, 1_000, Rank::DENIED);
        }
        let mut parts = [0; PARTS as usize];
        for entry in table.slots.iter().filter(|entry| !entry.is_empty()) {
            parts[((u128::from(entry.print.high) * PARTS) >> 64) as usize] += 1;
        }
        let even = KEYS / PARTS;
        assert!(parts.iter().all(|&part| (even / 2..even * 2).contains(&part)), "{parts:?}, not {even} each");
        assert!(table.slots.capacity() <= slots + slots / 10, "{slots} slots grew to {}", table.slots.capacity());
    }
}
