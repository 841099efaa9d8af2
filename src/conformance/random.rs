//! Random numbers: reproducible ones for steps, and unique ones for keys.

use std::hash::{BuildHasher, RandomState};

/// The SplitMix64 generator (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// Returns a key that no other check has used, in this process or another.
pub(super) fn new_key() -> u64 {
    RandomState::new().hash_one(())
}
