//! The decision on a request, from the states of its keys, wherever these are stored.
//!
//! Each concept that surrounds an algorithm has one place: overage is a part of the limit's
//! [algorithm](crate::algorithm::Algorithm), penalties are applied in [`penalty`], quota mode in [`quota`], and overrides
//! replace a limit before it is decided, in [`resize`].

pub(crate) mod penalty;
pub(crate) mod preview;
pub(crate) mod quota;
pub(crate) mod resize;

use smallvec::SmallVec;

use crate::algorithm::{Availability, CompactState, State};
use crate::charge::Charge;
use crate::decision::{Decision, Outcome};
use crate::time::Timestamp;

/// Whether an evaluation charges the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Task {
    /// Decides, and charges an allowed request.
    Decide,
    /// Decides, and changes nothing.
    Peek,
}

/// The stored states of a request's keys, by the position of their charges in the request.
pub(crate) trait KeyStates {
    /// Returns the state of a charge's key, or that of an unused key.
    fn state(&mut self, charge: usize) -> &mut dyn State;

    /// Returns the state of the penalty of a charge's key, or that of an unused key.
    fn penalty(&mut self, charge: usize) -> CompactState;

    /// Makes room for new keys. Called before the first charge is committed.
    fn make_room(&mut self) {}

    /// Stores the [`state`](Self::state) of a key after its charge was committed, which leaves `remaining` tokens.
    fn store(&mut self, charge: usize, remaining: u64);

    /// Marks the key of a denied charge, so that it is evicted late.
    fn mark_denied(&mut self, charge: usize) {
        let _ = charge;
    }

    /// Stores the state of a penalty after a strike. Returns whether it could be stored. `availability` is that of the
    /// denied charge.
    fn store_penalty(&mut self, charge: usize, penalty: CompactState, availability: Availability) -> bool;
}

/// Decides a request: peeks at the states of all its keys, then commits all charges or none.
pub(crate) fn decide(states: &mut impl KeyStates, charges: &[Charge<'_>], at: Timestamp, task: Task) -> Decision {
    let now = at.as_micros();
    let mut available: SmallVec<[Availability; 8]> = SmallVec::new();
    for (index, charge) in charges.iter().enumerate() {
        available.push(peek(states, index, charge, now));
    }
    let commits = task == Task::Decide && quota::allows(charges, &available);
    if commits {
        states.make_room();
    }
    let mut outcomes = SmallVec::with_capacity(charges.len());
    for (index, (charge, availability)) in charges.iter().zip(available).enumerate() {
        outcomes.push(outcome(states, index, charge, availability, task, commits, now));
    }
    if charges.iter().any(|charge| charge.spec.is_quota()) {
        quota::enforce(&mut outcomes, charges.iter().map(|charge| charge.spec.is_quota()));
    }
    Decision::of(at, task == Task::Decide, outcomes)
}

/// Returns whether a charge is available under its limit and its penalty.
fn peek(states: &mut impl KeyStates, index: usize, charge: &Charge<'_>, now: u64) -> Availability {
    let availability = charge.spec.algorithm().availability(states.state(index), now, charge.cost);
    match charge.spec.penalty() {
        None => availability,
        Some(_) => penalty::restrict(&states.penalty(index), charge.cost, availability, now),
    }
}

/// Commits a charge, if the request is allowed and the limit has capacity, and returns the limit's outcome.
fn outcome(
    states: &mut impl KeyStates,
    index: usize,
    charge: &Charge<'_>,
    availability: Availability,
    task: Task,
    commits: bool,
    now: u64,
) -> Outcome {
    let rule = charge.spec.algorithm();
    let charges = commits && availability.is_now() && charge.cost > 0;
    let evaluation = rule.complete(states.state(index), now, charge.cost, availability, charges);
    if charges {
        states.store(index, rule.remaining(evaluation.used));
    } else if task == Task::Decide && availability.is_after() {
        states.mark_denied(index);
    }
    if charge.spec.penalty().is_none() {
        return Outcome::evaluated(charge, evaluation, now);
    }
    let before = states.penalty(index);
    let evaluate = |state: &mut CompactState, strikes| penalty::outcome(charge, state, evaluation, strikes, now);
    let mut after = before;
    let outcome = evaluate(&mut after, task == Task::Decide);
    // A strike that is not kept has no effect.
    if after == before || states.store_penalty(index, after, availability) {
        outcome
    } else {
        let mut unchanged = before;
        evaluate(&mut unchanged, false)
    }
}
