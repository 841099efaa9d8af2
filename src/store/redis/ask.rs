//! Requests as the script is handed them, and decisions from what it found.

use std::sync::Arc;

use smallvec::SmallVec;

use super::error::Fault;
use super::key;
use super::script::{self, Found, Request, Task};
use crate::algorithm::{Exact, Room, Soft, Standing, State, Twins};
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::record::Record;
use crate::store::{Charge, Refund, Terms};
use crate::time::Timestamp;

/// A [`Charge`] that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    terms: Arc<Terms>,
    key: KeyHash,
    cost: u64,
}

impl Asked {
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { terms: &self.terms, key: self.key, cost: self.cost }
    }
}

pub(super) fn charges(prefix: &str, task: Task, charges: &[Charge<'_>]) -> (Request, SmallVec<[Asked; 2]>) {
    let mut request = Request::new(task, charges.len());
    let asked = charges.iter().map(|&Charge { terms, key, cost }| {
        request.limit(key::name(prefix, terms, key));
        let told = terms.algorithm().capacity();
        let (letter, numbers) = match terms.ceiling().twin() {
            Twins::Record(twin) => (twin.letter(), twin.numbers(cost, told)),
            Twins::Log(twin) => (twin.letter(), twin.numbers(cost, told)),
        };
        request.rule(if terms.is_enforced() { letter } else { letter | script::SHADOW }, None, &numbers);
        Asked { terms: terms.clone(), key, cost }
    });
    let asked = asked.collect();
    (request, asked)
}

pub(super) fn refunds(prefix: &str, refunds: &[Refund<'_>]) -> Request {
    let mut request = Request::new(Task::Refund, refunds.len());
    for Refund { terms, key, cost, mark } in refunds {
        request.limit(key::name(prefix, terms, *key));
        let told = terms.algorithm().capacity();
        match terms.ceiling().twin() {
            Twins::Record(twin) => request.rule(twin.letter(), Some(twin.mark(mark)), &twin.numbers(*cost, told)),
            Twins::Log(twin) => request.rule(twin.letter(), Some(twin.mark(mark)), &twin.numbers(*cost, told)),
        }
    }
    request
}

pub(super) fn resets(prefix: &str, keys: &[(&Arc<Terms>, KeyHash)]) -> Request {
    let mut request = Request::new(Task::Reset, keys.len());
    for &(terms, key) in keys {
        request.limit(key::name(prefix, terms, key));
    }
    request
}

/// The decision on what was `asked`, from what the script found at `now`.
pub(super) fn decision(task: Task, now: u64, asked: &[Asked], found: &Found) -> Result<Decision, Fault> {
    let take = task == Task::Acquire && found.allowed;
    let decision = decide(take, now, asked.iter().map(Asked::charge), found)?;
    if decision.is_allowed() != found.allowed {
        return Err(Fault::Reply("another verdict than its state's"));
    }
    Ok(decision)
}

/// The decision on `charges` at `now` by what was `found` at that instant or before it: the memory
/// store's own code says of each limit what is left and for how long.
pub(super) fn decide<'a>(
    take: bool,
    now: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    found: &Found,
) -> Result<Decision, Fault> {
    if found.limits() != charges.len() {
        return Err(Fault::Reply("another number of limits"));
    }
    let mut decision = Decision::new(Timestamp::from_micros(now), take, charges.len());
    for (charge, held) in charges.zip(found.held()) {
        let held = State::all(held).ok_or(Fault::Reply("no state"))?;
        let seen = match (charge.terms.ceiling().twin(), charge.terms.algorithm().twin()) {
            (Twins::Record(ceiling), Twins::Record(limit)) => {
                ceiling.recall(&held).map(|state| settle(&Soft { limit, ceiling }, state, now, charge.cost, take))
            }
            (Twins::Log(ceiling), Twins::Log(limit)) => {
                ceiling.recall(&held).map(|state| settle(&Soft { limit, ceiling }, state, now, charge.cost, take))
            }
            _ => unreachable!("overage does not change what is remembered"),
        };
        let (room, mark, standing) = seen.ok_or(Fault::Reply("a state that can't be"))?;
        decision.push(Outcome::new(charge.subject(), room, mark, standing));
    }
    Ok(decision)
}

fn settle<S>(rule: &Soft<'_, S>, mut state: S, now: u64, cost: u64, take: bool) -> (Room, Record, Standing) {
    let room = if cost == 0 { Room::NOW } else { rule.peek(&state, now, cost) };
    let mark = if take && room.is_now() && cost > 0 { rule.commit(&mut state, now, cost) } else { Record::EMPTY };
    (room, mark, rule.standing(&state, now))
}
