//! Calls to the store: within the deadline, unless a breaker is open, with their results recorded per node. Refunds and
//! resets are such calls.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::GuardedStore;
use super::breaker::{Call, Changes, Nodes};
use crate::decision::{Cell, Cells, DecidedBy, Decision, Receipt};
use crate::error::StoreError;
use crate::recorder::DecisionSource;
use crate::store::{LONGEST_WAIT, Store, StoreFuture};

tokio::task_local! {
    /// When the deadline of the current calls began, if it did not begin with each.
    static DEADLINE_BEGAN: Instant;
}

/// Runs calls about one request, which have one deadline together.
pub(crate) async fn with_one_deadline<T>(calls: impl Future<Output = T>) -> T {
    DEADLINE_BEGAN.scope(Instant::now(), calls).await
}

impl GuardedStore {
    /// Calls the store for an operation that has no fallback policy, such as a refund.
    pub(crate) fn call<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        cells: Cells,
        operation: impl FnOnce(&dyn Store, &[Cell]) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self.begin(&cells) {
            Ok(call) => self.follow(operation(&*self.store, &cells), move |guarded, answer, source| {
                guarded.end(&call, &cells, answer, source)
            }),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Begins a call that concerns `cells`.
    ///
    /// # Errors
    ///
    /// Returns an error if the breaker of a node is open.
    pub(super) fn begin(&self, cells: &[Cell]) -> Result<Call, StoreError> {
        if self.breakers.are_closed() {
            return Ok(self.breakers.begin());
        }
        let (admitted, changes) = self.breakers.admit(&self.nodes(cells), self.config.deadline);
        self.report_changes(changes);
        admitted.inspect_err(|error| self.report_failure(error))
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
        let spent = DEADLINE_BEGAN.try_with(Instant::elapsed).unwrap_or_default();
        let deadline = self.config.deadline.saturating_sub(spent);
        // Stores read the longest wait when they begin. Setting it for each poll would take 200 instructions more
        // ("Redis' client, 64 at a time" in `.ci/instructions`).
        let mut begin = Some(deadline / 2);
        let answer = poll_fn(|context| match begin.take() {
            Some(longest) => LONGEST_WAIT.sync_scope(longest, || answer.as_mut().poll(context)),
            None => answer.as_mut().poll(context),
        });
        timeout(deadline, answer).await.unwrap_or_else(|_| Err(StoreError::timed_out(self.config.deadline)))
    }

    /// Records what an answer about `cells` shows about their nodes, and reports its error. Adds the node to an error
    /// without one if all keys are on the same node.
    pub(super) fn end<T>(
        &self,
        call: &Call,
        cells: &[Cell],
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
        let (answer, changes) = match answer {
            answer if !shows_health => (answer, Changes::new()),
            Err(error) if !error.is_of_one_request() => {
                let mut nodes = self.nodes(cells);
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
            answer => (answer, self.breakers.record(call, &self.nodes(cells), true)),
        };
        if let Err(error) = &answer {
            self.report_failure(error);
        }
        self.report_changes(changes);
        answer
    }

    /// Returns the nodes that keep the keys of `cells`.
    pub(super) fn nodes(&self, cells: &[Cell]) -> Nodes {
        let mut nodes = Nodes::new();
        for cell in cells {
            let node = self.store.node(cell.key());
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }
}

impl GuardedStore {
    /// Refunds the charges of a receipt where they were made, as far as they still count. Leaves out limits that no
    /// longer exist.
    pub(crate) fn refund(self: &Arc<Self>, Receipt { by, mut charged }: Receipt) -> StoreFuture<()> {
        self.limits.fit_refund(&mut charged);
        if by == DecidedBy::Store && !charged.is_empty() {
            return self.call(charged, |store, charged| store.refund(charged));
        }
        self.local.refund(&charged);
        StoreFuture::ready(Ok(()))
    }

    /// Refunds without waiting for the store, for callers that are not async. Outside a Tokio runtime, a refund that
    /// the store does not complete at once is lost: the charge expires as usual.
    pub(crate) fn refund_in_background(self: &Arc<Self>, receipt: Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt).into_ready(), Handle::try_current()) {
            runtime.spawn(pending);
        }
    }

    /// Resets the keys of cells.
    pub(crate) fn reset(self: &Arc<Self>, cells: Cells) -> StoreFuture<()> {
        self.local.reset(&cells);
        self.call(cells, |store, cells| store.reset(cells))
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
