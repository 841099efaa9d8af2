//! The circuit breakers of a store, one for each of its nodes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::breaker::{Admission, Breaker, Tick, after};
use super::settings::CircuitBreaker;
use crate::node::Node;
use crate::observe::BreakerState;

/// How long the breaker of a named node is kept that no request concerns: its keys may belong to another node by now.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The breakers of one limiter's store, which the limiter's clones share.
///
/// A node has a breaker from its first failure until it works again. While all nodes work there is none, and a request
/// pays for no more than [`are_closed`](Self::are_closed).
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
    /// When a request last concerned it.
    used: Instant,
}

/// The nodes that a request concerns, each once. `None` is a store that is one node, or that does not know the node of
/// a key.
pub(super) type Nodes = SmallVec<[Option<Node>; 1]>;

/// A trial or probe of a node.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) node: Option<Node>,
    pub(super) began: Tick,
}

pub(super) type Turns = SmallVec<[Turn; 1]>;

/// Whether a request may ask the store.
#[derive(Debug)]
pub(super) enum Pass {
    /// Yes. It tries whether some of its nodes work.
    Ask(Turns),
    /// No, but a node is to be probed.
    Probe(Turn),
    /// No: the breaker of this node is open.
    No(Option<Node>),
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

    /// Whether no node has failed since it last worked.
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

    /// Whether a request may ask `nodes`, within `deadline`: if none of their breakers is open. If one is, and its
    /// pause is over, a request that `can_probe` is used to probe that node.
    pub(super) fn pass(&self, nodes: &Nodes, can_probe: bool, deadline: Duration) -> (Pass, Changes) {
        let now = Instant::now();
        // Later than a trial or probe that is about to reach its deadline.
        let until = after(now, deadline.saturating_mul(2));
        self.update(now, |breakers, _| {
            let mut admissions: SmallVec<[(&mut NodeBreaker, Admission); 1]> = SmallVec::new();
            for it in breakers.iter_mut().filter(|it| nodes.contains(&it.node)) {
                it.used = now;
                let admission = it.breaker.admission(now);
                admissions.push((it, admission));
            }
            let due = admissions.iter_mut().find(|(_, admission)| can_probe && *admission == Admission::Probe);
            if let Some((it, _)) = due {
                let turn = Turn { node: it.node.clone(), began: self.next_tick() };
                it.breaker.begin_probe(turn.began, until);
                return Pass::Probe(turn);
            }
            let is_open = |admission| matches!(admission, Admission::No | Admission::Probe);
            if let Some((it, _)) = admissions.iter().find(|(_, admission)| is_open(*admission)) {
                return Pass::No(it.node.clone());
            }
            let mut turns = Turns::new();
            for (it, _) in admissions.into_iter().filter(|(_, admission)| *admission == Admission::Trial) {
                let turn = Turn { node: it.node.clone(), began: self.next_tick() };
                it.breaker.begin_trial(turn.began, until);
                turns.push(turn);
            }
            Pass::Ask(turns)
        })
    }

    /// Notes which nodes worked and which failed for a request that `began` at a tick, and that was a trial of some.
    /// Nothing is known of the others.
    pub(super) fn note(&self, began: Tick, trials: &[Turn], worked: &Nodes, failed: &Nodes) -> Changes {
        let now = Instant::now();
        let ((), changes) = self.update(now, |breakers, changes| {
            for turn in trials {
                let Some(it) = breakers.iter_mut().find(|it| it.node == turn.node) else { continue };
                let has_failed = failed.contains(&turn.node);
                if has_failed || worked.contains(&turn.node) {
                    let changed = it.breaker.end_trial(turn.began, !has_failed, self.settings);
                    changes.extend(changed.map(|state| (turn.node.clone(), state)));
                } else {
                    it.breaker.withdraw_trial(turn.began);
                }
            }
            let is_tried = |node: &&Option<Node>| trials.iter().any(|turn| turn.node == **node);
            for node in worked.iter().filter(|node| !is_tried(node)) {
                if let Some(it) = breakers.iter_mut().find(|it| it.node == *node) {
                    it.breaker.succeed();
                }
            }
            for node in failed.iter().filter(|node| !is_tried(node) && self.settings.failures > 0) {
                let index = breakers.iter().position(|it| it.node == *node).unwrap_or_else(|| {
                    breakers.push(NodeBreaker { node: node.clone(), breaker: Breaker::new(self.settings), used: now });
                    breakers.len() - 1
                });
                let changed = breakers[index].breaker.fail(began, || self.next_tick(), self.settings);
                changes.extend(changed.map(|state| (node.clone(), state)));
            }
            if worked.iter().any(Option::is_some) {
                // The store knows its nodes again: failures from before it did concern none of them.
                forget(breakers, changes, |it| it.node.is_none() && !failed.contains(&None));
            }
        });
        changes
    }

    /// Notes whether a probe worked.
    pub(super) fn note_probe(&self, turn: &Turn, worked: bool) -> Changes {
        self.change(turn, |breaker| breaker.end_probe(turn.began, worked, self.settings))
    }

    /// Has another request probe the node: nothing became known of it.
    pub(super) fn withdraw_probe(&self, turn: &Turn) {
        self.change(turn, |breaker| {
            breaker.withdraw_probe(turn.began);
            None
        });
    }

    /// Has the request that was to probe the node try it itself.
    pub(super) fn try_instead(&self, turn: &Turn) {
        self.change(turn, |breaker| {
            breaker.try_instead(turn.began);
            None
        });
    }

    fn change(&self, turn: &Turn, change: impl FnOnce(&mut Breaker) -> Option<BreakerState>) -> Changes {
        let ((), changes) = self.update(Instant::now(), |breakers, changes| {
            let it = breakers.iter_mut().find(|it| it.node == turn.node);
            changes.extend(it.and_then(|it| change(&mut it.breaker)).map(|state| (turn.node.clone(), state)));
        });
        changes
    }

    /// Changes the breakers, and drops those that are no longer needed.
    fn update<T>(&self, now: Instant, update: impl FnOnce(&mut Vec<NodeBreaker>, &mut Changes) -> T) -> (T, Changes) {
        let mut breakers = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Changes::new();
        let updated = update(&mut breakers, &mut changes);
        breakers.retain(|it| !it.breaker.is_well());
        forget(&mut breakers, &mut changes, |it| it.node.is_some() && now.duration_since(it.used) > FORGOTTEN_AFTER);
        self.has_any.store(!breakers.is_empty(), Ordering::Relaxed);
        (updated, changes)
    }
}

/// Drops some breakers, whatever their state: observers see them close.
fn forget(breakers: &mut Vec<NodeBreaker>, changes: &mut Changes, which: impl Fn(&NodeBreaker) -> bool) {
    breakers.retain(|it| {
        let is_forgotten = which(it);
        if is_forgotten && !it.breaker.is_closed() {
            changes.push((it.node.clone(), BreakerState::Closed));
        }
        !is_forgotten
    });
}
