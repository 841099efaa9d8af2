//! The order in which entries are evicted.

/// The share of its limit that a key had used when it was last decided, from 0 for nothing to 254 for all of it, or
/// [`EvictionRank::DENIED`]. At the cap, entries of low ranks are evicted first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct EvictionRank(pub(super) u8);

impl EvictionRank {
    pub(super) const DENIED: Self = Self(u8::MAX);

    /// The first rank to be evicted.
    pub(super) const LOWEST: Self = Self(0);

    /// Returns the rank of a key that has `remaining` of `capacity` tokens left.
    pub(super) const fn new(remaining: u64, capacity: u64) -> Self {
        Self((capacity.saturating_sub(remaining) * 254 / capacity) as u8)
    }
}
