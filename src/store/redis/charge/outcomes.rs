//! Derives decisions from the states in the script's replies, by the same algorithms as the memory store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::prepared::PreparedCharge;
use crate::algorithm::{CompactState, KeyState, Penalty};
use crate::decision::{Decision, Outcome};
use crate::store::evaluation::{penalty, quota};
use crate::store::redis::error::Fault;
use crate::store::redis::script::codec::{self, Codec, StoredState};
use crate::store::redis::script::{Reply, Task};
use crate::store::{Charge, LimitSpec};
use crate::time::Timestamp;

const NO_STATE: Fault = Fault::Reply("no state");
const INVALID_STATE: Fault = Fault::Reply("a state that can't be");

/// Returns the decision on `charges`, from the reply of the instant `now` (in µs).
pub(in crate::store::redis) fn decision(
    task: Task,
    now: u64,
    charges: &[PreparedCharge],
    reply: &Reply,
) -> Result<Decision, Fault> {
    let take = task == Task::Acquire && reply.is_allowed();
    let counted = task != Task::Peek;
    let charges = charges.iter().map(PreparedCharge::charge);
    let decision = for_each(take, now, charges, reply, |charge, held| outcome(charge, held, now, take, counted))?;
    if decision.is_allowed() != reply.is_allowed() {
        return Err(Fault::Reply("another verdict than its state's"));
    }
    Ok(decision)
}

/// Returns the decision that would have been made on `charges` instead of a peek, from the reply to that.
pub(in crate::store::redis) fn preview(now: u64, charges: &[PreparedCharge], reply: &Reply) -> Result<Decision, Fault> {
    decision(if reply.is_allowed() { Task::Acquire } else { Task::PeekWithStrikes }, now, charges, reply)
        .map(|decision| decision.without_charges())
}

/// Returns the denial of `charges` at `earliest`, if they are denied at `latest` as well, given an earlier reply.
///
/// `inspect` receives whether each charge is denied at `latest`.
pub(in crate::store::redis) fn lasting_denial<'a>(
    earliest: u64,
    latest: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    reply: &Reply,
    mut inspect: impl FnMut(&Charge<'a>, Peek),
) -> Option<Decision> {
    let mut is_lasting = false;
    let decision = for_each(false, earliest, charges, reply, |charge, held| {
        let peek = peek(charge, held, latest)?;
        is_lasting |= peek.denies;
        inspect(charge, peek);
        outcome(charge, held, earliest, false, false)
    });
    decision.ok().filter(|decision| is_lasting && !decision.is_allowed())
}

/// Returns whether the script has converted a bucket to the charge's rate, which it may do even if it denies.
pub(in crate::store::redis) fn converts_rate(charges: &[PreparedCharge], reply: &Reply) -> bool {
    let mut states = reply.states().map(|states| StoredState::parse_all(states).unwrap_or_default());
    charges.iter().map(PreparedCharge::charge).any(|Charge { spec, cost, .. }| {
        let converts = states.next().is_some_and(|states| cost > 0 && codec::converts_rate(spec.ceiling(), &states));
        spec.penalty().is_some().then(|| states.next());
        converts
    })
}

/// Whether a charge is denied, and by what.
pub(in crate::store::redis) struct Peek {
    pub(in crate::store::redis) denies: bool,
    /// The key is locked out by a penalty, whatever its limit has available.
    pub(in crate::store::redis) is_penalty: bool,
}

/// The states of a limit's key, and the record of its penalty.
struct Held<'a> {
    states: &'a [StoredState],
    penalty: Option<CompactState>,
}

/// Assembles a decision from the outcome of each charge.
fn for_each<'a>(
    take: bool,
    now: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    reply: &Reply,
    mut outcome: impl FnMut(&Charge<'a>, &Held<'_>) -> Option<Outcome>,
) -> Result<Decision, Fault> {
    let mut outcomes: SmallVec<[Outcome; 1]> = SmallVec::new();
    let mut overridden: SmallVec<[Arc<LimitSpec>; 1]> = SmallVec::new();
    let mut quotas: SmallVec<[bool; 4]> = SmallVec::new();
    let mut keys = reply.states();
    let mut next = || keys.next().and_then(StoredState::parse_all);
    let mut read = 0;
    for charge in charges {
        if charge.spec.is_override() {
            overridden.push(charge.spec.clone());
        }
        let states = next().ok_or(NO_STATE)?;
        let mut held = Held { states: &states, penalty: None };
        read += 1;
        if charge.spec.penalty().is_some() {
            let record = codec::penalty::decode(&next().ok_or(NO_STATE)?).ok_or(INVALID_STATE)?;
            held.penalty = Some(record);
            read += 1;
        }
        outcomes.push(outcome(&charge, &held).ok_or(INVALID_STATE)?);
        quotas.push(charge.spec.is_quota());
    }
    quota::enforce(&mut outcomes, quotas.into_iter());
    if read != reply.keys() {
        return Err(Fault::Reply("another number of keys"));
    }
    Ok(Decision::of(Timestamp::from_micros(now), take, outcomes).with_resized(&overridden))
}

/// Returns the outcome of a charge at `now`, or `None` if the states are invalid.
fn outcome(charge: &Charge<'_>, held: &Held<'_>, now: u64, take: bool, counted: bool) -> Option<Outcome> {
    let (spec, cost) = (charge.spec, charge.cost);
    let mut state = decode(charge, held)?;
    let mut state = state.as_mut();
    let rule = spec.rule();
    let evaluation = if take { rule.decide(&mut state, now, cost) } else { rule.evaluate(&mut state, now, cost) };
    Some(match held.penalty {
        None => Outcome::evaluated(charge, evaluation),
        Some(mut record) => penalty::outcome(charge, &mut record, evaluation, counted, now),
    })
}

/// Returns the state of a charge's key, or `None` if no script can have stored it.
fn decode(charge: &Charge<'_>, held: &Held<'_>) -> Option<KeyState> {
    Some(match Codec::of(charge.spec.rule().deciding()) {
        Codec::Compact(codec) => KeyState::Compact(codec.decode(held.states)?),
        Codec::Log(codec) => KeyState::Log(codec.decode(held.states)?),
    })
}

/// Returns whether a charge is denied at `now`, in a third of an outcome's time.
fn peek(charge: &Charge<'_>, held: &Held<'_>, now: u64) -> Option<Peek> {
    let is_available =
        charge.cost == 0 || charge.spec.rule().peek(&decode(charge, held)?.as_mut(), now, charge.cost).is_now();
    let is_penalty = held.penalty.is_some_and(|record| Penalty::locked_for(&record, now) > 0);
    let is_denied = !is_available || (is_penalty && charge.cost > 0);
    Some(Peek { denies: is_denied && charge.spec.is_enforced(), is_penalty })
}
