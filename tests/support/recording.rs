//! A store that records the last decision of the store that it wraps.

use std::sync::{Arc, Mutex};

use tower_ratelimit::store::{
    Answer, Cell, KeyHash, KeyHasher, Node, Override, OverrideOperation, Purpose, StoreFuture,
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
}

impl<S: Store + Clone> Store for Recording<S> {
    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, cells: &mut [Cell], purpose: Purpose) -> StoreFuture<Answer> {
        let last = self.last.clone();
        let keep = move |at, cells: &[Cell]| {
            if purpose == Purpose::Take {
                *last.lock().unwrap() = Some(Decision::new(at, cells.iter().cloned()));
            }
        };
        match self.inner.decide(cells, purpose).into_ready() {
            Ok(Ok(answer)) => {
                let at = answer.finish(cells);
                keep(at, cells);
                StoreFuture::ready(Ok(Answer::new(at)))
            }
            Ok(Err(error)) => StoreFuture::ready(Err(error)),
            Err(pending) => {
                let mut cells = cells.to_vec();
                StoreFuture::pending(async move {
                    let at = pending.await?.finish(&mut cells);
                    keep(at, &cells);
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

    fn remembered(&self, cells: &mut [Cell]) -> Option<Timestamp> {
        self.inner.remembered(cells)
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

    fn access_override(&self, cell: &Cell, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        self.inner.access_override(cell, operation)
    }
}
