//! Requests as the script is handed them, and decisions from what it found.

use std::sync::Arc;

use smallvec::SmallVec;

use super::beliefs::{Belief, Beliefs};
use super::error::Fault;
use super::key;
use super::script::{self, Found, Request, Task};
use crate::algorithm::{self, Exact, Room, Size, Soft, Standing, State, Twins};
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::record::Record;
use crate::store::{Charge, Refund, Terms};
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

const NO_OVERRIDE: Fault = Fault::Reply("an override that can't be");

/// Takes up what the script says that overrides are.
pub(super) fn correct(asked: &mut [Asked], found: &Found, beliefs: &Beliefs) -> Result<(), Fault> {
    if found.limits() != asked.len() {
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

pub(super) fn charges(prefix: &str, task: Task, charges: &[Asked]) -> Request {
    let mut request = Request::new(task, charges.len());
    for Asked { terms, key, cost, open } in charges {
        let (key, cost) = (*key, *cost);
        request.limit(key::name(prefix, terms, key));
        if let Some(open) = open {
            let believed = open.believed.map(Belief::to_bytes);
            request.believe(key::of_override(prefix, terms, key), believed.as_ref().map_or(&[], |bytes| bytes));
        }
        let told = terms.algorithm().capacity();
        let (letter, numbers) = match terms.ceiling().twin() {
            Twins::Record(twin) => (twin.letter(), twin.numbers(cost, told)),
            Twins::Log(twin) => (twin.letter(), twin.numbers(cost, told)),
        };
        request.rule(if terms.is_enforced() { letter } else { letter | script::SHADOW }, None, &numbers);
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
pub(super) fn look(prefix: &str, terms: &Terms, key: KeyHash) -> Request {
    let mut request = Request::new(Task::Peek, 1);
    request.limit(key::name(prefix, terms, key));
    request.believe(key::of_override(prefix, terms, key), &[0]);
    let told = terms.algorithm().capacity();
    let (letter, numbers) = match terms.algorithm().twin() {
        Twins::Record(twin) => (twin.letter(), twin.numbers(0, told)),
        Twins::Log(twin) => (twin.letter(), twin.numbers(0, told)),
    };
    request.rule(letter, None, &numbers);
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
    let take = task == Task::Acquire && found.is_allowed();
    let decision = decide(take, now, asked.iter().map(Asked::charge), found)?;
    if decision.is_allowed() != found.is_allowed() {
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
    let mut decision = Decision::new(Timestamp::from_micros(now), take);
    let mut overridden: SmallVec<[Arc<Terms>; 1]> = SmallVec::new();
    for (charge, held) in charges.zip(found.held()) {
        if charge.terms.is_override() {
            overridden.push(charge.terms.clone());
        }
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
    Ok(decision.overridden(&overridden))
}

fn settle<S>(rule: &Soft<'_, S>, mut state: S, now: u64, cost: u64, take: bool) -> (Room, Record, Standing) {
    let room = if cost == 0 { Room::NOW } else { rule.peek(&state, now, cost) };
    let mark = if take && room.is_now() && cost > 0 { rule.commit(&mut state, now, cost) } else { Record::EMPTY };
    (room, mark, rule.standing(&state, now))
}
