//! Requests as the script is handed them, and decisions from what it found.

use std::sync::Arc;

use smallvec::SmallVec;

use super::beliefs::{Belief, Beliefs};
use super::error::Fault;
use super::key;
use super::script::{self, Found, Request, Task};
use crate::algorithm::{self, Algorithm, Exact, Penalty, Room, Size, Soft, Standing, State, Twins};
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::record::Record;
use crate::store::{Charge, Refund, Terms};
use crate::terms::Penalised;
use crate::time::Timestamp;

/// A [`Charge`] that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Of the limit's size for the key.
    terms: Arc<Terms>,
    key: KeyHash,
    cost: u64,
    /// Where the store may hold another size.
    open: Option<Open>,
}

/// A limit whose size for a key is a matter of belief.
#[derive(Clone, Debug)]
struct Open {
    /// Its own terms.
    terms: Arc<Terms>,
    believed: Option<Belief>,
}

impl Asked {
    pub(super) fn new(charge: &Charge<'_>, beliefs: &Beliefs) -> Self {
        let &Charge { terms, key, cost } = charge;
        let mut asked = Self { terms: terms.clone(), key, cost, open: None };
        if terms.is_overridable() {
            let believed = beliefs.of(terms.print(key));
            asked.open = Some(Open { terms: terms.clone(), believed: None });
            // What can't be is for the script to say.
            let _ = asked.believe(believed);
        }
        asked
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { terms: &self.terms, key: self.key, cost: self.cost }
    }

    pub(super) fn is_of_a_calendar(&self) -> bool {
        matches!(self.terms.algorithm(), Algorithm::CalendarWindow(_))
    }

    /// The instant from which it would be of another size, where there is one.
    pub(super) fn until(&self) -> Option<u64> {
        let believed = self.open.as_ref()?.believed?;
        (believed.until > 0).then_some(believed.until)
    }

    fn believe(&mut self, believed: Option<Belief>) -> Result<(), Fault> {
        let Some(open) = &mut self.open else { return Ok(()) };
        self.terms = match believed {
            None => open.terms.clone(),
            Some(belief) => Arc::new(open.terms.overridden(belief.size).ok_or(NO_OVERRIDE)?),
        };
        open.believed = believed;
        Ok(())
    }
}

const IMPOSSIBLE: Fault = Fault::Reply("a state that can't be");
const NO_OVERRIDE: Fault = Fault::Reply("an override that can't be");

/// Takes up what the script says that overrides are.
pub(super) fn correct(asked: &mut [Asked], found: &Found, beliefs: &Beliefs) -> Result<(), Fault> {
    if found.keys() != asked.len() {
        return Err(Fault::Reply("another number of limits"));
    }
    for (asked, held) in asked.iter_mut().zip(found.held()) {
        if asked.open.is_some() {
            let is = belief(held)?;
            asked.believe(is)?;
            beliefs.learn(asked.terms.print(asked.key), is);
        }
    }
    Ok(())
}

/// What the script says that an override is, if there is one.
fn belief(held: &[u8]) -> Result<Option<Belief>, Fault> {
    match State::all(held).as_deref() {
        Some([]) => Ok(None),
        Some([held]) => Belief::of(*held).map(Some).ok_or(NO_OVERRIDE),
        _ => Err(NO_OVERRIDE),
    }
}

/// What is asked at an instant that is thought to be `now`.
pub(super) fn charges(prefix: &str, task: Task, now: u64, charges: &[Asked]) -> Request {
    let mut request = Request::new(task, charges.len());
    for Asked { terms, key, cost, open } in charges {
        let (key, cost) = (*key, *cost);
        let name = key::name(prefix, terms, key);
        let penalty = terms.penalty().map(|by| (by, key::of_penalty(name.clone())));
        request.limit(name);
        if let Some(open) = open {
            let believed = open.believed.map(Belief::to_bytes);
            request.believe(key::of_override(prefix, terms, key), believed.as_ref().map_or(&[], |bytes| bytes));
        }
        let told = terms.algorithm().capacity();
        let (letter, numbers, edges) = match terms.deciding().twin() {
            Twins::Record(twin) => (twin.letter(), twin.numbers(cost, told), twin.edges(now)),
            Twins::Log(twin) => (twin.letter(), twin.numbers(cost, told), twin.edges(now)),
        };
        let letter = if terms.is_enforced() { letter } else { letter | script::SHADOW };
        let Some((Penalised { penalty, counts, .. }, key)) = penalty else {
            request.rule(letter, None, &numbers);
            request.numbers(&edges);
            continue;
        };
        request.limit(key);
        request.rule(letter - script::PENALISED, None, &numbers);
        request.numbers(&edges);
        request.numbers(&penalty.numbers(*counts));
    }
    request
}

/// Has an override kept for a span of µs, or for good.
pub(super) fn keep(prefix: &str, terms: &Terms, key: KeyHash, size: Size, span: Option<u64>) -> Request {
    let mut request = Request::new(Task::Keep, 1);
    request.limit(key::of_override(prefix, terms, key));
    request.keep(span.map_or([-1.0, 0.0], |span| algorithm::limbs(span.into())), size);
    request
}

/// Has an override removed.
pub(super) fn removal(prefix: &str, terms: &Terms, key: KeyHash) -> Request {
    let mut request = Request::new(Task::Reset, 1);
    request.limit(key::of_override(prefix, terms, key));
    request
}

/// Asks what the override is, by a belief that no key ever bears out.
pub(super) fn look(prefix: &str, terms: &Terms, key: KeyHash, now: u64) -> Request {
    let mut request = Request::new(Task::Peek, 1);
    request.limit(key::name(prefix, terms, key));
    request.believe(key::of_override(prefix, terms, key), &[0]);
    let told = terms.algorithm().capacity();
    let (letter, numbers, edges) = match terms.rule().twin() {
        Twins::Record(twin) => (twin.letter(), twin.numbers(0, told), twin.edges(now)),
        Twins::Log(twin) => (twin.letter(), twin.numbers(0, told), twin.edges(now)),
    };
    request.rule(letter, None, &numbers);
    request.numbers(&edges);
    request
}

/// What the override is, by the reply to a [`look`].
pub(super) fn seen(found: &Found) -> Result<Option<Belief>, Fault> {
    let held = found.held().next().filter(|_| found.is_to_ask_again()).ok_or(NO_OVERRIDE)?;
    belief(held)
}

pub(super) fn refunds(prefix: &str, refunds: &[Refund<'_>]) -> Request {
    let mut request = Request::new(Task::Refund, refunds.len());
    for Refund { terms, key, cost, mark } in refunds {
        request.limit(key::name(prefix, terms, *key));
        let told = terms.algorithm().capacity();
        match terms.deciding().twin() {
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
    found: &Found,
) -> Result<Decision, Fault> {
    let mut decision = Decision::new(Timestamp::from_micros(now), take, charges.len());
    let mut overridden: SmallVec<[Arc<Terms>; 1]> = SmallVec::new();
    read(charges, found, |charge, held, penalty| {
        if charge.terms.is_override() {
            overridden.push(charge.terms.clone());
        }
        let seen = match (charge.terms.deciding().twin(), charge.terms.rule().twin()) {
            (Twins::Record(ceiling), Twins::Record(limit)) => {
                settle(&Soft { limit, ceiling }, ceiling.recall(held)?, now, charge.cost, take)
            }
            (Twins::Log(ceiling), Twins::Log(limit)) => {
                settle(&Soft { limit, ceiling }, ceiling.recall(held)?, now, charge.cost, take)
            }
            _ => unreachable!("overage does not change what is remembered"),
        };
        decision.push(match penalty {
            None => Outcome::new(charge.subject(), seen.0, seen.1, seen.2),
            Some((by, record)) => penalised(&charge, by, seen, record, now, counted),
        });
        Some(())
    })?;
    Ok(if overridden.is_empty() { decision } else { decision.overridden(&overridden) })
}

/// What of a decision says whether it is a denial, and by what.
pub(super) struct Glance {
    pub(super) denies: bool,
    /// The key is refused, whatever room there is.
    pub(super) is_penalty: bool,
}

/// Of each charge, what [`decide`] would say at `now`, without what is left.
pub(super) fn glance<'a>(
    now: u64,
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    found: &Found,
    mut tell: impl FnMut(Charge<'a>, Glance),
) -> Result<(), Fault> {
    read(charges, found, |charge, held, penalty| {
        let has_room = match charge.terms.deciding().twin() {
            _ if charge.cost == 0 => true,
            Twins::Record(rule) => rule.peek(&rule.recall(held)?, now, charge.cost).is_now(),
            Twins::Log(rule) => rule.peek(&rule.recall(held)?, now, charge.cost).is_now(),
        };
        let is_penalty = penalty.is_some_and(|(_, record)| Penalty::left(&record, now) > 0);
        let is_refused = !has_room || (is_penalty && charge.cost > 0);
        tell(charge, Glance { denies: is_refused && charge.terms.is_enforced(), is_penalty });
        Some(())
    })
}

/// Goes through what was `found` of each charge: what its limit's key held, and what the limit's penalty remembers.
fn read<'a>(
    charges: impl ExactSizeIterator<Item = Charge<'a>>,
    found: &Found,
    mut take_up: impl FnMut(Charge<'a>, &[State], Option<(&'a Penalised, Record)>) -> Option<()>,
) -> Result<(), Fault> {
    let mut keys = found.held();
    let mut next = || keys.next().and_then(State::all).ok_or(Fault::Reply("no state"));
    let mut read = 0;
    for charge in charges {
        let held = next()?;
        let penalty = match charge.terms.penalty() {
            None => None,
            Some(by) => Some((by, Penalty::recall(&next()?).ok_or(IMPOSSIBLE)?)),
        };
        read += 1 + usize::from(penalty.is_some());
        take_up(charge, &held, penalty).ok_or(IMPOSSIBLE)?;
    }
    if read == found.keys() { Ok(()) } else { Err(Fault::Reply("another number of keys")) }
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
    asked.iter().any(|Asked { terms, cost, .. }| {
        let changes = held.next().is_some_and(|held| *cost > 0 && terms.ceiling().adopts(&held));
        terms.penalty().is_some().then(|| held.next());
        changes
    })
}

fn settle<S>(rule: &Soft<'_, S>, mut state: S, now: u64, cost: u64, take: bool) -> (Room, Record, Standing) {
    if cost == 0 {
        return (Room::NOW, Record::EMPTY, rule.standing(&state, now));
    }
    let room = rule.peek(&state, now, cost);
    if take && room.is_now() {
        let (mark, standing) = rule.take(&mut state, now, cost);
        return (room, mark, standing);
    }
    rule.adopt(&mut state, now);
    (room, Record::EMPTY, rule.standing(&state, now))
}
