//! Decides requests: from a cached denial, by one slot, or by several.

use std::sync::Arc;

use super::cross_slot::CrossSlotRequest;
use crate::decision::Decision;
use crate::hash::KeyHash;
use crate::store::denials::Invalidation;
use crate::store::redis::charge::outcomes;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::charge::states::states;
use crate::store::redis::script::Task;
use crate::store::redis::store::RedisStore;
use crate::store::{Charge, LimitSpec, StoreFuture};

impl RedisStore {
    pub(super) fn run(&self, task: Task, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let clock = self.test_clock();
        if let Some(denial) = self.denials.deny(charges, clock) {
            return StoreFuture::remembered(denial);
        }
        let keys = charges.iter().map(|charge| (charge.spec, charge.key));
        let invalidation = self.invalidation(keys, task == Task::Acquire);
        if self.is_cross_slot(charges) {
            let request = CrossSlotRequest::new(self.clone(), charges, Some(invalidation));
            return StoreFuture::pending(async move { Ok(request.decide(task).await?) });
        }
        let store = self.clone();
        let mut prepared = self.prepare(charges);
        StoreFuture::pending(async move {
            let (now, reply) = store.perform(task, clock, &mut prepared).await?;
            let decision = outcomes::decision(task, now, &prepared, &reply)?;
            if !decision.is_allowed() {
                let charges: Vec<_> = prepared.iter().map(PreparedCharge::without_override).collect();
                let until = prepared.iter().filter_map(PreparedCharge::override_expiry).min().unwrap_or(u64::MAX);
                invalidation.decided(&charges, &decision, states(&prepared, &reply), until);
            }
            Ok(decision)
        })
    }

    /// Decides as Redis would now, from the states that a peek returns, and charges nothing. Like any peek, it updates
    /// the cache of overrides.
    pub(super) fn preview_now(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let clock = self.test_clock();
        if let Some(denial) = self.denials.deny(charges, clock) {
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

    /// Begins a request that concerns `keys` and may change their state.
    pub(super) fn invalidation<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a Arc<LimitSpec>, KeyHash)>,
        changes: bool,
    ) -> Invalidation {
        Invalidation::new(&self.denials, keys, changes)
    }

    /// Returns whether the charges may be in different slots of a Cluster: those of several subjects.
    fn is_cross_slot(&self, charges: &[Charge<'_>]) -> bool {
        let mut keys = charges.iter().map(|charge| charge.key);
        self.deployment.is_cluster() && keys.next().is_some_and(|first| keys.any(|key| key != first))
    }
}
