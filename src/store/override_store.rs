//! The capability of stores to keep overrides.

use std::sync::Arc;
use std::time::Duration;

use super::StoreFuture;
use crate::algorithm::Algorithm;
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;

/// The capability of a [`Store`](super::Store) to keep [overrides](crate::Overrides): another size of a limit for a
/// single key. Return it from [`Store::overrides`](super::Store::overrides).
///
/// Such a store decides by the override of a key wherever a limit is [overridable](LimitSpec::is_overridable):
/// [`LimitSpec::overridden`] returns the limit to decide by, and
/// [`Decision::with_resized`](crate::Decision::with_resized) reports its size.
pub trait OverrideStore: Send + Sync {
    /// Sets the override of a limit for `key`, in place of any previous one. Its algorithm has the limit's kind and
    /// period, which [`Overrides`](crate::Overrides) checks.
    fn set(&self, spec: &Arc<LimitSpec>, key: KeyHash, size: Override) -> StoreFuture<()>;

    /// Returns the override of `key`, if it has one that has not expired.
    fn get(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>>;

    /// Removes the override of `key`, if it has one.
    fn remove(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()>;
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

/// Converts the lifetime of an override to µs, rounded up.
pub(super) fn lifetime_micros(expires_after: Duration) -> u64 {
    expires_after.min(LONGEST_OVERRIDE).as_nanos().div_ceil(1_000) as u64
}
