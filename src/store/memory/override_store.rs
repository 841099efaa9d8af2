//! Implements [`OverrideStore`].

use super::MemoryStore;
use crate::decision::Cell;
use crate::error::StoreError;
use crate::store::StoredOverride;
use crate::store::{Override, OverrideStore, StoreFuture};

impl MemoryStore {
    /// Sets an override, if there is room for it once expired ones are removed.
    fn set_override(&self, cell: &Cell, size: Override) -> Result<(), StoreError> {
        let set = || {
            let mut shard = self.lock(self.shard_of(cell.key()));
            let kept = StoredOverride::new(size, self.clock.now().as_micros());
            shard.overrides.set(cell.fingerprint(), kept, &self.overrides)
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
    fn set(&self, cell: &Cell, size: Override) -> StoreFuture<()> {
        StoreFuture::ready(self.set_override(cell, size))
    }

    fn get(&self, cell: &Cell) -> StoreFuture<Option<Override>> {
        let mut shard = self.lock(self.shard_of(cell.key()));
        let now = self.clock.now().as_micros();
        let kept = shard.overrides.get(cell.fingerprint(), now, &self.overrides);
        StoreFuture::ready(Ok(kept.and_then(|kept| kept.of(cell, now))))
    }

    fn remove(&self, cell: &Cell) -> StoreFuture<()> {
        self.lock(self.shard_of(cell.key())).overrides.remove(cell.fingerprint(), &self.overrides);
        StoreFuture::ready(Ok(()))
    }
}
