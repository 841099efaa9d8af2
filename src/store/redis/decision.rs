//! Decisions from what the script found.

use std::sync::Arc;

use smallvec::SmallVec;

use super::ask::Asked;
use super::error::Fault;
use super::script::codec::{self, Codec, StoredState};
use super::script::{Reply, Task};
use crate::algorithm::{ChargeMark, CompactState, KeyState, Penalty};
use crate::decision::{Decision, Outcome};
use crate::store::evaluation::{penalty, quota};
use crate::store::{Charge, LimitSpec};
use crate::time::Timestamp;

const NO_STATE: Fault = Fault::Reply("no state");
const IMPOSSIBLE: Fault = Fault::Reply("a state that can't be");

/// The decision on what was `asked`, from what the script found at `now`.
pub(super) fn of(task: Task, now: u64, asked: &[Asked], found: &Reply) -> Result<Decision, Fault> {
    let take = task == Task::Acquire && found.is_allowed();
    let decision = decide(take, task != Task::Peek, now, asked.iter().map(Asked::charge), found)?;
    if decision.is_allowed() != found.is_allowed() {
        return Err(Fault::Reply("another verdict than its state's"));
    }
    Ok(decision)
}

/// The decision on `charges` at `now` by what was `found` at that instant or before it: the memory
/// store's own code says of each limit what is left and for how long. Denials may be `counted`.
pub(super) fn decide<'a>(
    take: bool,
    counted: bool,
    now: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    found: &Reply,
) -> Result<Decision, Fault> {
    decide_each(take, now, charges, found, |charge, held| outcome(charge, held, now, take, counted))
}

/// The denial of `charges` at `earliest` that would be one at `latest`, too, by what was `found`: of each charge,
/// `take_up` is told what would be said of it then.
pub(super) fn denial<'a>(
    earliest: u64,
    latest: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    found: &Reply,
    mut take_up: impl FnMut(&Charge<'a>, Glance),
) -> Option<Decision> {
    let mut is_lasting = false;
    let decision = decide_each(false, earliest, charges, found, |charge, held| {
        let seen = glance(charge, held, latest)?;
        is_lasting |= seen.denies;
        take_up(charge, seen);
        outcome(charge, held, earliest, false, false)
    });
    decision.ok().filter(|decision| is_lasting && !decision.is_allowed())
}

/// What of an outcome says whether it is a denial, and by what.
pub(super) struct Glance {
    pub(super) denies: bool,
    /// The key is refused, whatever room there is.
    pub(super) is_penalty: bool,
}

/// What a limit's key held, and what its penalty remembers, if it has one.
struct Held<'a> {
    states: &'a [StoredState],
    penalty: Option<CompactState>,
}

/// A decision, where `tell` makes an outcome of each charge and of what was `found` of it.
fn decide_each<'a>(
    take: bool,
    now: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    found: &Reply,
    mut tell: impl FnMut(&Charge<'a>, &Held<'_>) -> Option<Outcome>,
) -> Result<Decision, Fault> {
    let mut outcomes: SmallVec<[Outcome; 1]> = SmallVec::new();
    let mut overridden: SmallVec<[Arc<LimitSpec>; 1]> = SmallVec::new();
    let mut quotas: SmallVec<[bool; 4]> = SmallVec::new();
    let mut keys = found.states();
    let mut next = || keys.next().and_then(StoredState::parse_all);
    let mut read = 0;
    for charge in charges {
        if charge.spec.is_override() {
            overridden.push(charge.spec.clone());
        }
        let Some(states) = next() else { return Err(NO_STATE) };
        let mut held = Held { states: &states, penalty: None };
        read += 1;
        if charge.spec.penalty().is_some() {
            let Some(record) = codec::penalty::decode(&next().ok_or(NO_STATE)?) else { return Err(IMPOSSIBLE) };
            held.penalty = Some(record);
            read += 1;
        }
        let Some(outcome) = tell(&charge, &held) else { return Err(IMPOSSIBLE) };
        outcomes.push(outcome);
        quotas.push(charge.spec.is_quota());
    }
    quota::enforce(&mut outcomes, quotas.into_iter());
    if read != found.keys() {
        return Err(Fault::Reply("another number of keys"));
    }
    Ok(Decision::of(Timestamp::from_micros(now), take, outcomes).with_resized(&overridden))
}

/// What a limit says of a charge at `now`; nothing, where what its key held can't be.
fn outcome(charge: &Charge<'_>, held: &Held<'_>, now: u64, take: bool, counted: bool) -> Option<Outcome> {
    let (spec, cost) = (charge.spec, charge.cost);
    let mut state = decode(charge, held)?;
    let mut state = state.as_mut();
    let (availability, mark, snapshot) = if take {
        spec.rule().decide(&mut state, now, cost)
    } else {
        let availability = spec.rule().peek(&state, now, cost);
        (availability, ChargeMark::NONE, spec.rule().skip(&mut state, now, cost))
    };
    Some(match held.penalty {
        None => Outcome::evaluated(charge, availability, mark, snapshot),
        Some(mut record) => penalty::outcome(charge, &mut record, availability, mark, snapshot, counted, now),
    })
}

/// The state of a charge's key, unless no script can have stored that.
fn decode(charge: &Charge<'_>, held: &Held<'_>) -> Option<KeyState> {
    Some(match Codec::of(charge.spec.rule().deciding()) {
        Codec::Compact(codec) => KeyState::Compact(codec.decode(held.states)?),
        Codec::Log(codec) => KeyState::Log(codec.decode(held.states)?),
    })
}

/// Of an outcome, as much as that, which takes a third of the time.
fn glance(charge: &Charge<'_>, held: &Held<'_>, now: u64) -> Option<Glance> {
    let has_room =
        charge.cost == 0 || charge.spec.rule().peek(&decode(charge, held)?.as_mut(), now, charge.cost).is_now();
    let is_penalty = held.penalty.is_some_and(|record| Penalty::locked_for(&record, now) > 0);
    let is_refused = !has_room || (is_penalty && charge.cost > 0);
    Some(Glance { denies: is_refused && charge.spec.is_enforced(), is_penalty })
}

/// Whether what was `found` says that the script has changed a rate, whatever it decided.
pub(super) fn changes_a_rate(asked: &[Asked], found: &Reply) -> bool {
    let mut held = found.states().map(|held| StoredState::parse_all(held).unwrap_or_default());
    asked.iter().map(Asked::charge).any(|Charge { spec, cost, .. }| {
        let changes = held.next().is_some_and(|held| cost > 0 && codec::converts_rate(spec.ceiling(), &held));
        spec.penalty().is_some().then(|| held.next());
        changes
    })
}
