//! Overrides of limits for single keys.

use std::sync::Arc;
use std::time::Duration;

use super::backend::CompareAndSwap;
use super::error::undecodable;
use super::retry::Retries;
use super::store::CasStore;
use super::stored_override::StoredOverride;
use crate::hash::KeyHash;
use crate::store::override_store::{LONGEST_OVERRIDE, lifetime_micros};
use crate::store::{LimitSpec, Override, OverrideStore, StoreFuture};

impl<B: CompareAndSwap> OverrideStore for CasStore<B> {
    fn set(&self, spec: &Arc<LimitSpec>, key: KeyHash, size: Override) -> StoreFuture<()> {
        let Override { algorithm, expires_after } = size;
        let (database, name, size) = (self.database.clone(), self.database.override_key(spec, key), algorithm.size());
        let change = database.change(spec, key);
        StoreFuture::pending(async move {
            let _change = change;
            let now = database.now().await?.as_micros();
            let expires_at = expires_after.map_or(0, |after| now.saturating_add(lifetime_micros(after)));
            let value = StoredOverride { size, expires_at }.to_bytes();
            let ttl = expires_after.unwrap_or(LONGEST_OVERRIDE).min(LONGEST_OVERRIDE) + database.ttl_margin;
            let mut retries = Retries::new();
            loop {
                retries.next_attempt().await?;
                let version = database.backend.get(&name).await?.map(|found| found.version);
                if database.backend.compare_and_swap(&name, version, &value, ttl).await? {
                    return Ok(());
                }
            }
        })
    }

    fn get(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        let (database, name, spec) = (self.database.clone(), self.database.override_key(spec, key), spec.clone());
        StoreFuture::pending(async move {
            let Some(found) = database.backend.get(&name).await? else { return Ok(None) };
            let stored = StoredOverride::from_bytes(&found.value).map_err(|error| undecodable(&name, error))?;
            let now = database.now().await?.as_micros();
            if !stored.is_valid_at(now) {
                return Ok(None);
            }
            let expires_after = (stored.expires_at > 0).then(|| Duration::from_micros(stored.expires_at - now));
            Ok(spec.algorithm().with_size(stored.size).map(|algorithm| Override { algorithm, expires_after }))
        })
    }

    fn remove(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        let (database, name) = (self.database.clone(), self.database.override_key(spec, key));
        let change = database.change(spec, key);
        StoreFuture::pending(async move {
            let _change = change;
            database.backend.delete(&name).await
        })
    }
}
