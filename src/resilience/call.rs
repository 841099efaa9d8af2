//! Calls to the store: within the deadline, unless a breaker is open, with their results recorded per node.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::timeout;

use super::breaker::{Call, Changes, Nodes};
use super::client::StoreClient;
use crate::decision::Cell;
use crate::error::StoreError;
use crate::key::hash::KeyHash;
use crate::recorder::DecisionSource;
use crate::store::node::Node;
use crate::store::{LONGEST_WAIT, Store, StoreFuture};

pub(super) type Keys = SmallVec<[KeyHash; 2]>;

/// Returns the keys of cells.
pub(super) fn keys(cells: &[Cell]) -> impl Iterator<Item = KeyHash> {
    cells.iter().map(Cell::key)
}

impl StoreClient {
    /// Calls the store for an operation on `keys` that has no fallback policy, such as a refund.
    pub(crate) fn call<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        keys: Keys,
        operation: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self.begin(keys.iter().copied()) {
            Ok(call) => self.follow(operation(&*self.store), move |client, answer, source| {
                client.end(&call, keys.into_iter(), answer, source)
            }),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Calls the store several times, as one call that concerns the keys of `cells`.
    pub(crate) async fn call_all<T>(
        &self,
        cells: &[Cell],
        calls: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let call = self.begin(keys(cells))?;
        let answer = self.within_deadline(calls).await;
        self.end(&call, keys(cells), answer, DecisionSource::Store)
    }

    /// Begins a call that concerns `keys`.
    ///
    /// # Errors
    ///
    /// Returns an error if the breaker of a node is open.
    pub(super) fn begin(&self, keys: impl Iterator<Item = KeyHash>) -> Result<Call, StoreError> {
        if self.breakers.are_closed() {
            return Ok(self.breakers.begin());
        }
        let (admitted, changes) = self.breakers.admit(&self.nodes(keys), self.deadline);
        self.report_changes(changes);
        admitted.map_err(|node| {
            let error = breaker_open(node);
            self.report_failure(&error);
            error
        })
    }

    /// Passes an answer on: at once if it is ready, otherwise when it is there or the deadline is over.
    pub(super) fn follow<T: Send + 'static, U>(
        self: &Arc<Self>,
        answer: StoreFuture<T>,
        finish: impl FnOnce(&Self, Result<T, StoreError>, DecisionSource) -> Result<U, StoreError> + Send + 'static,
    ) -> StoreFuture<U> {
        match answer.into_pending() {
            Ok(answer) => StoreFuture::ready(finish(self, answer, DecisionSource::Memory)),
            Err(pending) => {
                let client = self.clone();
                StoreFuture::pending(async move {
                    let answer = client.within_deadline(pending).await;
                    finish(&client, answer, DecisionSource::Store)
                })
            }
        }
    }

    async fn within_deadline<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut answer = pin!(answer);
        // Stores read the longest wait when they begin. Setting it for each poll would take 200 instructions more
        // ("Redis' client, 64 at a time" in `.ci/instructions`).
        let mut begin = Some(self.deadline / 2);
        let answer = poll_fn(|context| match begin.take() {
            Some(longest) => LONGEST_WAIT.sync_scope(longest, || answer.as_mut().poll(context)),
            None => answer.as_mut().poll(context),
        });
        timeout(self.deadline, answer).await.unwrap_or_else(|_| Err(StoreError::timed_out(self.deadline)))
    }

    /// Records what an answer about `keys` shows about their nodes, and reports its error. Adds the node to an error
    /// without one if all keys are on the same node.
    pub(super) fn end<T>(
        &self,
        call: &Call,
        keys: impl Iterator<Item = KeyHash>,
        answer: Result<T, StoreError>,
        source: DecisionSource,
    ) -> Result<T, StoreError> {
        let shows_health = match &answer {
            // Other requests were in its way.
            Err(error) if error.is_inconclusive() => false,
            _ if call.is_trial() => true,
            // An answer that is ready at once may come from memory.
            _ if source == DecisionSource::Memory => false,
            answer => answer.is_err() || !self.breakers.are_closed(),
        };
        let (answer, changes) =
            if shows_health { self.record_health(call, keys, answer) } else { (answer, Changes::new()) };
        if let Err(error) = &answer {
            self.report_failure(error);
        }
        self.report_changes(changes);
        answer
    }

    fn record_health<T>(
        &self,
        call: &Call,
        keys: impl Iterator<Item = KeyHash>,
        answer: Result<T, StoreError>,
    ) -> (Result<T, StoreError>, Changes) {
        let mut nodes = self.nodes(keys);
        let error = match answer {
            Err(error) if !error.is_of_one_request() => error,
            answer => return (answer, self.breakers.record(call, &nodes, true)),
        };
        // A store that wraps another may hide the nodes that errors name, and then counts as a single node.
        if let Some(node) = error.node().filter(|_| nodes.iter().any(Option::is_some)) {
            nodes = Nodes::from_elem(Some(node.clone()), 1);
        }
        let changes = self.breakers.record(call, &nodes, false);
        let error = match &nodes[..] {
            [Some(node)] => error.at(node.clone()),
            _ => error,
        };
        (Err(error), changes)
    }

    /// Returns the error of a request that concerns `keys` if a breaker would keep it from the store.
    pub(super) fn rejection(&self, keys: impl Iterator<Item = KeyHash>) -> Option<StoreError> {
        if self.breakers.are_closed() {
            return None;
        }
        self.breakers.rejecting(&self.nodes(keys)).map(breaker_open)
    }

    /// Returns the nodes that keep `keys`.
    fn nodes(&self, keys: impl Iterator<Item = KeyHash>) -> Nodes {
        let mut nodes = Nodes::new();
        for key in keys {
            let node = self.store.node(key);
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        if nodes.is_empty() {
            nodes.push(None);
        }
        nodes
    }
}

fn breaker_open(node: Option<Node>) -> StoreError {
    let error = StoreError::breaker_open();
    if let Some(node) = node { error.at(node) } else { error }
}
