//! A store that records the last decision of the store that it wraps.

use std::sync::{Arc, Mutex};

use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Node, OverrideStore, Refund, StoreFuture};
use tower_ratelimit::{Decision, Store};

#[derive(Clone, Debug)]
pub struct Recording<S> {
    inner: S,
    last: Arc<Mutex<Option<Decision>>>,
}

impl<S: Store> Recording<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, last: Arc::default() }
    }

    /// Takes the last decision, if it has not been taken yet.
    pub fn take(&self) -> Option<Decision> {
        self.last.lock().unwrap().take()
    }
}

impl<S: Store + Clone> Store for Recording<S> {
    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let last = self.last.clone();
        match self.inner.decide(charges).into_ready() {
            Ok(result) => {
                *last.lock().unwrap() = result.as_ref().ok().cloned();
                StoreFuture::ready(result)
            }
            Err(pending) => StoreFuture::pending(async move {
                let result = pending.await;
                *last.lock().unwrap() = result.as_ref().ok().cloned();
                result
            }),
        }
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.inner.peek(charges)
    }

    fn preview(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.inner.preview(charges)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        self.inner.refund(refunds)
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.inner.reset(keys)
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        self.inner.remembered(charges)
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        self.inner.node(key)
    }

    fn name(&self) -> Option<String> {
        self.inner.name()
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        self.inner.overrides()
    }
}
