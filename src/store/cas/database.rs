//! The database of a store, with the names and lifetimes of its values.

use std::sync::Arc;
use std::time::Duration;

use super::backend::{CompareAndSwap, Versioned};
use super::error::CasError;
use super::key_locks::KeyLocks;
use crate::algorithm::StoredKey;
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;
use crate::store::key_name::DEFAULT_PREFIX;
use crate::store::override_store::LONGEST_OVERRIDE;
use crate::time::Timestamp;

/// A database, and the names and lifetimes of values in it.
#[derive(Debug)]
pub(super) struct Database<B> {
    pub(super) backend: Arc<B>,
    pub(super) locks: Arc<KeyLocks>,
    pub(super) prefix: Arc<str>,
    /// The time for which a value is kept after it has ceased to count.
    pub(super) ttl_margin: Duration,
}

impl<B: CompareAndSwap> Database<B> {
    pub(super) fn new(backend: B) -> Self {
        let ttl_margin = Duration::from_secs(1);
        Self { backend: Arc::new(backend), locks: Arc::new(KeyLocks::new()), prefix: DEFAULT_PREFIX.into(), ttl_margin }
    }

    /// Returns the name of the value that holds a key's states under a limit.
    pub(super) fn key(&self, spec: &LimitSpec, key: KeyHash) -> String {
        format!("{}:{:032x}", self.prefix, spec.fingerprint(key))
    }

    /// Returns the name of the value that holds a key's override of a limit.
    pub(super) fn override_key(&self, spec: &LimitSpec, key: KeyHash) -> String {
        self.key(spec, key) + ":override"
    }

    /// Returns the values of several keys, in their order.
    pub(super) async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let found = self.backend.get_all(keys).await?;
        if found.len() != keys.len() {
            return Err(StoreError::new(CasError::ValueCount { keys: keys.len(), values: found.len() }));
        }
        Ok(found)
    }

    /// Writes the states of a key, unless they have changed. Returns whether they were written.
    pub(super) async fn write(
        &self,
        key: &str,
        version: Option<u64>,
        stored: &StoredKey,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let counts_for = Duration::from_micros(stored.expires_at().saturating_sub(at.as_micros()));
        let ttl = counts_for.min(LONGEST_OVERRIDE) + self.ttl_margin;
        self.backend.compare_and_swap(key, version, &stored.to_bytes(), ttl).await
    }
}

impl<B> Clone for Database<B> {
    fn clone(&self) -> Self {
        let Self { backend, locks, prefix, ttl_margin } = self;
        let (backend, locks, prefix) = (backend.clone(), locks.clone(), prefix.clone());
        Self { backend, locks, prefix, ttl_margin: *ttl_margin }
    }
}
