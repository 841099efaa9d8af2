//! The capability of stores to keep overrides.

use std::time::Duration;

use super::StoreFuture;
use crate::algorithm::{Algorithm, Size};
use crate::decision::Cell;

/// The capability of a [`Store`](super::Store) to keep [overrides](crate::LimitHandle#overrides): another size of a limit for a
/// single key. Return it from [`Store::overrides`](super::Store::overrides).
///
/// Such a store decides by the override of a key wherever a limit is [overridable](Cell::is_overridable): it reads the
/// override with the state of the key, and [applies](Cell::apply_override) it.
pub trait OverrideStore: Send + Sync {
    /// Sets the override of a limit for the key of a cell, in place of any previous one. Its algorithm has the limit's kind
    /// and period, which [`Overrides`](crate::LimitHandle#overrides) checks.
    fn set(&self, cell: &Cell, size: Override) -> StoreFuture<()>;

    /// Returns the override of the key, if it has one that has not expired.
    fn get(&self, cell: &Cell) -> StoreFuture<Option<Override>>;

    /// Removes the override of the key, if it has one.
    fn remove(&self, cell: &Cell) -> StoreFuture<()>;
}

/// An override of a limit's size for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Override {
    /// The algorithm of the limit, with the number of tokens for this key.
    pub algorithm: Algorithm,
    /// The time until the override expires, or `None` if it never does.
    pub expires_after: Option<Duration>,
}

impl Override {
    /// Creates an override that expires after the given time, or never.
    #[must_use]
    pub const fn new(algorithm: Algorithm, expires_after: Option<Duration>) -> Self {
        Self { algorithm, expires_after }
    }
}

/// The longest time after which an override expires: 100 years.
pub(crate) const LONGEST_OVERRIDE: Duration = Duration::from_secs(36_525 * 86_400);

/// An override, as stores keep it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StoredOverride {
    pub(super) size: Size,
    /// The instant at which it expires, in µs, if it does.
    pub(super) expires_at: Option<u64>,
}

impl StoredOverride {
    /// Creates an override that is set at `now` (in µs).
    pub(super) fn new(by: Override, now: u64) -> Self {
        Self { size: by.algorithm.size(), expires_at: by.expires_after.map(|after| now + lifetime_micros(after)) }
    }

    pub(super) fn is_valid_at(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|expires_at| now < expires_at)
    }

    /// Returns the override of a cell, unless its limit cannot have that size.
    pub(super) fn of(&self, cell: &Cell, now: u64) -> Option<Override> {
        let expires_after = self.expires_at.map(|expires_at| Duration::from_micros(expires_at.saturating_sub(now)));
        Some(Override { algorithm: cell.algorithm().with_size(self.size)?, expires_after })
    }
}

/// Converts the lifetime of an override to µs, rounded up.
pub(super) fn lifetime_micros(expires_after: Duration) -> u64 {
    expires_after.min(LONGEST_OVERRIDE).as_nanos().div_ceil(1_000) as u64
}
