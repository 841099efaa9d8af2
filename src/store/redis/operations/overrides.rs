//! Implements the [`OverrideStore`] trait. The cache holds the overrides that Redis has last reported.

use std::sync::Arc;
use std::time::Duration;

use crate::hash::KeyHash;
use crate::store::override_store::lifetime_micros;
use crate::store::redis::charge::override_cache::CachedOverride;
use crate::store::redis::charge::prepared::INVALID_OVERRIDE;
use crate::store::redis::charge::requests;
use crate::store::redis::script::encode_clock;
use crate::store::redis::store::RedisStore;
use crate::store::{LimitSpec, Override, OverrideStore, StoreFuture};

impl OverrideStore for RedisStore {
    fn set(&self, spec: &Arc<LimitSpec>, key: KeyHash, size: Override) -> StoreFuture<()> {
        let Override { algorithm, expires_after } = size;
        let (size, span) = (algorithm.size(), expires_after.map(lifetime_micros));
        let request = requests::set_override(&self.prefix, spec, key, size, span);
        let (store, fingerprint, clock) = (self.clone(), spec.fingerprint(key), self.test_clock().map(encode_clock));
        let invalidation = self.invalidation([(spec, key)], true);
        StoreFuture::pending(async move {
            let (now, _) = store.deployment.ask(clock, request).await?;
            let expires_at = span.map_or(0, |span| now.saturating_add(span));
            store.overrides.set(fingerprint, Some(CachedOverride { expires_at, size }));
            drop(invalidation);
            Ok(())
        })
    }

    fn get(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        let request = requests::get_override(&self.prefix, spec, key, self.local_now());
        let (store, spec, clock) = (self.clone(), spec.clone(), self.test_clock().map(encode_clock));
        StoreFuture::pending(async move {
            let (now, reply) = store.deployment.ask(clock, request).await?;
            let current = requests::parse_get_override(&reply)?;
            store.overrides.set(spec.fingerprint(key), current);
            let Some(CachedOverride { expires_at, size }) = current else { return Ok(None) };
            let algorithm = spec.algorithm().with_size(size).ok_or(INVALID_OVERRIDE)?;
            let expires_after = (expires_at > 0).then(|| Duration::from_micros(expires_at.saturating_sub(now)));
            Ok(Some(Override { algorithm, expires_after }))
        })
    }

    fn remove(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        let request = requests::remove_override(&self.prefix, spec, key);
        let (store, fingerprint, clock) = (self.clone(), spec.fingerprint(key), self.test_clock().map(encode_clock));
        let invalidation = self.invalidation([(spec, key)], true);
        StoreFuture::pending(async move {
            store.deployment.ask(clock, request).await?;
            store.overrides.set(fingerprint, None);
            drop(invalidation);
            Ok(())
        })
    }
}
