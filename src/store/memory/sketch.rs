//! Counts of many keys in fixed memory, of which none is too low: a count-min sketch with conservative update, behind a
//! Bloom filter.
//!
//! A count-min sketch has some rows of counters. A key has one counter in each row, which it shares with others, so
//! that the least of its counters is at least its count. A conservative update raises only those that are below the new
//! count.

use std::f64::consts::E;

use fastbloom::BloomFilter;

/// The settings of a sketch, which counts keys in fixed memory: see [`MemoryStore::overflow`] and
/// [`MemoryStore::sketch`].
///
/// It is a [count-min sketch](https://doi.org/10.1016/j.jalgor.2003.12.001) with
/// [conservative update](https://doi.org/10.1145/859716.859719). A Bloom filter takes the first token of a key in a
/// window, so that keys that come only once don't raise the counts of others.
///
/// A count is never too low. With the [confidence](Self::confidence), it is too high by at most the
/// [error](Self::error), plus one.
///
/// Each limit has a sketch, or two for a [`SlidingWindowCounter`](crate::SlidingWindowCounter). They are allocated when
/// a limiter is built or its limits are replaced, and freed by a later build or replacement once no limiter has the
/// limit. [`MemoryStore::sketch_bytes`] returns their size.
///
/// ```
/// use tower_ratelimit::store::Sketch;
/// use tower_ratelimit::{FixedWindow, MemoryStore};
///
/// let store = MemoryStore::new().overflow(Sketch::new().error(0.000_1).expected_keys(4_000_000));
/// assert_eq!(store.sketch_bytes(FixedWindow::per_minute(100)) / 1_000_000, 5);
/// ```
///
/// [`MemoryStore::overflow`]: crate::MemoryStore::overflow
/// [`MemoryStore::sketch`]: crate::MemoryStore::sketch
/// [`MemoryStore::sketch_bytes`]: crate::MemoryStore::sketch_bytes
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Sketch {
    error: f64,
    confidence: f64,
    pub(super) keys: u64,
}

/// The bits of the Bloom filter for each expected key, and the number of those that a key sets: of the keys that it has
/// not seen, it takes 0.8 percent for known ones.
const BITS_PER_KEY: u64 = 10;
const HASHES: u32 = 7;

/// The most keys that a sketch can expect.
const MOST_KEYS: u64 = 1 << 36;

/// The least number of counters in a row: a cache line.
const SHORTEST_ROW: usize = 16;

impl Sketch {
    /// Creates the settings of a sketch for a million keys in a window, with an error of 0.001 percent and a confidence
    /// of 99 percent. It takes 7 MB for each window.
    pub const fn new() -> Self {
        Self { error: 0.000_01, confidence: 0.99, keys: 1_000_000 }
    }

    /// Sets the error, from 0.000000001 to 0.1: the share of the tokens that the sketch has admitted in a window by
    /// which a count may be too high. The first token of a key does not count. Defaults to 0.00001.
    ///
    /// # Panics
    ///
    /// Panics if `share` is out of range.
    #[track_caller]
    pub const fn error(self, share: f64) -> Self {
        assert!(share >= 1e-9 && share <= 0.1, "the error of a sketch is out of range: use 0.000000001 to 0.1");
        Self { error: share, ..self }
    }

    /// Sets the probability, from 0.5 to 0.999999, that the count of a key is within the [error](Self::error). Defaults
    /// to 0.99.
    ///
    /// # Panics
    ///
    /// Panics if `probability` is out of range.
    #[track_caller]
    pub const fn confidence(self, probability: f64) -> Self {
        let is_valid = probability >= 0.5 && probability <= 0.999_999;
        assert!(is_valid, "the confidence of a sketch is out of range: use 0.5 to 0.999999");
        Self { confidence: probability, ..self }
    }

    /// Sets how many different keys the sketch counts in a window, from 1 to 2^36. Defaults to a million. Each takes
    /// 10 bits. The first tokens of 0.8 percent of that many keys, and of more and more beyond them, count for the
    /// [error](Self::error) nevertheless.
    ///
    /// # Panics
    ///
    /// Panics if `keys` is out of range.
    #[track_caller]
    pub const fn expected_keys(self, keys: u64) -> Self {
        assert!(keys >= 1 && keys <= MOST_KEYS, "the expected keys of a sketch are out of range: use 1 to 2^36");
        Self { keys, ..self }
    }

    /// Returns the dimensions of one of several equal parts of the sketch, among which the keys are divided.
    pub(super) fn part(&self, parts: usize) -> Dimensions {
        Dimensions {
            rows: (1.0 / (1.0 - self.confidence)).ln().ceil() as usize,
            row: ((E / self.error / parts as f64).ceil() as usize).max(SHORTEST_ROW),
            bits: (self.keys * BITS_PER_KEY).div_ceil(parts as u64).next_multiple_of(64) as usize,
        }
    }
}

impl Default for Sketch {
    fn default() -> Self {
        Self::new()
    }
}

/// The dimensions of the counts of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dimensions {
    rows: usize,
    /// The number of counters in a row.
    row: usize,
    /// The number of bits of the Bloom filter.
    bits: usize,
}

impl Dimensions {
    /// Returns the memory that the counts take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.rows * self.row * size_of::<u32>() + self.bits / 8
    }
}

/// The counts of the keys in one window.
#[derive(Debug)]
pub(super) struct Counts {
    /// The keys that have a count.
    seen: BloomFilter,
    /// The counters beyond the first token, row by row.
    counters: Box<[u32]>,
    row: usize,
}

impl Counts {
    pub(super) fn new(dimensions: &Dimensions) -> Self {
        Self {
            seen: BloomFilter::with_num_bits(dimensions.bits).hashes(HASHES),
            counters: vec![0; dimensions.rows * dimensions.row].into(),
            row: dimensions.row,
        }
    }

    /// Returns the count of a key, which may be too high.
    pub(super) fn get(&self, fingerprint: u128) -> u64 {
        if !self.seen.contains_hash((fingerprint >> 64) as u64) {
            return 0;
        }
        let least = self.positions(fingerprint).map(|position| self.counters[position]).min();
        1 + u64::from(least.unwrap_or_default())
    }

    /// Raises the count of a key.
    pub(super) fn raise(&mut self, fingerprint: u128, count: u64) {
        if count == 0 {
            return;
        }
        self.seen.insert_hash((fingerprint >> 64) as u64);
        // No count exceeds a limit, which is a `u32`.
        let beyond_first = u32::try_from(count - 1).unwrap_or(u32::MAX);
        if beyond_first > 0 {
            for position in self.positions(fingerprint) {
                self.counters[position] = self.counters[position].max(beyond_first);
            }
        }
    }

    /// Returns the memory that the counts take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.counters) + self.seen.num_bits() / 8
    }

    /// Sets all counts to 0.
    pub(super) fn clear(&mut self) {
        self.seen.clear();
        self.counters.fill(0);
    }

    /// Returns the positions of a key's counters, one in each row.
    fn positions(&self, fingerprint: u128) -> impl Iterator<Item = usize> + use<> {
        let (row, high, low) = (self.row, (fingerprint >> 64) as u64 | 1, fingerprint as u64);
        (0..self.counters.len() / row).map(move |number| {
            let hash = mix(low.wrapping_add((number as u64).wrapping_mul(high)));
            number * row + ((u128::from(hash) * row as u128) >> 64) as usize
        })
    }
}

/// Makes each bit depend on all others, so that the rows are independent (the finalizer of SplitMix64).
const fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::panic;

    use super::*;
    use crate::MemoryStore;
    use crate::algorithm::FixedWindow;
    use crate::key::hash::KeyHasher;

    /// Random numbers, and the fingerprints of keys, by a seed.
    struct Random(KeyHasher, u64);

    impl Random {
        fn new(seed: u8) -> Self {
            Self(KeyHasher::with_secret([seed; 16]), 0)
        }

        fn next(&mut self) -> u64 {
            self.1 += 1;
            mix(self.0.hash(&self.1.to_be_bytes()).as_u128() as u64)
        }

        fn fingerprint(&self, key: u64) -> u128 {
            self.0.hash(&key.to_le_bytes()).as_u128()
        }

        /// Returns a key from 0 to 2^20 - 1, key k with a probability of about 1 / k.
        fn zipf(&mut self) -> u64 {
            let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
            (uniform * 20.0).exp2() as u64 - 1
        }
    }

    /// Charges random costs to random keys, and returns the exact counts.
    fn charge(counts: &mut Counts, random: &mut Random, charges: u64, costs: u64) -> HashMap<u64, u64> {
        let mut exact = HashMap::new();
        for _ in 0..charges {
            let (key, cost) = (random.zipf(), 1 + random.next() % costs);
            let fingerprint = random.fingerprint(key);
            counts.raise(fingerprint, counts.get(fingerprint) + cost);
            *exact.entry(key).or_default() += cost;
        }
        exact
    }

    #[test]
    fn no_count_is_too_low() {
        for seed in 0..10 {
            let mut random = Random::new(seed);
            // So small that most counters are shared.
            let mut counts = Counts::new(&Sketch::new().error(0.05).expected_keys(100).part(1));
            for (key, exact) in charge(&mut counts, &mut random, 5_000, 1 + u64::from(seed)) {
                assert!(counts.get(random.fingerprint(key)) >= exact, "the count of {key}, which is {exact}");
            }
        }
    }

    #[test]
    fn counts_of_zipf_traffic_are_within_the_error() {
        const CHARGES: u64 = 100_000;
        let sketch = Sketch::new().error(0.001).expected_keys(100_000);
        for seed in 0..10 {
            let mut random = Random::new(seed);
            let mut counts = Counts::new(&sketch.part(1));
            let exact = charge(&mut counts, &mut random, CHARGES, 1);
            let most = CHARGES as f64 * sketch.error + 1.0;
            let is_within =
                |(key, exact): (&u64, &u64)| counts.get(random.fingerprint(*key)) as f64 <= *exact as f64 + most;
            let within = exact.iter().filter(|&entry| is_within(entry)).count();
            assert!(within as f64 >= exact.len() as f64 * sketch.confidence, "{within} of {} counts", exact.len());
        }
    }

    #[test]
    fn keys_that_are_seen_once_raise_no_counter() {
        let random = Random::new(0);
        let mut counts = Counts::new(&Sketch::new().error(0.001).expected_keys(10_000).part(1));
        (0..10_000).for_each(|key| counts.raise(random.fingerprint(key), 1));
        assert!(counts.counters.iter().all(|counter| *counter == 0));
        let unseen = (10_000..20_000).filter(|key| counts.get(random.fingerprint(*key)) == 0).count();
        assert!(unseen >= 9_850, "{unseen} of 10,000 other keys are unseen");
    }

    #[test]
    fn the_memory_is_as_stated() {
        for (sketch, parts) in [(Sketch::new(), 1), (Sketch::new().error(0.1).expected_keys(1), 256)] {
            let dimensions = sketch.part(parts);
            assert_eq!(Counts::new(&dimensions).bytes(), dimensions.bytes());
        }
        assert_eq!((Sketch::new().part(1).rows, Sketch::new().part(1).row), (5, 271_829));
    }

    #[test]
    fn the_largest_count_is_kept() {
        let mut counts = Counts::new(&Sketch::new().error(0.1).part(1));
        counts.raise(1, u32::MAX.into());
        assert_eq!(counts.get(1), u64::from(u32::MAX));
        counts.clear();
        assert_eq!(counts.get(1), 0);
    }

    #[test]
    fn values_out_of_range_panic() {
        let settings: [fn() -> Sketch; 8] = [
            || Sketch::new().error(0.0),
            || Sketch::new().error(f64::NAN),
            || Sketch::new().error(0.11),
            || Sketch::new().confidence(0.49),
            || Sketch::new().confidence(1.0),
            || Sketch::new().confidence(f64::NAN),
            || Sketch::new().expected_keys(0),
            || Sketch::new().expected_keys(MOST_KEYS + 1),
        ];
        for sketch in settings {
            assert!(panic::catch_unwind(sketch).is_err());
        }
    }

    #[test]
    fn the_largest_sketch_has_a_size() {
        let store = MemoryStore::sketch(Sketch::new().error(1e-9).confidence(0.999_999).expected_keys(MOST_KEYS));
        // 14 rows of 2.7 billion counters, and a filter of 86 GB.
        assert_eq!(store.sketch_bytes(FixedWindow::per_day(1)) / 1_000_000_000, 238);
    }
}
