//! Refunds and resets keys: one request per slot, all sent at the same time.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::hash::KeyHash;
use crate::store::redis::charge::requests;
use crate::store::redis::script::{Request, encode_clock};
use crate::store::redis::slot;
use crate::store::redis::store::RedisStore;
use crate::store::{LimitSpec, Refund, StoreFuture};

impl RedisStore {
    pub(super) fn refund_all(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        if refunds.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let groups = self.group_by_slot(refunds, |refund| refund.key);
        let requests = groups.iter().map(|refunds| requests::refund(&self.prefix, refunds)).collect();
        self.change(requests, refunds.iter().map(|refund| (refund.spec, refund.key)))
    }

    pub(super) fn reset_all(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        let groups = self.group_by_slot(keys, |(_, key)| *key);
        let requests = groups.iter().map(|keys| requests::reset(&self.prefix, keys)).collect();
        self.change(requests, keys.iter().copied())
    }

    fn change<'a>(
        &self,
        requests: Vec<Request>,
        keys: impl Iterator<Item = (&'a Arc<LimitSpec>, KeyHash)>,
    ) -> StoreFuture<()> {
        let invalidation = self.invalidation(keys, true);
        let deployment = self.deployment.clone();
        let clock = self.test_clock().map(encode_clock);
        StoreFuture::pending(async move {
            let replies = join_all(requests.into_iter().map(|request| deployment.ask(clock, request))).await;
            drop(invalidation);
            Ok(replies.into_iter().try_for_each(|reply| reply.map(drop))?)
        })
    }

    /// Groups items that one request may carry together.
    fn group_by_slot<T: Copy>(&self, items: &[T], key: impl Fn(&T) -> KeyHash) -> Vec<Vec<T>> {
        if !self.deployment.is_cluster() {
            return vec![items.to_vec()];
        }
        let slots = slot::group(items.iter().copied(), key);
        slots.into_iter().map(|(_, slot)| slot.into_iter().map(|(_, item)| item).collect()).collect()
    }
}
