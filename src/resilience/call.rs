//! Calls to the store: within the deadline, unless a breaker is open, with their results recorded per node. Refunds and
//! resets are such calls.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use super::GuardedStore;
use super::breaker::{Call, Changes, Nodes};
use crate::decision::{Cell, Cells, DecidedBy, Decision, Receipt};
use crate::error::{Node, StoreError};
use crate::key::hash::KeyHash;
use crate::recorder::DecisionSource;
use crate::store::{LONGEST_WAIT, Store, StoreFuture};

type Keys = SmallVec<[KeyHash; 2]>;

/// Returns the keys of cells.
pub(super) fn keys(cells: &[Cell]) -> impl Iterator<Item = KeyHash> {
    cells.iter().map(Cell::key)
}

impl GuardedStore {
    /// Calls the store for an operation on `keys` that has no fallback policy, such as a refund.
    pub(crate) fn call<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        keys: Keys,
        operation: impl FnOnce(&dyn Store) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self.begin(keys.iter().copied()) {
            Ok(call) => self.follow(operation(&*self.store), move |guarded, answer, source| {
                guarded.end(&call, keys.into_iter(), answer, source)
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
                let guarded = self.clone();
                StoreFuture::pending(async move {
                    let answer = guarded.within_deadline(pending).await;
                    finish(&guarded, answer, DecisionSource::Store)
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

impl GuardedStore {
    /// Refunds the charges of a receipt, as far as they still count. Leaves out limits that no longer exist.
    pub(crate) fn refund(self: &Arc<Self>, receipt: Receipt) -> StoreFuture<()> {
        match self.refund_locally(receipt) {
            Some(charged) => self.call(keys(&charged).collect(), |store| store.refund(&charged)),
            None => StoreFuture::ready(Ok(())),
        }
    }

    /// Refunds the charges of a receipt where they were made, without a breaker.
    pub(crate) async fn refund_by(&self, receipt: Receipt) -> Result<(), StoreError> {
        match self.refund_locally(receipt) {
            Some(charged) => self.store.refund(&charged).await,
            None => Ok(()),
        }
    }

    /// Refunds the charges that were made in the local store. Returns those that the store took.
    fn refund_locally(&self, Receipt { by, mut charged }: Receipt) -> Option<Cells> {
        self.limits.fit_refund(&mut charged);
        if by == DecidedBy::Store && !charged.is_empty() {
            return Some(charged);
        }
        self.local.refund(&charged);
        None
    }

    /// Refunds without waiting for the store, for callers that are not async. Outside a Tokio runtime, a refund that
    /// the store does not complete at once is lost: the charge expires as usual.
    pub(crate) fn refund_in_background(self: &Arc<Self>, receipt: Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt).into_ready(), Handle::try_current()) {
            runtime.spawn(pending);
        }
    }

    /// Resets a key under every limit.
    pub(crate) fn reset(self: &Arc<Self>, key: KeyHash) -> StoreFuture<()> {
        self.reset_cells(&self.limits.cells_of(key, 0))
    }

    /// Resets the keys of cells.
    pub(crate) fn reset_cells(self: &Arc<Self>, cells: &Cells) -> StoreFuture<()> {
        self.local.reset(cells);
        self.call(keys(cells).collect(), |store| store.reset(cells))
    }
}

/// An allowed request that is delayed. Dropping it before its turn refunds its charges.
#[must_use = "dropping a reservation refunds it"]
pub(crate) struct ReservationGuard {
    store: Arc<GuardedStore>,
    /// `None` once its turn has come.
    decision: Option<Decision>,
    turn: Pin<Box<Sleep>>,
}

impl ReservationGuard {
    /// Starts the delay of an allowed request.
    pub(crate) fn new(store: &Arc<GuardedStore>, decision: Decision, delay: Duration) -> Self {
        Self { store: store.clone(), decision: Some(decision), turn: Box::pin(sleep(delay)) }
    }

    /// Waits for the request's turn.
    pub(crate) async fn wait(mut self) -> Decision {
        self.turn.as_mut().await;
        self.decision.take().expect("`wait` consumes the guard")
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.store.refund_in_background(decision.into_receipt());
        }
    }
}

fn breaker_open(node: Option<Node>) -> StoreError {
    let error = StoreError::breaker_open();
    if let Some(node) = node { error.at(node) } else { error }
}
