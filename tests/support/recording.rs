//! A store that records the last decision of the store that it wraps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::store::{
    Answer, Cell, KeyHash, KeyHasher, Node, Override, OverrideOperation, Purpose, StoreFuture, StoreUsage,
};
use tower_ratelimit::{Decision, Store, Timestamp};

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

    fn keep(&self, at: Timestamp, cells: &[Cell], purpose: Purpose) {
        if purpose == Purpose::Take {
            *self.last.lock().unwrap() = Some(Decision::new(at, cells.iter().cloned()));
        }
    }
}

impl<S: Store + Clone> Store for Recording<S> {
    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, cells: &mut [Cell], purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let recording = self.clone();
        match self.inner.decide(cells, purpose, longest_wait).into_ready() {
            Ok(Ok(answer)) => {
                let at = answer.finish(cells);
                self.keep(at, cells, purpose);
                StoreFuture::ready(Ok(Answer::new(at)))
            }
            Ok(Err(error)) => StoreFuture::ready(Err(error)),
            Err(pending) => {
                let mut cells = cells.to_vec();
                StoreFuture::pending(async move {
                    let at = pending.await?.finish(&mut cells);
                    recording.keep(at, &cells, purpose);
                    Ok(Answer::with_cells(at, cells))
                })
            }
        }
    }

    fn refund(&self, cells: &[Cell]) -> StoreFuture<()> {
        self.inner.refund(cells)
    }

    fn reset(&self, cells: &[Cell]) -> StoreFuture<()> {
        self.inner.reset(cells)
    }

    fn decide_at_once(&self, cells: &mut [Cell], purpose: Purpose) -> Option<Timestamp> {
        let at = self.inner.decide_at_once(cells, purpose)?;
        self.keep(at, cells, purpose);
        Some(at)
    }

    fn has_readable_keys(&self) -> bool {
        self.inner.has_readable_keys()
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        self.inner.node(key)
    }

    fn name(&self) -> Option<String> {
        self.inner.name()
    }

    fn usage(&self) -> StoreUsage {
        self.inner.usage()
    }

    fn access_override(&self, cell: &Cell, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        self.inner.access_override(cell, operation)
    }
}
