//! Decides a request by the states of its keys: all of its limits together, at one instant.

use super::charge::Veto;
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

/// Decides a request at `now` (in µs): looks at all of its states, which are in the order of their
/// [fingerprints](super::Charges::fingerprints), then takes all costs or none.
#[inline]
pub(crate) fn decide(outcomes: &mut [Outcome], states: &mut [KeyState], now: u64, purpose: Purpose) {
    let mut found = states.iter();
    for outcome in outcomes.iter_mut() {
        let Some(state) = found.next() else { return };
        outcome.peek(state, now, purpose != Purpose::Peek);
        if outcome.penalty().is_some()
            && let Some(KeyState::Compact(state)) = found.next()
        {
            outcome.peek_penalty(*state, now);
        }
    }
    let mut states = states.iter_mut();
    complete(outcomes, purpose, |outcome, _, takes| {
        let Some(state) = states.next() else { return };
        outcome.complete(state, takes);
        if outcome.penalty().is_some()
            && let (Some(state), Some(struck)) = (states.next(), outcome.struck())
        {
            *state = KeyState::Compact(struck);
        }
    });
}

/// Decides a request after a [`peek`](Outcome::peek) at all its states. Calls `complete` with each outcome, its
/// position, and whether it is charged. Its strike has been counted then.
#[inline(always)]
pub(crate) fn complete(
    outcomes: &mut [Outcome],
    purpose: Purpose,
    mut complete: impl FnMut(&mut Outcome, usize, bool),
) {
    let takes = purpose != Purpose::Peek;
    let is_allowed = takes && allows(outcomes);
    for (index, outcome) in outcomes.iter_mut().enumerate() {
        let is_charged = is_allowed && outcome.is_allowed();
        if takes && outcome.penalty().is_some() {
            outcome.strike();
        }
        complete(outcome, index, is_charged);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{FixedWindow, Penalty};
    use crate::decision::{Charge, PenaltyOutcome};
    use crate::key::hash::{KeyHash, KeyHasher};

    /// A store that wraps another one may ask again in place.
    #[test]
    fn only_the_denial_that_begins_a_lockout_reports_it() {
        let hasher = KeyHasher::with_secret([0; 16]);
        let charge = Charge::new(0, "limit", FixedWindow::per_day(1).into(), &hasher).with_key(KeyHash::ZERO, 2);
        let penalty = PenaltyOutcome::new(Penalty::after(2, Duration::from_secs(60)));
        let (mut outcomes, mut states) = ([Outcome::new(charge, Some(penalty))], [KeyState::UNUSED, KeyState::UNUSED]);
        for (begins, is_locked_out) in [(false, false), (true, true), (false, true)] {
            decide(&mut outcomes, &mut states, 1, Purpose::Take);
            assert_eq!((outcomes[0].lockout().is_some(), outcomes[0].is_locked_out()), (begins, is_locked_out));
        }
    }
}
