//! Counts of many keys in fixed memory, of which none is too low: a count-min sketch with conservative update, behind a
//! Bloom filter.
//!
//! A count-min sketch (Cormode and Muthukrishnan, 2005) has some rows of counters. A key has one counter in each row,
//! which it shares with others, so that the least of its counters is at least its count. An update raises only those
//! that are below the new count (Estan and Varghese, 2002). The first token of a key goes into a Bloom filter, so that
//! keys that are seen once raise no counter.

use std::f64::consts::E;

use fastbloom::BloomFilter;

use crate::error::ConfigError;

/// The settings of a sketch, which counts keys in fixed memory: see [`MemoryStore::overflow`] and
/// [`MemoryStore::sketch`].
///
/// A count is never too low. With the [confidence](Self::confidence), it is too high by at most the
/// [error](Self::error), plus one. Each limit has a sketch for each of its windows, whose memory is taken when the
/// limiter is built: see [`MemoryStore::sketch_bytes`].
///
/// ```
/// use tower_ratelimit::store::Sketch;
/// use tower_ratelimit::{FixedWindow, MemoryStore};
///
/// let store = MemoryStore::new().overflow(Sketch::new().error(0.000_1).expected_keys(4_000_000));
/// assert_eq!(store.sketch_bytes(FixedWindow::per_minute(100)) / 1_000_000, 5);
/// ```
///
/// Values out of range are reported when a limiter is built.
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
    pub const fn error(self, share: f64) -> Self {
        Self { error: share, ..self }
    }

    /// Sets the probability, from 0.5 to 0.999999, that the count of a key is within the [error](Self::error). Defaults
    /// to 0.99.
    pub const fn confidence(self, probability: f64) -> Self {
        Self { confidence: probability, ..self }
    }

    /// Sets how many different keys the sketch counts in a window, from 1 to 2^36. Defaults to a million. Each takes
    /// 10 bits. The first tokens of 0.8 percent of that many keys, and of more and more beyond them, count for the
    /// [error](Self::error) nevertheless.
    pub const fn expected_keys(self, keys: u64) -> Self {
        Self { keys, ..self }
    }

    /// Checks the values.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |what, value: String, range| {
            Err(ConfigError::new(format!("the {what} of a sketch is {value}: use {range}")))
        };
        if !(1e-9..=0.1).contains(&self.error) {
            return invalid("error", self.error.to_string(), "0.000000001 to 0.1");
        }
        if !(0.5..=0.999_999).contains(&self.confidence) {
            return invalid("confidence", self.confidence.to_string(), "0.5 to 0.999999");
        }
        if !(1..=MOST_KEYS).contains(&self.keys) {
            return invalid("number of expected keys", self.keys.to_string(), "1 to 68719476736");
        }
        Ok(())
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
