//! Derives decisions from the states in the script's replies, by the same algorithms as the memory store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::prepared::PreparedCharge;
use super::states::decode;
use crate::algorithm::CompactState;
use crate::decision::{Decision, Outcome};
use crate::store::evaluation::{penalty, quota};
use crate::store::redis::error::Fault;
use crate::store::redis::script::{Reply, Task, state};
use crate::store::{Charge, LimitSpec};
use crate::time::Timestamp;

const NO_STATE: Fault = Fault::Reply("expected a state");
const INVALID_STATE: Fault = Fault::Reply("an invalid state");

/// Returns the decision on `charges`, from the reply of the instant `now` (in µs).
pub(in crate::store::redis) fn decision(
    task: Task,
    now: u64,
    charges: &[PreparedCharge],
    reply: &Reply,
) -> Result<Decision, Fault> {
    let is_charged = task == Task::Acquire && reply.is_allowed();
    let counts_strikes = task != Task::Peek;
    let charges = charges.iter().map(PreparedCharge::charge);
    let decision = assemble(is_charged, now, charges, reply, |charge, found| {
        outcome(charge, found, now, is_charged, counts_strikes)
    })?;
    if decision.is_allowed() != reply.is_allowed() {
        return Err(Fault::Reply("a verdict that contradicts its states"));
    }
    Ok(decision)
}

/// Returns the decision that would have been made on `charges` instead of a peek, from the reply to that.
pub(in crate::store::redis) fn preview(now: u64, charges: &[PreparedCharge], reply: &Reply) -> Result<Decision, Fault> {
    decision(if reply.is_allowed() { Task::Acquire } else { Task::PeekWithStrikes }, now, charges, reply)
        .map(|decision| decision.without_charges())
}

/// The state of a limit's key in a reply, and that of its penalty.
struct ReplyStates<'a> {
    state: &'a [u8],
    penalty: Option<CompactState>,
}

/// Assembles a decision from the outcome of each charge.
fn assemble<'a>(
    is_charged: bool,
    now: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    reply: &Reply,
    mut outcome: impl FnMut(&Charge<'a>, &ReplyStates<'_>) -> Option<Outcome>,
) -> Result<Decision, Fault> {
    let mut outcomes: SmallVec<[Outcome; 1]> = SmallVec::new();
    let mut overridden: SmallVec<[Arc<LimitSpec>; 1]> = SmallVec::new();
    let mut quotas: SmallVec<[bool; 4]> = SmallVec::new();
    let mut keys = reply.states();
    let mut read = 0;
    for charge in charges {
        if charge.spec.is_override() {
            overridden.push(charge.spec.clone());
        }
        let mut found = ReplyStates { state: keys.next().ok_or(NO_STATE)?, penalty: None };
        read += 1;
        if charge.spec.penalty().is_some() {
            let record = state::decode(keys.next().ok_or(NO_STATE)?).ok_or(INVALID_STATE)?;
            found.penalty = Some(record);
            read += 1;
        }
        outcomes.push(outcome(&charge, &found).ok_or(INVALID_STATE)?);
        quotas.push(charge.spec.is_quota());
    }
    quota::enforce(&mut outcomes, quotas.into_iter());
    if read != reply.keys() {
        return Err(Fault::Reply("another number of keys"));
    }
    Ok(Decision::of(Timestamp::from_micros(now), is_charged, outcomes).with_resized(&overridden))
}

/// Returns the outcome of a charge at `now`, or `None` if the states are invalid.
fn outcome(
    charge: &Charge<'_>,
    found: &ReplyStates<'_>,
    now: u64,
    is_charged: bool,
    counts_strikes: bool,
) -> Option<Outcome> {
    let (spec, cost) = (charge.spec, charge.cost);
    let algorithm = spec.algorithm();
    let mut state = decode(algorithm, found.state)?;
    let state = state.as_state_mut();
    let evaluation = if is_charged { algorithm.decide(state, now, cost) } else { algorithm.evaluate(state, now, cost) };
    Some(match found.penalty {
        None => Outcome::evaluated(charge, evaluation, now),
        Some(mut record) => penalty::outcome(charge, &mut record, evaluation, counts_strikes, now),
    })
}
