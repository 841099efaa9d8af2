//! Setting, reading and removing overrides. What is believed of one then is what decides, too, whether a denial
//! that is remembered would be one by the new size.

use std::sync::Arc;
use std::time::Duration;

use super::beliefs::Belief;
use super::error::Fault;
use super::{RedisStore, ask, script};
use crate::algorithm::Algorithm;
use crate::hash::KeyHash;
use crate::store::override_store::lifetime_micros;
use crate::store::{LimitSpec, Override, OverrideStore, StoreFuture};
use crate::time::{Clock, SystemClock, micros};

impl OverrideStore for RedisStore {
    fn set(
        &self,
        spec: &Arc<LimitSpec>,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> StoreFuture<()> {
        let (size, span) = (algorithm.size(), expires_after.map(lifetime_micros));
        let request = ask::keep(&self.prefix, spec, key, size, span);
        let (store, fingerprint, clock) = (self.clone(), spec.fingerprint(key), self.now().map(script::encode_clock));
        StoreFuture::pending(async move {
            let (now, _) = store.deployment.ask(clock, request).await?;
            let until = span.map_or(0, |span| now.saturating_add(span));
            store.beliefs.learn(fingerprint, Some(Belief { until, size }));
            Ok(())
        })
    }

    fn get(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        let request = ask::look(&self.prefix, spec, key, self.present(self.now()));
        let (store, spec, clock) = (self.clone(), spec.clone(), self.now().map(script::encode_clock));
        StoreFuture::pending(async move {
            let (now, found) = store.deployment.ask(clock, request).await?;
            let is = ask::seen(&found)?;
            store.beliefs.learn(spec.fingerprint(key), is);
            let Some(Belief { until, size }) = is else { return Ok(None) };
            let algorithm = spec.algorithm().sized(size).ok_or(Fault::Reply("an override that can't be"))?;
            let expires_after = (until > 0).then(|| micros(until.saturating_sub(now).into()));
            Ok(Some(Override { algorithm, expires_after }))
        })
    }

    fn remove(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        let request = ask::removal(&self.prefix, spec, key);
        let (store, fingerprint, clock) = (self.clone(), spec.fingerprint(key), self.now().map(script::encode_clock));
        StoreFuture::pending(async move {
            store.deployment.ask(clock, request).await?;
            store.beliefs.learn(fingerprint, None);
            Ok(())
        })
    }

    /// What an override was when Redis was last asked about its key, unless it has expired since: by this
    /// machine's clock, as Redis' is not at hand.
    fn last_known(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> Option<Algorithm> {
        let belief = self.beliefs.of(spec.fingerprint(key))?;
        let now = self.now().unwrap_or_else(|| SystemClock::new().now().as_micros());
        belief.holds(now).then(|| spec.algorithm().sized(belief.size))?
    }
}
