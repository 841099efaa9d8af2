//! A request or probe in progress, and the evidence that its result gives about the nodes.

use std::sync::Arc;

use smallvec::SmallVec;

use super::breaker::Tick;
use super::breakers::{Breakers, Changes, Nodes, Turn, Turns};
use crate::error::{StoreError, StoreErrorKind};
use crate::hash::KeyHash;
use crate::node::Node;
use crate::store::{Charge, Store};

pub(super) type Keys = SmallVec<[KeyHash; 2]>;

pub(super) fn keys_of(charges: &[Charge<'_>]) -> Keys {
    charges.iter().map(|charge| charge.key).collect()
}

/// The nodes that keep `keys`.
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

/// A request on its way to the store. Dropping it without a result lets another trial start. If a panic drops it, the
/// trial fails.
#[derive(Debug)]
#[must_use = "what it says of the nodes is noted by `judge`"]
pub(crate) struct Attempt {
    breakers: Arc<Breakers>,
    began: Tick,
    keys: Keys,
    /// The nodes whose breakers were half open: it tries whether they work.
    trials: Turns,
}

impl Attempt {
    pub(super) fn new(breakers: &Arc<Breakers>, keys: Keys, trials: Turns) -> Self {
        Self { breakers: breakers.clone(), began: breakers.now(), keys, trials }
    }

    /// Notes what the answer of `store` says of the nodes. An error that does not name its node gets the name if
    /// there is but one.
    pub(super) fn judge<T>(
        mut self,
        store: &dyn Store,
        answer: Result<T, StoreError>,
    ) -> (Result<T, StoreError>, Changes) {
        if matches!(&answer, Err(error) if error.kind() == StoreErrorKind::QueueFull) {
            // The requests that do wait show whether the nodes work: a burst opens no breaker.
            return (answer, Changes::new());
        }
        let trials = std::mem::take(&mut self.trials);
        let (began, none) = (self.began, Nodes::new());
        let error = match answer {
            Err(error) if !error.is_of_one_request() => error,
            answer if trials.is_empty() && self.breakers.are_closed() => return (answer, Changes::new()),
            answer => return (answer, self.breakers.note(began, &trials, &nodes_of(store, &self.keys), &none)),
        };
        let mut nodes = nodes_of(store, &self.keys);
        // A store that wraps another may hide the nodes that errors name: it is one node.
        if let Some(node) = error.node().filter(|_| nodes.iter().any(Option::is_some)) {
            nodes = Nodes::from_elem(Some(node.clone()), 1);
        }
        let changes = self.breakers.note(began, &trials, &none, &nodes);
        let error = match &nodes[..] {
            [Some(node)] => error.at(node.clone()),
            _ => error,
        };
        (Err(error), changes)
    }

    /// Whether it tries if a node works.
    pub(super) fn is_trial(&self) -> bool {
        !self.trials.is_empty()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.trials.is_empty() {
            return;
        }
        let tried = self.trials.iter().map(|turn| turn.node.clone());
        let failed = if std::thread::panicking() { tried.collect() } else { Nodes::new() };
        self.breakers.note(self.began, &self.trials, &Nodes::new(), &failed);
    }
}

/// A look at one node in the background, which nobody waits for. Dropped, as by a panic, it has failed.
#[derive(Debug)]
pub(super) struct Probe {
    breakers: Arc<Breakers>,
    /// `None` once it is over.
    turn: Option<Turn>,
}

impl Probe {
    pub(super) fn new(breakers: &Arc<Breakers>, turn: Turn) -> Self {
        Self { breakers: breakers.clone(), turn: Some(turn) }
    }

    pub(super) fn node(&self) -> Option<&Node> {
        self.turn.as_ref()?.node.as_ref()
    }

    pub(super) fn end(mut self, worked: bool) -> Changes {
        self.turn.take().map(|turn| self.breakers.note_probe(&turn, worked)).unwrap_or_default()
    }

    /// Has another request probe the node, as nothing became known of it.
    pub(super) fn withdraw(mut self) {
        if let Some(turn) = self.turn.take() {
            self.breakers.withdraw_probe(&turn);
        }
    }

    /// Has the request with these keys try the node itself, where nothing can be done in the background.
    pub(super) fn into_trial(mut self, keys: Keys) -> Attempt {
        let trials = self.turn.take().into_iter().inspect(|turn| self.breakers.try_instead(turn)).collect();
        Attempt::new(&self.breakers, keys, trials)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn {
            self.breakers.note_probe(turn, false);
        }
    }
}
