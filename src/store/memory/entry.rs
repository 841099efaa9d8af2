//! An entry of a table: a fingerprint, the rank at which it is evicted, and a state.

use super::rank::EvictionRank;

/// A state that a table can hold. The default marks an empty slot.
pub(super) trait Expiring: Default {
    /// Returns the instant, in µs, from which the state means the same as that of an unused key. 0 for an empty slot.
    fn expires_at(&self) -> u64;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<T: Expiring> {
    pub(super) fingerprint: RankedFingerprint,
    pub(super) state: T,
}

/// A fingerprint whose last 8 bits are replaced by the entry's rank. Most comparisons only need the upper half.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedFingerprint {
    pub(super) high: u64,
    low: u64,
}

pub(super) const RANK_MASK: u64 = 0xff;

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

    #[inline]
    pub(super) fn set_rank(&mut self, rank: EvictionRank) {
        self.low = self.low & !RANK_MASK | u64::from(rank.0);
    }
}

impl<T: Expiring> Entry<T> {
    /// Creates an entry of the lowest rank.
    pub(super) fn new(fingerprint: u128, state: T) -> Self {
        Self { fingerprint: RankedFingerprint::new(fingerprint), state }
    }

    /// Creates an empty slot.
    pub(super) fn empty() -> Self {
        Self { fingerprint: RankedFingerprint::EMPTY, state: T::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.expires_at() == 0
    }

    pub(super) fn rank(&self) -> EvictionRank {
        EvictionRank((self.fingerprint.low & RANK_MASK) as u8)
    }

    pub(super) fn set_rank(&mut self, rank: EvictionRank) {
        self.fingerprint.set_rank(rank);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A state that expires at an instant.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub(in super::super) struct Until(pub(in super::super) u64);

    impl Expiring for Until {
        fn expires_at(&self) -> u64 {
            self.0
        }
    }
}
