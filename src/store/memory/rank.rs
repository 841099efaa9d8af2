//! The order in which entries are evicted.

/// The share of its limit that a key had used when it was last decided, from 0 for nothing to 254 for all of it, or
/// [`EvictionRank::DENIED`]. At the cap, entries of low ranks are evicted first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
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
