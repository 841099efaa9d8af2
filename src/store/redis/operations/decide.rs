//! Decides requests: from a cached denial, by one slot, or by several.

use std::sync::Arc;

use smallvec::SmallVec;

use super::cross_slot::CrossSlotRequest;
use crate::decision::Decision;
use crate::hash::KeyHash;
use crate::store::redis::charge::outcomes;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::denials::Invalidation;
use crate::store::redis::script::Task;
use crate::store::redis::store::RedisStore;
use crate::store::{Charge, LimitSpec, StoreFuture};

impl RedisStore {
    pub(super) fn run(&self, task: Task, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let clock = self.test_clock();
        if let Some(denial) = self.cached_denial(clock, charges) {
            return StoreFuture::remembered(denial);
        }
        let keys = charges.iter().map(|charge| (charge.spec, charge.key));
        let invalidation = self.invalidation(keys, task == Task::Acquire);
        if self.is_cross_slot(charges) {
            let request = CrossSlotRequest::new(self.clone(), charges, invalidation);
            return StoreFuture::pending(async move { Ok(request.decide(task).await?) });
        }
        let store = self.clone();
        let mut prepared = self.prepare(charges);
        StoreFuture::pending(async move {
            let (now, reply) = store.perform(task, clock, &mut prepared).await?;
            let decision = outcomes::decision(task, now, &prepared, &reply)?;
            if let Some(invalidation) = invalidation {
                invalidation.decided(prepared, reply, &decision);
            }
            Ok(decision)
        })
    }

    /// Decides as Redis would now, from the states that a peek returns, and charges nothing. Like any peek, it converts
    /// states of another rate, and updates the cache of overrides.
    pub(super) fn preview_now(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let clock = self.test_clock();
        if let Some(denial) = self.cached_denial(clock, charges) {
            return StoreFuture::remembered(denial);
        }
        if self.is_cross_slot(charges) {
            // Each slot peeks at an instant of its own, and knows nothing of the others.
            let request = CrossSlotRequest::new(self.clone(), charges, None);
            return StoreFuture::pending(async move { Ok(request.decide(Task::Peek).await?) });
        }
        let store = self.clone();
        let mut prepared = self.prepare(charges);
        StoreFuture::pending(async move {
            let (now, reply) = store.perform(Task::Peek, clock, &mut prepared).await?;
            Ok(outcomes::preview(now, &prepared, &reply)?)
        })
    }

    /// Returns the decision on a request that Redis is certain to deny.
    pub(super) fn cached_denial(&self, clock: Option<u64>, charges: &[Charge<'_>]) -> Option<Decision> {
        let denials = self.denials.as_ref()?;
        if !charges.iter().any(|charge| charge.spec.is_overridable()) {
            return denials.deny(charges, clock, u64::MAX);
        }
        let prepared = self.prepare(charges);
        let charges: SmallVec<[Charge<'_>; 4]> = prepared.iter().map(PreparedCharge::charge).collect();
        let expiry = prepared.iter().filter_map(PreparedCharge::override_expiry).min();
        denials.deny(&charges, clock, expiry.unwrap_or(u64::MAX))
    }

    /// Begins a request that concerns `keys` and may change their state.
    pub(super) fn invalidation<'a>(
        &self,
        keys: impl Iterator<Item = (&'a Arc<LimitSpec>, KeyHash)>,
        changes: bool,
    ) -> Option<Invalidation> {
        let denials = self.denials.as_ref()?;
        Some(Invalidation::new(denials, keys.map(|(spec, key)| spec.fingerprint(key)), changes))
    }

    /// Returns whether the charges may be in different slots of a Cluster: those of several subjects.
    fn is_cross_slot(&self, charges: &[Charge<'_>]) -> bool {
        let mut keys = charges.iter().map(|charge| charge.key);
        self.deployment.is_cluster() && keys.next().is_some_and(|first| keys.any(|key| key != first))
    }
}
