//! Requests as the script is handed them, and decisions from what it found.

use std::sync::Arc;

use smallvec::SmallVec;

use super::deployment::Deployment;
use super::error::Fault;
use super::key;
use super::script::{self, Found, Reply, Request, Task};
use crate::algorithm::{Exact, Penalty, Room, Soft, Standing, State, Twins};
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::record::Record;
use crate::store::{Charge, Refund, Terms};
use crate::terms::Penalised;
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

/// What is asked at an instant that is thought to be `now`.
pub(super) fn charges(prefix: &str, task: Task, now: u64, charges: &[Charge<'_>]) -> (Request, SmallVec<[Asked; 2]>) {
    let asked = charges.iter().map(|&Charge { terms, key, cost }| Asked { terms: terms.clone(), key, cost });
    (request(prefix, task, now, charges.iter().copied()), asked.collect())
}

fn request<'a>(prefix: &str, task: Task, now: u64, charges: impl ExactSizeIterator<Item = Charge<'a>>) -> Request {
    let mut request = Request::new(task, charges.len());
    for Charge { terms, key, cost } in charges {
        let name = key::name(prefix, terms, key);
        let told = terms.algorithm().capacity();
        let (letter, numbers, edges) = match terms.ceiling().twin() {
            Twins::Record(twin) => (twin.letter(), twin.numbers(cost, told), twin.edges(now)),
            Twins::Log(twin) => (twin.letter(), twin.numbers(cost, told), twin.edges(now)),
        };
        let letter = if terms.is_enforced() { letter } else { letter | script::SHADOW };
        let Some(Penalised { penalty, counts, .. }) = terms.penalty() else {
            request.limit(name);
            request.rule(letter, None, &numbers);
            request.numbers(&edges);
            continue;
        };
        request.limit(name.clone());
        request.limit(key::of_penalty(name));
        request.rule(letter - script::PENALISED, None, &numbers);
        request.numbers(&edges);
        request.numbers(&penalty.numbers(*counts));
    }
    request
}

/// How often a request is sent again as it brought no window that holds Redis' present instant: twice, should
/// Redis' clock be set in between.
const AGAIN: usize = 2;

/// What the script says of a request for what is `asked`. One that it has not decided, as who sent it was wrong
/// about the present instant, goes there again with what is right at Redis' own.
pub(super) async fn reply(
    deployment: &Deployment,
    clock: Option<[u8; 24]>,
    prefix: &str,
    task: Task,
    request: Request,
    asked: &[Asked],
) -> Reply {
    let mut reply = deployment.ask(clock, request).await;
    for _ in 0..AGAIN {
        let Some(now) = reply.as_ref().err().and_then(Fault::present) else { break };
        reply = deployment.ask(clock, self::request(prefix, task, now, asked.iter().map(Asked::charge))).await;
    }
    reply
}

pub(super) fn refunds(prefix: &str, refunds: &[Refund<'_>]) -> Request {
    let mut request = Request::new(Task::Refund, refunds.len());
    for Refund { terms, key, cost, mark } in refunds {
        request.limit(key::name(prefix, terms, *key));
        let told = terms.algorithm().capacity();
        match terms.ceiling().twin() {
            Twins::Record(twin) => {
                request.rule(twin.letter(), Some(twin.mark(mark)), &twin.numbers(*cost, told));
                // What is over is not given back, whichever window counts now.
                request.numbers(&twin.edges(0));
            }
            Twins::Log(twin) => request.rule(twin.letter(), Some(twin.mark(mark)), &twin.numbers(*cost, told)),
        }
    }
    request
}

pub(super) fn resets(prefix: &str, keys: &[(&Arc<Terms>, KeyHash)]) -> Request {
    let penalties = keys.iter().filter(|(terms, _)| terms.penalty().is_some()).count();
    let mut request = Request::new(Task::Reset, keys.len() + penalties);
    for &(terms, key) in keys {
        let name = key::name(prefix, terms, key);
        if terms.penalty().is_some() {
            request.limit(key::of_penalty(name.clone()));
        }
        request.limit(name);
    }
    request
}

/// The decision on what was `asked`, from what the script found at `now`.
pub(super) fn decision(task: Task, now: u64, asked: &[Asked], found: &Found) -> Result<Decision, Fault> {
    let take = task == Task::Acquire && found.allowed;
    let decision = decide(take, task != Task::Peek, now, asked.iter().map(Asked::charge), found)?;
    if decision.is_allowed() != found.allowed {
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
    charges: impl Iterator<Item = Charge<'a>>,
    found: &Found,
) -> Result<Decision, Fault> {
    let mut decision = Decision::new(Timestamp::from_micros(now), take);
    let mut keys = found.held();
    let mut next = || keys.next().and_then(State::all).ok_or(Fault::Reply("no state"));
    let mut read = 0;
    for charge in charges {
        let held = next()?;
        read += 1;
        let seen = match (charge.terms.ceiling().twin(), charge.terms.algorithm().twin()) {
            (Twins::Record(ceiling), Twins::Record(limit)) => {
                ceiling.recall(&held).map(|state| settle(&Soft { limit, ceiling }, state, now, charge.cost, take))
            }
            (Twins::Log(ceiling), Twins::Log(limit)) => {
                ceiling.recall(&held).map(|state| settle(&Soft { limit, ceiling }, state, now, charge.cost, take))
            }
            _ => unreachable!("overage does not change what is remembered"),
        };
        let seen = seen.ok_or(Fault::Reply("a state that can't be"))?;
        decision.push(match charge.terms.penalty() {
            None => Outcome::new(charge.subject(), seen.0, seen.1, seen.2),
            Some(by) => {
                read += 1;
                let record = Penalty::recall(&next()?).ok_or(Fault::Reply("a state that can't be"))?;
                penalised(&charge, by, seen, record, now, counted)
            }
        });
    }
    if read != found.keys() {
        return Err(Fault::Reply("another number of keys"));
    }
    Ok(decision)
}

/// What a limit says of a charge, and its penalty of that, which remembers `record`.
fn penalised(
    charge: &Charge<'_>,
    by: &Penalised,
    (room, mark, standing): (Room, Record, Standing),
    mut record: Record,
    now: u64,
    counted: bool,
) -> Outcome {
    let is_struck = counted && by.counts && !room.is_now() && Penalty::left(&record, now) == 0;
    let begun = if is_struck { by.penalty.strike(&mut record, now) } else { None };
    let room = if charge.cost == 0 { room } else { Penalty::room(&record, now, room) };
    let outcome = Outcome::new(charge.subject(), room, mark, Penalty::standing(&record, now, standing));
    if Penalty::left(&record, now) > 0 { outcome.penalised(begun) } else { outcome }
}

/// Whether what was `found` says that the script has changed a rate, whatever it decided.
pub(super) fn changes_a_rate(asked: &[Asked], found: &Found) -> bool {
    let mut held = found.held().map(|held| State::all(held).unwrap_or_default());
    asked.iter().any(|Asked { terms, .. }| {
        let changes = held.next().is_some_and(|held| terms.ceiling().adopts(&held));
        terms.penalty().is_some().then(|| held.next());
        changes
    })
}

fn settle<S>(rule: &Soft<'_, S>, mut state: S, now: u64, cost: u64, take: bool) -> (Room, Record, Standing) {
    let room = if cost == 0 { Room::NOW } else { rule.peek(&state, now, cost) };
    let mark = if take && room.is_now() && cost > 0 { rule.commit(&mut state, now, cost) } else { Record::EMPTY };
    if mark == Record::EMPTY {
        rule.adopt(&mut state, now);
    }
    (room, mark, rule.standing(&state, now))
}
