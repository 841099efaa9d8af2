//! Penalties, applied to the evaluation of a limit.

use crate::algorithm::{Availability, CompactState, Evaluation, Penalty};
use crate::charge::Charge;
use crate::decision::Outcome;

/// Restricts the availability of a cost under a limit by the penalty. A cost of 0 is always allowed.
pub(crate) fn restrict(state: &CompactState, cost: u64, availability: Availability, now: u64) -> Availability {
    if cost == 0 { availability } else { Penalty::restrict(state, now, availability) }
}

/// Applies the penalty of a charge's limit to the limit's evaluation. If that is a denial and `strikes` is set, the
/// denial is counted in `state`.
pub(crate) fn outcome(
    charge: &Charge<'_>,
    state: &mut CompactState,
    limit: Evaluation,
    strikes: bool,
    now: u64,
) -> Outcome {
    let is_strike =
        strikes && charge.spec.counts_strikes() && !limit.availability.is_now() && Penalty::locked_for(state, now) == 0;
    let penalty = charge.spec.penalty().filter(|_| is_strike);
    let lockout = penalty.and_then(|penalty| penalty.strike(state, now));
    let availability = restrict(state, charge.cost, limit.availability, now);
    let snapshot = charge.spec.algorithm().snapshot(&limit.state, now);
    let outcome = Outcome::evaluated(charge, Evaluation { availability, ..limit }, now)
        .with_snapshot(Penalty::restrict_snapshot(state, now, snapshot));
    if Penalty::locked_for(state, now) > 0 { outcome.locked_out(lockout) } else { outcome }
}
