//! Decides a request by the states of its keys: all of its limits together, at one instant.

use std::mem;

use super::charge::{Charge, Veto};
use super::outcome::Outcome;
use crate::algorithm::KeyState;

/// The purpose of a decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// Decides, and takes the costs of an allowed request from all limits or from none.
    Take,
    /// Decides, and changes nothing.
    Peek,
    /// Answers as for [`Take`](Self::Take), but changes nothing: outcomes report what would be left after the request,
    /// and a lockout that it would begin. [Explanations](crate::explain) use it. A store may answer as for
    /// [`Peek`](Self::Peek), so that they report what is left before the request.
    Preview,
}

/// Decides a request at one instant, which `now` returns on the clock of a charge: looks at the states of all its keys,
/// then takes all costs or none, in `states`, which are those of the charges in order.
#[inline]
pub(crate) fn decide(
    outcomes: &mut [Outcome],
    states: &mut [KeyState],
    now: impl Fn(&Charge) -> u64,
    purpose: Purpose,
) {
    for (outcome, state) in outcomes.iter_mut().zip(&*states) {
        outcome.peek(state, now(outcome), purpose != Purpose::Peek);
    }
    complete(outcomes, purpose, |outcomes, index, charges| outcomes[index].complete(&mut states[index], charges));
}

/// Decides a request after a [`peek`](Outcome::peek) at all its states. Calls `complete` with the position of each outcome,
/// and whether it is charged.
#[inline(always)]
pub(crate) fn complete(
    outcomes: &mut [Outcome],
    purpose: Purpose,
    mut complete: impl FnMut(&mut [Outcome], usize, bool),
) {
    let takes = purpose != Purpose::Peek;
    let is_allowed = takes && allows(outcomes);
    // Whether the outcome before, which is that of the limit of a penalty, has no capacity.
    let mut is_denied = false;
    for index in 0..outcomes.len() {
        let outcome = &outcomes[index];
        let is_strike = takes && mem::replace(&mut is_denied, !outcome.is_allowed()) && outcome.makes_strikes;
        let charges = outcome.is_allowed() && if outcome.is_of_penalty() { is_strike } else { is_allowed };
        complete(outcomes, index, charges);
    }
    enforce_quotas(outcomes);
}

/// Returns whether a request is allowed: every enforced limit has capacity, and one of those in quota mode, if there
/// are any.
#[inline]
pub(crate) fn allows(outcomes: &[Outcome]) -> bool {
    let (mut has_quota, mut quota_has_capacity) = (false, false);
    for outcome in outcomes {
        match outcome.veto {
            Veto::Enforced if !outcome.is_allowed() => return false,
            Veto::Enforced | Veto::Shadow => {}
            Veto::Quota => (has_quota, quota_has_capacity) = (true, quota_has_capacity || outcome.is_allowed()),
        }
    }
    quota_has_capacity || !has_quota
}

/// Enforces quota mode. Each quota with capacity contributes to the decision. If none has capacity, only the one that
/// will have capacity first denies the request, so that [`Decision::retry_after`](crate::Decision::retry_after) is
/// exact.
#[inline]
pub(crate) fn enforce_quotas(outcomes: &mut [Outcome]) {
    let quotas = || outcomes.iter().enumerate().filter(|(_, outcome)| outcome.veto == Veto::Quota);
    let Some((first, _)) = quotas().min_by_key(|(_, outcome)| outcome.wait) else { return };
    let has_capacity = quotas().any(|(_, outcome)| outcome.is_allowed());
    for (index, outcome) in outcomes.iter_mut().enumerate().filter(|(_, outcome)| outcome.veto == Veto::Quota) {
        outcome.set_enforced(if has_capacity { outcome.is_allowed() } else { index == first });
    }
}
