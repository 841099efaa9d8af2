//! Implements the [`Store`] trait.

use std::sync::Arc;

use crate::decision::Decision;
use crate::hash::{KeyHash, KeyHasher};
use crate::store::redis::script::Task;
use crate::store::redis::store::RedisStore;
use crate::store::{Charge, LimitSpec, Node, OverrideStore, Refund, Store, StoreFuture, StoreUsage};

impl Store for RedisStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(Task::Acquire, charges)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(Task::Peek, charges)
    }

    fn preview(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.preview_now(charges)
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        self.denials.deny(charges, self.test_clock())
    }

    fn name(&self) -> Option<String> {
        Some(self.name.to_string())
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        self.deployment.node(key)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        self.refund_all(refunds)
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.reset_all(keys)
    }

    fn usage(&self) -> StoreUsage {
        StoreUsage::default().queued(self.deployment.queued() as u64)
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        Some(self)
    }
}
