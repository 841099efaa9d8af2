//! Keeps calls from a store that is slow or fails: by a deadline, and by a circuit breaker for each node.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::breaker::{BreakerChanges, Breakers, Call, CircuitBreaker, Nodes};
use crate::decision::{DecidedBy, Outcome};
use crate::error::StoreError;
use crate::store::Store;

/// A store behind a deadline and circuit breakers. Clones share both.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) store: Arc<dyn Store>,
    pub(super) breakers: Arc<Breakers>,
    longest_call: Duration,
}

impl Guard {
    /// Guards a store. `longest_call` is the longest time of a call.
    pub(super) fn new(store: Arc<dyn Store>, breaker: CircuitBreaker, longest_call: Duration) -> Self {
        Self { store, breakers: Breakers::new(breaker), longest_call }
    }

    /// Returns the deadline of a call.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::of(self.longest_call)
    }

    /// Begins a call that concerns `charges`, or returns an error if the breaker of a node is open.
    pub(super) fn begin(&self, charges: &[Outcome]) -> (Result<Call, StoreError>, BreakerChanges) {
        if self.breakers.are_closed() {
            return (Ok(self.breakers.begin()), BreakerChanges::new());
        }
        self.breakers.admit(&self.nodes(charges), self.longest_call)
    }

    /// Returns the error that a call about `charges` would get now from an open breaker.
    pub(super) fn rejection(&self, charges: &[Outcome]) -> Option<StoreError> {
        self.breakers.rejection(&self.nodes(charges))
    }

    /// Records what an answer about `charges` shows about their nodes. Adds the node to an error without one if all keys
    /// are on the same node.
    pub(super) fn end<T>(
        &self,
        call: &Call,
        charges: &[Outcome],
        answer: Result<T, StoreError>,
        by: DecidedBy,
    ) -> (Result<T, StoreError>, BreakerChanges) {
        let shows_health = match &answer {
            // Other requests were in its way.
            Err(error) if error.is_inconclusive() => false,
            _ if call.is_trial() => true,
            // An answer that is ready at once may come from memory.
            _ if by == DecidedBy::Memory => false,
            answer => answer.is_err() || !self.breakers.are_closed(),
        };
        match answer {
            answer if !shows_health => (answer, BreakerChanges::new()),
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
        }
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

/// The longest time that calls about a request may take. Each call has this time from when it is awaited, unless the
/// deadline has [begun](Self::begin) for all of them.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    span: Duration,
    /// When it began for all calls.
    began: Option<Instant>,
}

impl Deadline {
    /// Returns the deadline of a call that may take so long.
    pub(super) fn of(span: Duration) -> Self {
        Self { span, began: None }
    }

    /// Begins the deadline for all calls that get a copy.
    pub(crate) fn begin(self) -> Self {
        Self { began: Some(Instant::now()), ..self }
    }

    /// Returns the time that is left.
    pub(super) fn left(self) -> Duration {
        self.span.saturating_sub(self.began.as_ref().map_or(Duration::ZERO, Instant::elapsed))
    }

    /// Awaits an operation of this process. Returns `None` if the deadline is over first, which is not noticed outside a
    /// Tokio runtime.
    pub(super) async fn limit<T>(self, operation: impl Future<Output = T>) -> Option<T> {
        match StoreError::check_runtime() {
            Ok(()) => timeout(self.left(), operation).await.ok(),
            Err(_) => Some(operation.await),
        }
    }

    /// Awaits an answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the deadline is over first, or outside a Tokio runtime.
    pub(super) async fn apply<T>(self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        StoreError::check_runtime()?;
        timeout(self.left(), answer).await.unwrap_or_else(|_| Err(StoreError::timed_out(self.span)))
    }
}
