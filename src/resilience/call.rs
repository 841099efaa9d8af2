//! Calls to the store: within the deadline, unless a breaker is open, with their results recorded per node.
//!
//! A request is decided by such a call, or by the fallback policies if it fails. Refunds and resets are calls without a
//! fallback.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::{self, sleep_until, timeout};

use super::GuardedStore;
use super::breaker::{Call, Changes, Nodes};
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Receipt};
use crate::error::StoreError;
use crate::recorder::Event;
use crate::store::{Answer, Purpose, Store, StoreFuture};
use crate::time::Timestamp;

impl GuardedStore {
    /// Calls the store for an operation that has no fallback policy, such as a refund.
    pub(crate) fn call<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        charges: Charges,
        deadline: Deadline,
        operation: impl FnOnce(&dyn Store, &Charges) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        match self.begin(&charges) {
            Ok(call) => self.follow(operation(&*self.store, &charges), deadline, move |guarded, answer, by| {
                guarded.end(&call, &charges, answer, by)
            }),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Begins a call that concerns `charges`.
    ///
    /// # Errors
    ///
    /// Returns an error if the breaker of a node is open.
    pub(super) fn begin(&self, charges: &[Outcome]) -> Result<Call, StoreError> {
        if self.breakers.are_closed() {
            return Ok(self.breakers.begin());
        }
        let (admitted, changes) = self.breakers.admit(&self.nodes(charges), self.config.deadline);
        self.report_changes(changes);
        admitted.inspect_err(|error| self.report_failure(error))
    }

    /// Passes an answer on: at once if it is ready, otherwise when it is there or the deadline is over.
    pub(super) fn follow<T: Send + Unpin + 'static, U>(
        self: &Arc<Self>,
        answer: StoreFuture<T>,
        deadline: Deadline,
        finish: impl FnOnce(&Self, Result<T, StoreError>, DecidedBy) -> Result<U, StoreError> + Send + 'static,
    ) -> StoreFuture<U> {
        match answer.into_ready() {
            Ok(answer) => StoreFuture::ready(finish(self, answer, DecidedBy::Memory)),
            Err(pending) => {
                let guarded = self.clone();
                StoreFuture::pending(async move {
                    let answer = match StoreError::check_runtime() {
                        Ok(()) => deadline.apply(pending).await,
                        Err(error) => Err(error),
                    };
                    finish(&guarded, answer, DecidedBy::Store)
                })
            }
        }
    }

    /// Begins the deadline of one or several calls about a request.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline { began: time::Instant::now(), span: self.config.deadline }
    }

    /// Records what an answer about `charges` shows about their nodes, and reports its error. Adds the node to an error
    /// without one if all keys are on the same node.
    pub(super) fn end<T>(
        &self,
        call: &Call,
        charges: &[Outcome],
        answer: Result<T, StoreError>,
        by: DecidedBy,
    ) -> Result<T, StoreError> {
        let shows_health = match &answer {
            // Other requests were in its way.
            Err(error) if error.is_inconclusive() => false,
            _ if call.is_trial() => true,
            // An answer that is ready at once may come from memory.
            _ if by == DecidedBy::Memory => false,
            answer => answer.is_err() || !self.breakers.are_closed(),
        };
        let (answer, changes) = match answer {
            answer if !shows_health => (answer, Changes::new()),
            Err(error) if !error.is_of_one_request() => {
                let mut nodes = self.nodes(charges);
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
            answer => (answer, self.breakers.record(call, &self.nodes(charges), true)),
        };
        if let Err(error) = &answer {
            self.report_failure(error);
        }
        self.report_changes(changes);
        answer
    }

    /// Returns the nodes that keep the keys of `charges`.
    pub(super) fn nodes(&self, charges: &[Outcome]) -> Nodes {
        let mut nodes = Nodes::new();
        for outcome in charges {
            let node = self.store.node(outcome.key());
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
    pub(crate) fn refund(self: &Arc<Self>, receipt: Receipt, deadline: Deadline) -> StoreFuture<()> {
        let Receipt { by, mut charged } = receipt;
        self.limits.fit_refund(&mut charged);
        if by.is_store() && !charged.is_empty() {
            return self.call(charged, deadline, |store, charged| store.refund(charged));
        }
        self.refund_locally(&charged);
        StoreFuture::ready(Ok(()))
    }

    /// Refunds without waiting for the store, for callers that are not async. Outside a Tokio runtime, a refund that
    /// the store does not complete at once is lost: the charge expires as usual.
    pub(crate) fn refund_in_background(self: &Arc<Self>, receipt: Receipt) {
        if let (Err(pending), Ok(runtime)) = (self.refund(receipt, self.deadline()).into_ready(), Handle::try_current())
        {
            runtime.spawn(pending);
        }
    }

    /// Resets the keys of charges.
    pub(crate) fn reset(self: &Arc<Self>, charges: Charges) -> StoreFuture<()> {
        self.reset_locally(&charges);
        self.call(charges, self.deadline(), |store, charges| store.reset(charges))
    }
}

/// An allowed request that is delayed. Dropping it before its turn refunds its charges.
#[must_use = "dropping a reservation refunds it"]
pub(crate) struct ReservationGuard {
    store: Arc<GuardedStore>,
    /// `None` once its turn has come.
    decision: Option<Decision>,
    turn: time::Instant,
}

impl ReservationGuard {
    /// Starts the delay of an allowed request.
    pub(crate) fn new(store: &Arc<GuardedStore>, decision: Decision, delay: Duration) -> Self {
        Self { store: store.clone(), decision: Some(decision), turn: time::Instant::now() + delay }
    }

    /// Waits for the request's turn.
    ///
    /// # Errors
    ///
    /// Returns an error outside a Tokio runtime.
    pub(crate) async fn wait(mut self) -> Result<Decision, StoreError> {
        StoreError::check_runtime()?;
        sleep_until(self.turn).await;
        Ok(self.decision.take().expect("`wait` consumes the guard"))
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.store.refund_in_background(decision.into_receipt());
        }
    }
}

impl GuardedStore {
    /// Decides a request. [Takes](Purpose::Take) its costs from all its limits or from none.
    #[inline(always)]
    pub(crate) fn decide(self: &Arc<Self>, charges: Charges, purpose: Purpose) -> StoreFuture<Decision> {
        self.decide_until(charges, purpose, || self.deadline())
    }

    /// Decides a request within a deadline, which is read only if the store has to be called.
    #[inline(always)]
    fn decide_until(
        self: &Arc<Self>,
        mut charges: Charges,
        purpose: Purpose,
        deadline: impl FnOnce() -> Deadline,
    ) -> StoreFuture<Decision> {
        if charges.is_empty() {
            return StoreFuture::ready(Ok(Decision::unlimited()));
        }
        let began = self.start_recording(purpose);
        let Some(at) = self.store.decide_at_once(&mut charges, purpose) else {
            return self.decide_in_store(charges, purpose, began, deadline());
        };
        if !charges.iter().all(Outcome::is_answered) {
            let unanswered = StoreFuture::ready(Err(self.unanswered(&charges)));
            return self.complete(self.breakers.begin(), unanswered, charges, purpose, began, deadline());
        }
        charges.merge_penalties();
        let takes = purpose == Purpose::Take;
        // Only a decision that is recorded is moved once more, which takes 29 instructions ("token bucket" in
        // `.ci/instructions`).
        if began.is_none() {
            return StoreFuture::ready(Ok(Decision::of(at, self.by_at_once, takes, charges)));
        }
        let decision = Decision::of(at, self.by_at_once, takes, charges);
        self.record(began, &decision);
        StoreFuture::ready(Ok(decision))
    }

    /// Copies the answers into the charges of a request, and returns the instant of the decision.
    ///
    /// # Errors
    ///
    /// Returns an error if a charge is not answered.
    #[inline]
    fn finish(&self, answer: Answer, charges: &mut Charges) -> Result<Timestamp, StoreError> {
        let at = answer.finish(charges);
        if charges.iter().all(Outcome::is_answered) { Ok(at) } else { Err(self.unanswered(charges)) }
    }

    /// Creates the error of a store that has not answered all charges.
    #[cold]
    fn unanswered(&self, charges: &[Outcome]) -> StoreError {
        let unanswered = charges.iter().filter(|outcome| !outcome.is_answered());
        let names: Vec<_> = unanswered.filter_map(|outcome| self.limits.names.get(outcome.limit())).collect();
        StoreError::of_one_request(format!(
            "it did not answer the limits {names:?}: answer all charges that `decide` or `decide_at_once` is given, or \
             return answered clones of all of them, in their order, with `Answer::with_charges`"
        ))
    }

    /// Decides a request by a call, unless a breaker is open.
    #[cold]
    fn decide_in_store(
        self: &Arc<Self>,
        mut charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        match self.begin(&charges) {
            Ok(call) => {
                let answer = self.store.decide(&mut charges, purpose, deadline.left() / 2);
                self.complete(call, answer, charges, purpose, began, deadline)
            }
            Err(error) => StoreFuture::ready(self.decide_locally(Some(error), charges, purpose, began)),
        }
    }

    /// Awaits the answer of a call, replaces an error by the policies' decision, and records the decision.
    #[cold]
    fn complete(
        self: &Arc<Self>,
        call: Call,
        answer: StoreFuture<Answer>,
        mut charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        self.follow(answer, deadline, move |guarded, answer, by| {
            let answer = answer.and_then(|answer| guarded.finish(answer, &mut charges));
            match guarded.end(&call, &charges, answer, by) {
                Ok(at) => {
                    let decision = decision(at, by, charges, purpose);
                    guarded.record(began, &decision);
                    Ok(decision)
                }
                Err(error) => guarded.decide_locally(Some(error), charges, purpose, began),
            }
        })
    }

    /// Decides a request where an earlier decision about it was made.
    pub(crate) fn decide_by(
        self: &Arc<Self>,
        by: DecidedBy,
        charges: Charges,
        purpose: Purpose,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        if by.is_store() || charges.is_empty() {
            return self.decide_until(charges, purpose, || deadline);
        }
        let began = self.start_recording(purpose);
        StoreFuture::ready(self.decide_locally(None, charges, purpose, began))
    }

    /// Decides a request by the policies of its limits, because the store has failed: now, or before. Returns the error
    /// if they reject it.
    pub(crate) fn decide_locally(
        &self,
        error: Option<StoreError>,
        charges: Charges,
        purpose: Purpose,
        began: Option<Instant>,
    ) -> Result<Decision, StoreError> {
        let (to, decision) = self.decide_by_policies(purpose, charges);
        if error.is_some() {
            self.report_event(&Event::FellBack { to });
        }
        let decision = decision.ok_or_else(|| error.unwrap_or_else(|| StoreError::breaker_open(None)))?;
        self.record(began, &decision);
        Ok(decision)
    }

    /// Decides a request as [`decide`](Self::decide) would now, but affects neither the breakers, nor the log of
    /// outages. Returns the decision, unless the request would be rejected, and why the store does not decide.
    pub(crate) async fn explain(
        self: &Arc<Self>,
        mut charges: Charges,
        purpose: Purpose,
    ) -> (Option<Decision>, Option<StoreError>) {
        let (began, deadline) = (self.start_recording(purpose), self.deadline());
        let at_once = self.store.decide_at_once(&mut charges, purpose);
        let answer = match (at_once, self.breakers.rejection(&self.nodes(&charges))) {
            (Some(at), _) => Ok((Answer::new(at), self.by_at_once)),
            (None, Some(error)) => Err(error),
            (None, None) => {
                let answer = self.store.decide(&mut charges, purpose, deadline.left() / 2);
                self.follow(answer, deadline, |_, answer, by| Ok((answer?, by))).await
            }
        };
        match answer.and_then(|(answer, by)| Ok((self.finish(answer, &mut charges)?, by))) {
            Ok((at, by)) => {
                let decision = decision(at, by, charges, purpose);
                self.record(began, &decision);
                (Some(decision), None)
            }
            Err(error) => (self.decide_by_policies(purpose, charges).1, Some(error)),
        }
    }

    /// Returns the [name](Store::name) of the store.
    pub(crate) fn store_name(&self) -> Option<String> {
        self.store.name()
    }
}

/// Creates the decision of charges that the store has answered at an instant.
fn decision(at: Timestamp, by: DecidedBy, mut charges: Charges, purpose: Purpose) -> Decision {
    charges.merge_penalties();
    Decision::of(at, by, purpose == Purpose::Take, charges)
}

/// The time by which calls about a request have to end.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    began: time::Instant,
    span: Duration,
}

impl Deadline {
    /// Returns the time that is left.
    fn left(self) -> Duration {
        self.span.saturating_sub(self.began.elapsed())
    }

    async fn apply<T>(self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        timeout(self.left(), answer).await.unwrap_or_else(|_| Err(StoreError::timed_out(self.span)))
    }
}
