//! Refunds receipts and resets keys, in the store that took the charges.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::client::StoreClient;
use crate::decision::{DecidedBy, Outcome, Receipt};
use crate::hash::KeyHash;
use crate::limit_spec;
use crate::store::{LimitSpec, Refund, Store, StoreFuture};

impl StoreClient {
    /// Returns the store that took the charges of a decision.
    pub(crate) fn charged_store(&self, by: DecidedBy) -> &dyn Store {
        match by {
            DecidedBy::Store => &*self.store,
            DecidedBy::Local | DecidedBy::Nobody => &self.local,
        }
    }

    /// Returns the refunds of a receipt for its [`charged_store`](Self::charged_store). Leaves out limits that no longer
    /// exist.
    pub(crate) fn refunds<'a>(&'a self, receipt: &'a Receipt) -> SmallVec<[Refund<'a>; 4]> {
        let refund = |charged: &Outcome| {
            let spec = self.charged_spec(receipt, charged)?;
            let identity = match receipt.by {
                DecidedBy::Store => spec.identity(),
                DecidedBy::Local | DecidedBy::Nobody => self.local.share(spec)?.identity(),
            };
            let refund = Refund { spec, key: charged.key, cost: charged.cost, mark: charged.mark };
            (identity == charged.identity).then_some(refund)
        };
        receipt.charged().iter().filter_map(refund).collect()
    }

    /// Returns the limit that was charged. Its position may have changed since if the limits can be replaced.
    fn charged_spec<'a>(&'a self, receipt: &'a Receipt, charged: &Outcome) -> Option<&'a Arc<LimitSpec>> {
        let overridden = limit_spec::find(charged.limit(), receipt.resized());
        overridden.or_else(|| match receipt.by {
            _ if !self.is_replaceable => self.limits.spec(charged.limit()),
            DecidedBy::Store => self.limits.find_by_identity(charged.identity),
            DecidedBy::Local | DecidedBy::Nobody => {
                let is_charged = |spec: &&Arc<LimitSpec>| {
                    self.local.share(spec).is_some_and(|share| share.identity() == charged.identity)
                };
                self.limits.all_specs().iter().find(is_charged)
            }
        })
    }

    /// Refunds the charges of a receipt, as far as they still count.
    pub(crate) fn refund(self: &Arc<Self>, receipt: &Receipt) -> StoreFuture<()> {
        let refunds = self.refunds(receipt);
        if refunds.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        if receipt.by != DecidedBy::Store {
            return self.local.refund(&refunds);
        }
        let keys = refunds.iter().map(|refund| refund.key).collect();
        self.call(keys, |store| store.refund(&refunds))
    }

    /// Refunds without waiting for the store, for callers that are not async. Outside a Tokio runtime, a refund that the
    /// store does not complete at once is lost: the charge expires as usual.
    pub(crate) fn refund_in_background(self: &Arc<Self>, receipt: &Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt).into_ready(), Handle::try_current()) {
            runtime.spawn(pending);
        }
    }

    /// Resets a key under every limit.
    pub(crate) fn reset(self: &Arc<Self>, key: KeyHash) -> StoreFuture<()> {
        let keys: SmallVec<[_; 4]> = self.limits.all_specs().iter().map(|spec| (spec, key)).collect();
        self.reset_keys(&keys)
    }

    /// Resets keys, each under its limit.
    pub(crate) fn reset_keys(self: &Arc<Self>, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        drop(self.local.reset(keys));
        self.call(keys.iter().map(|(_, key)| *key).collect(), |store| store.reset(keys))
    }
}
