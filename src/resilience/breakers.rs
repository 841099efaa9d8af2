//! The circuit breakers of a store, one for each of its nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::breaker::{Breaker, NodeAdmission, Tick, after};
use super::settings::CircuitBreaker;
use crate::node::Node;
use crate::recorder::BreakerState;

/// The time for which the breaker of a named node is kept without requests. After that, its keys may belong to another
/// node.
const RETENTION: Duration = Duration::from_secs(60);

/// The breakers of one limiter's store. Clones of the limiter share them.
///
/// A node has a breaker from its first failure until it works again. While all nodes work there is none, and a request
/// only checks [`are_closed`](Self::are_closed).
#[derive(Debug)]
pub(super) struct Breakers {
    settings: CircuitBreaker,
    has_any: AtomicBool,
    /// The latest tick.
    tick: AtomicU64,
    nodes: Mutex<Vec<NodeBreaker>>,
}

#[derive(Debug)]
struct NodeBreaker {
    node: Option<Node>,
    breaker: Breaker,
    /// When a request last had a key on the node.
    used: Instant,
}

/// The nodes of a request's keys, without duplicates. `None` stands for a store of a single node, or for an unknown
/// node.
pub(super) type Nodes = SmallVec<[Option<Node>; 1]>;

/// A trial of a node by a request, or a probe of it in the background.
#[derive(Clone, Debug)]
pub(super) struct HealthCheck {
    pub(super) node: Option<Node>,
    pub(super) began: Tick,
}

pub(super) type HealthChecks = SmallVec<[HealthCheck; 1]>;

/// Whether a request may use the store.
#[derive(Debug)]
pub(super) enum Admission {
    /// The request may use the store. It is the trial of these nodes.
    Proceed(HealthChecks),
    /// The request may not use the store, and this node is due to be probed.
    Probe(HealthCheck),
    /// The request may not use the store, because the breaker of this node is open.
    Reject(Option<Node>),
}

/// The breakers that changed, and their new states.
pub(super) type Changes = SmallVec<[(Option<Node>, BreakerState); 1]>;

impl Breakers {
    pub(super) fn new(settings: CircuitBreaker) -> Arc<Self> {
        Arc::new(Self { settings, has_any: AtomicBool::new(false), tick: AtomicU64::new(0), nodes: Mutex::default() })
    }

    pub(super) fn settings(&self) -> CircuitBreaker {
        self.settings
    }

    /// Returns whether every node has worked since it last failed.
    #[inline]
    pub(super) fn are_closed(&self) -> bool {
        !self.has_any.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> Tick {
        self.tick.load(Ordering::Relaxed)
    }

    fn next_tick(&self) -> Tick {
        self.tick.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Decides whether a request with this `deadline` may use `nodes`: only if none of their breakers is open. If the
    /// pause of an open breaker is over, a request that `can_probe` triggers a probe of its node.
    ///
    /// Removes breakers of nodes that have had no requests for a while. Recorders see them close.
    pub(super) fn admit(&self, nodes: &Nodes, can_probe: bool, deadline: Duration) -> (Admission, Changes) {
        let now = Instant::now();
        // Later than a trial or probe that is about to reach its deadline.
        let until = after(now, deadline.saturating_mul(2));
        self.update(|breakers, changes| {
            let mut admissions: SmallVec<[(&mut NodeBreaker, NodeAdmission); 1]> = SmallVec::new();
            for entry in breakers.iter_mut().filter(|entry| nodes.contains(&entry.node)) {
                entry.used = now;
                let admission = entry.breaker.admission(now);
                admissions.push((entry, admission));
            }
            let admission = self.admit_to(admissions, can_probe, until);
            forget(breakers, changes, |entry| entry.node.is_some() && now.duration_since(entry.used) > RETENTION);
            admission
        })
    }

    /// Returns a node among `nodes` whose breaker would keep a request from the store. If the request `can_probe`, that
    /// is also a node that is due to be probed. Changes nothing.
    pub(super) fn rejecting(&self, nodes: &Nodes, can_probe: bool) -> Option<Option<Node>> {
        let now = Instant::now();
        let breakers = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let rejects = |entry: &&NodeBreaker| match entry.breaker.admission(now) {
            NodeAdmission::Proceed | NodeAdmission::Trial => false,
            NodeAdmission::Probe => can_probe,
            NodeAdmission::Reject => true,
        };
        let entry = breakers.iter().filter(|entry| nodes.contains(&entry.node)).find(rejects)?;
        Some(entry.node.clone())
    }

    fn admit_to(
        &self,
        mut admissions: SmallVec<[(&mut NodeBreaker, NodeAdmission); 1]>,
        can_probe: bool,
        until: Instant,
    ) -> Admission {
        let due = admissions.iter_mut().find(|(_, admission)| can_probe && *admission == NodeAdmission::Probe);
        if let Some((entry, _)) = due {
            let probe = HealthCheck { node: entry.node.clone(), began: self.next_tick() };
            entry.breaker.begin_probe(probe.began, until);
            return Admission::Probe(probe);
        }
        let is_open = |admission| matches!(admission, NodeAdmission::Reject | NodeAdmission::Probe);
        if let Some((entry, _)) = admissions.iter().find(|(_, admission)| is_open(*admission)) {
            return Admission::Reject(entry.node.clone());
        }
        let mut trials = HealthChecks::new();
        for (entry, _) in admissions.into_iter().filter(|(_, admission)| *admission == NodeAdmission::Trial) {
            let trial = HealthCheck { node: entry.node.clone(), began: self.next_tick() };
            entry.breaker.begin_trial(trial.began, until);
            trials.push(trial);
        }
        Admission::Proceed(trials)
    }

    /// Records which nodes worked and which failed for a request that `began` at a tick and was the trial of `trials`.
    /// Nothing is known about other nodes.
    pub(super) fn record(&self, began: Tick, trials: &[HealthCheck], worked: &Nodes, failed: &Nodes) -> Changes {
        let ((), changes) = self.update(|breakers, changes| {
            for trial in trials {
                let Some(entry) = breakers.iter_mut().find(|entry| entry.node == trial.node) else { continue };
                let has_failed = failed.contains(&trial.node);
                if has_failed || worked.contains(&trial.node) {
                    let changed = entry.breaker.end_trial(trial.began, !has_failed, self.settings);
                    changes.extend(changed.map(|state| (trial.node.clone(), state)));
                } else {
                    entry.breaker.withdraw_trial(trial.began);
                }
            }
            let is_tried = |node: &&Option<Node>| trials.iter().any(|trial| trial.node == **node);
            for node in worked.iter().filter(|node| !is_tried(node)) {
                if let Some(entry) = breakers.iter_mut().find(|entry| entry.node == *node) {
                    entry.breaker.succeed();
                }
            }
            for node in failed.iter().filter(|node| !is_tried(node) && self.settings.failures > 0) {
                let index = breakers.iter().position(|entry| entry.node == *node).unwrap_or_else(|| {
                    let breaker = Breaker::new(self.settings);
                    breakers.push(NodeBreaker { node: node.clone(), breaker, used: Instant::now() });
                    breakers.len() - 1
                });
                let changed = breakers[index].breaker.fail(began, || self.next_tick(), self.settings);
                changes.extend(changed.map(|state| (node.clone(), state)));
            }
            if worked.iter().any(Option::is_some) {
                // The store knows its nodes again. Failures from before can't be assigned to any of them.
                forget(breakers, changes, |entry| entry.node.is_none() && !failed.contains(&None));
            }
        });
        changes
    }

    /// Records whether a probe worked.
    pub(super) fn record_probe(&self, probe: &HealthCheck, worked: bool) -> Changes {
        let ((), changes) = self.update(|breakers, changes| {
            let entry = breakers.iter_mut().find(|entry| entry.node == probe.node);
            let changed = entry.and_then(|entry| entry.breaker.end_probe(probe.began, worked, self.settings));
            changes.extend(changed.map(|state| (probe.node.clone(), state)));
        });
        changes
    }

    /// Ends a probe without a result, so that the next request probes again.
    pub(super) fn withdraw_probe(&self, probe: &HealthCheck) {
        self.change(probe, |breaker| breaker.withdraw_probe(probe.began));
    }

    /// Turns a probe into a trial by the request itself.
    pub(super) fn turn_into_trial(&self, probe: &HealthCheck) {
        self.change(probe, |breaker| breaker.turn_into_trial(probe.began));
    }

    /// Changes the breaker of a node without changing its state for recorders.
    fn change(&self, check: &HealthCheck, change: impl FnOnce(&mut Breaker)) {
        self.update(|breakers, _| {
            breakers.iter_mut().find(|entry| entry.node == check.node).map(|entry| change(&mut entry.breaker))
        });
    }

    /// Updates the breakers, and removes those of nodes that work again.
    fn update<T>(&self, update: impl FnOnce(&mut Vec<NodeBreaker>, &mut Changes) -> T) -> (T, Changes) {
        let mut breakers = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Changes::new();
        let updated = update(&mut breakers, &mut changes);
        breakers.retain(|entry| !entry.breaker.has_no_failures());
        self.has_any.store(!breakers.is_empty(), Ordering::Relaxed);
        (updated, changes)
    }
}

/// Removes some breakers in any state. Recorders see them close.
fn forget(breakers: &mut Vec<NodeBreaker>, changes: &mut Changes, which: impl Fn(&NodeBreaker) -> bool) {
    breakers.retain(|entry| {
        let is_forgotten = which(entry);
        if is_forgotten && !entry.breaker.is_closed() {
            changes.push((entry.node.clone(), BreakerState::Closed));
        }
        !is_forgotten
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dropped attempt has no recorder, so the next request reports the change.
    #[tokio::test(start_paused = true)]
    async fn a_removed_breaker_is_reported_as_closed() {
        let [one, two] = ["one", "two"].map(|name| Some(Node::new(name)));
        let breakers = Breakers::new(CircuitBreaker::new().failures(1));
        let deadline = Duration::from_millis(50);
        for node in [&one, &two] {
            let _ = breakers.record(breakers.now(), &[], &Nodes::new(), &Nodes::from_elem(node.clone(), 1));
        }
        tokio::time::advance(RETENTION / 2).await;
        let (admission, _) = breakers.admit(&Nodes::from_elem(two.clone(), 1), true, deadline);
        let Admission::Probe(probe) = admission else { panic!("{admission:?}") };
        tokio::time::advance(RETENTION / 2 + Duration::from_secs(1)).await;
        breakers.withdraw_probe(&probe);
        let (_, changes) = breakers.admit(&Nodes::from_elem(two, 1), true, deadline);
        assert_eq!(changes.to_vec(), [(one, BreakerState::Closed)]);
    }
}
