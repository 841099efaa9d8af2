//! Versions of live limits, and how layers and limiters switch between them.

use std::any::Any;
use std::sync::Arc;

use super::definition::Limit;
use super::limits::Limits;
use crate::error::ConfigError;
use crate::key::hash::KeyHasher;
use crate::store::Store;

/// Prepares a layer or limiter for other limits. Returns `None` if the layer or limiter was dropped.
pub(super) type Prepare = dyn Fn(&Arc<LimitsSnapshot>) -> Option<Activate> + Send + Sync;

/// Activates a prepared configuration, and returns the previous one.
pub(super) type Activate = Box<dyn FnOnce() -> Option<Retired>>;

/// A configuration that only requests in flight still use.
pub(crate) type Retired = Arc<dyn Any + Send + Sync>;

/// A version of live limits.
pub(crate) struct LimitsSnapshot {
    pub(super) version: u64,
    /// The limits, with cells that are replaced by those for each store.
    pub(super) limits: Limits,
}

/// Checks the limits. Their cells are placeholders: each layer derives those for its own store.
pub(super) fn checked(limits: impl IntoIterator<Item = Limit>) -> Result<Limits, ConfigError> {
    Limits::new(limits.into_iter().collect(), &KeyHasher::with_secret([0; 16]))
}

impl LimitsSnapshot {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the limits, with cells for a store.
    pub(crate) fn limits(&self, store: &dyn Store) -> Limits {
        let mut limits = self.limits.clone();
        limits.set_store(&store.hasher(), store.has_readable_keys());
        limits
    }
}
