//! Requests and probes in progress, whose results show whether nodes work.

use std::sync::Arc;

use smallvec::SmallVec;

use super::breaker::Tick;
use super::breakers::{Breakers, Changes, HealthCheck, HealthChecks, Nodes};
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::node::Node;
use crate::store::{Cell, Store};

pub(super) type Keys = SmallVec<[KeyHash; 2]>;

pub(super) fn keys_of(cells: &[Cell]) -> Keys {
    cells.iter().map(Cell::key).collect()
}

/// Returns the nodes that keep `keys`.
pub(super) fn nodes_of(store: &dyn Store, keys: &[KeyHash]) -> Nodes {
    let mut nodes = Nodes::new();
    for key in keys {
        let node = store.node(*key);
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    if nodes.is_empty() {
        nodes.push(None);
    }
    nodes
}

/// A request to the store in progress. Dropping it without a result lets another trial start. A panic fails the trial.
#[derive(Debug)]
#[must_use = "its result is recorded by `record`"]
pub(crate) struct Attempt {
    breakers: Arc<Breakers>,
    began: Tick,
    keys: Keys,
    /// The nodes with half-open breakers, for which this request is the trial.
    trials: HealthChecks,
}

impl Attempt {
    pub(super) fn new(breakers: &Arc<Breakers>, keys: Keys, trials: HealthChecks) -> Self {
        Self { breakers: breakers.clone(), began: breakers.now(), keys, trials }
    }

    /// Records whether the nodes of `store` work, as its answer shows. Adds the node to an error without one if all
    /// keys are on the same node.
    pub(super) fn record<T>(
        mut self,
        store: &dyn Store,
        answer: Result<T, StoreError>,
    ) -> (Result<T, StoreError>, Changes) {
        if matches!(&answer, Err(error) if error.is_inconclusive()) {
            // It shows nothing about the nodes: other requests were in its way.
            return (answer, Changes::new());
        }
        let trials = std::mem::take(&mut self.trials);
        let (began, none) = (self.began, Nodes::new());
        let error = match answer {
            Err(error) if !error.is_of_one_request() => error,
            answer if trials.is_empty() && self.breakers.are_closed() => return (answer, Changes::new()),
            answer => return (answer, self.breakers.record(began, &trials, &nodes_of(store, &self.keys), &none)),
        };
        let mut nodes = nodes_of(store, &self.keys);
        // A store that wraps another may hide the nodes that errors name, and then counts as a single node.
        if let Some(node) = error.node().filter(|_| nodes.iter().any(Option::is_some)) {
            nodes = Nodes::from_elem(Some(node.clone()), 1);
        }
        let changes = self.breakers.record(began, &trials, &none, &nodes);
        let error = match &nodes[..] {
            [Some(node)] => error.at(node.clone()),
            _ => error,
        };
        (Err(error), changes)
    }

    /// Returns whether the request is the trial of a node.
    pub(super) fn is_trial(&self) -> bool {
        !self.trials.is_empty()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.trials.is_empty() {
            return;
        }
        let tried = self.trials.iter().map(|check| check.node.clone());
        let failed = if std::thread::panicking() { tried.collect() } else { Nodes::new() };
        // Recorders are not available here. They see the breaker close later, regardless of the state they saw last.
        let _ = self.breakers.record(self.began, &self.trials, &Nodes::new(), &failed);
    }
}

/// A request to one node in the background. Dropping it without a result, as by a panic, records a failure.
#[derive(Debug)]
pub(super) struct Probe {
    breakers: Arc<Breakers>,
    /// `None` once it is over.
    check: Option<HealthCheck>,
}

impl Probe {
    pub(super) fn new(breakers: &Arc<Breakers>, check: HealthCheck) -> Self {
        Self { breakers: breakers.clone(), check: Some(check) }
    }

    pub(super) fn node(&self) -> Option<&Node> {
        self.check.as_ref()?.node.as_ref()
    }

    pub(super) fn end(mut self, worked: bool) -> Changes {
        self.check.take().map(|check| self.breakers.record_probe(&check, worked)).unwrap_or_default()
    }

    /// Ends the probe without a result, so that the next request probes again.
    pub(super) fn withdraw(mut self) {
        if let Some(check) = self.check.take() {
            self.breakers.withdraw_probe(&check);
        }
    }

    /// Turns the probe into a trial by the request with these keys, for use without a runtime.
    pub(super) fn into_trial(mut self, keys: Keys) -> Attempt {
        let trials = self.check.take().into_iter().inspect(|check| self.breakers.turn_into_trial(check)).collect();
        Attempt::new(&self.breakers, keys, trials)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(check) = &self.check {
            // A failed probe changes no state.
            let _ = self.breakers.record_probe(check, false);
        }
    }
}
