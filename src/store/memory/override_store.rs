//! Implements [`OverrideStore`].

use std::sync::Arc;
use std::time::Duration;

use super::MemoryStore;
use super::overrides::StoredOverride;
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;
use crate::store::override_store::lifetime_micros;
use crate::store::{Override, OverrideStore, StoreFuture};

impl MemoryStore {
    /// Sets an override, if there is room for it once expired ones are removed.
    fn set_override(&self, spec: &LimitSpec, key: KeyHash, size: Override) -> Result<(), StoreError> {
        let Override { algorithm, expires_after } = size;
        let set = || {
            let mut shard = self.lock(self.shard_of(key));
            let now = self.clock.now().as_micros();
            let expires_at = expires_after.map(|after| now + lifetime_micros(after));
            let kept = StoredOverride { size: algorithm.size(), expires_at };
            shard.overrides.set(spec.fingerprint(key), kept, &self.overrides)
        };
        if set() {
            return Ok(());
        }
        let now = self.clock.now().as_micros();
        (0..self.shards.len()).for_each(|shard| self.lock(shard).overrides.remove_expired(now, &self.overrides));
        if set() { Ok(()) } else { Err(StoreError::full(self.overrides.max)) }
    }
}

impl OverrideStore for MemoryStore {
    fn set(&self, spec: &Arc<LimitSpec>, key: KeyHash, size: Override) -> StoreFuture<()> {
        StoreFuture::ready(self.set_override(spec, key, size))
    }

    fn get(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        let mut shard = self.lock(self.shard_of(key));
        let now = self.clock.now().as_micros();
        let kept = shard.overrides.get(spec.fingerprint(key), now, &self.overrides);
        let found = kept.and_then(|StoredOverride { size, expires_at }| {
            let expires_after = expires_at.map(|expires_at| Duration::from_micros(expires_at - now));
            Some(Override { algorithm: spec.algorithm().with_size(size)?, expires_after })
        });
        StoreFuture::ready(Ok(found))
    }

    fn remove(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        self.lock(self.shard_of(key)).overrides.remove(spec.fingerprint(key), &self.overrides);
        StoreFuture::ready(Ok(()))
    }
}
