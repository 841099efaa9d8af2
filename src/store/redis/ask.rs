//! Requests as the script is handed them.

use std::sync::Arc;

use super::beliefs::{Belief, Beliefs};
use super::error::Fault;
use super::key;
use super::limit_data::LimitData;
use super::script::codec::{Codec, StoredState, split_micros};
use super::script::{self, LimitArgs, Mode, Reply, Request, Task};
use crate::algorithm::{Algorithm, Size};
use crate::hash::KeyHash;
use crate::store::{Charge, LimitSpec, Refund};

/// A [`Charge`] that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Of the limit's size for the key.
    spec: Arc<LimitSpec>,
    key: KeyHash,
    cost: u64,
    /// Where the store may hold another size.
    open: Option<Box<Open>>,
}

/// A limit whose size for a key is a matter of belief.
#[derive(Clone, Debug)]
struct Open {
    /// Its own spec.
    spec: Arc<LimitSpec>,
    believed: Option<Belief>,
}

impl Asked {
    pub(super) fn new(charge: &Charge<'_>, beliefs: &Beliefs) -> Self {
        let &Charge { spec, key, cost } = charge;
        let mut asked = Self { spec: spec.clone(), key, cost, open: None };
        if spec.is_overridable() {
            let believed = beliefs.of(spec.fingerprint(key));
            asked.open = Some(Box::new(Open { spec: spec.clone(), believed: None }));
            // What can't be is for the script to say.
            let _ = asked.believe(believed);
        }
        asked
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { spec: &self.spec, key: self.key, cost: self.cost }
    }

    pub(super) fn is_of_a_calendar(&self) -> bool {
        matches!(self.spec.algorithm(), Algorithm::CalendarWindow(_))
    }

    /// The instant from which it would be of another size, where there is one.
    pub(super) fn until(&self) -> Option<u64> {
        let believed = self.open.as_ref()?.believed?;
        (believed.until > 0).then_some(believed.until)
    }

    /// The arguments of a charge of one token, if they are the same for every key.
    fn shared_args(&self) -> Option<Arc<[u8]>> {
        if self.cost != 1 || self.open.is_some() {
            return None;
        }
        LimitData::of(&self.spec).args_of_one.clone()
    }

    fn believe(&mut self, believed: Option<Belief>) -> Result<(), Fault> {
        let Some(open) = &mut self.open else { return Ok(()) };
        self.spec = match believed {
            None => open.spec.clone(),
            Some(belief) => Arc::new(open.spec.with_override(belief.size).ok_or(NO_OVERRIDE)?),
        };
        open.believed = believed;
        Ok(())
    }
}

const NO_OVERRIDE: Fault = Fault::Reply("an override that can't be");

/// Takes up what the script says that overrides are.
pub(super) fn correct(asked: &mut [Asked], found: &Reply, beliefs: &Beliefs) -> Result<(), Fault> {
    if found.keys() != asked.len() {
        return Err(Fault::Reply("another number of limits"));
    }
    for (asked, held) in asked.iter_mut().zip(found.states()) {
        if asked.open.is_some() {
            let is = belief(held)?;
            asked.believe(is)?;
            beliefs.learn(asked.spec.fingerprint(asked.key), is);
        }
    }
    Ok(())
}

/// What the script says that an override is, if there is one.
fn belief(held: &[u8]) -> Result<Option<Belief>, Fault> {
    match StoredState::parse_all(held).as_deref() {
        Some([]) => Ok(None),
        Some([held]) => Belief::of(*held).map(Some).ok_or(NO_OVERRIDE),
        _ => Err(NO_OVERRIDE),
    }
}

/// What is asked at an instant that is thought to be `now`.
pub(super) fn charges(prefix: &str, task: Task, now: u64, charges: &[Asked]) -> Request {
    if let ([asked], Task::Acquire) = (charges, task)
        && let Some(template) = asked.shared_args()
    {
        return Request::from_template(template, key::name(prefix, &asked.spec, asked.key));
    }
    let mut request = Request::new(task, charges.len());
    for asked in charges {
        let &Asked { ref spec, key, cost, ref open } = asked;
        let name = key::name(prefix, spec, key);
        if let Some(template) = asked.shared_args() {
            request.limit_from_template(&template, name);
            continue;
        }
        let believed = open.as_ref().map(|open| open.believed.map(Belief::to_bytes));
        let expected = believed.as_ref().map(|believed| believed.as_ref().map_or(&[][..], |bytes| bytes));
        let penalty = spec
            .penalty()
            .map(|by| (key::of_penalty(name.clone()), script::codec::penalty::args(by, spec.counts_strikes())));
        request.limit(LimitArgs {
            expected_override: expected.map(|expected| (key::of_override(prefix, spec, key), expected)),
            penalty,
            ..limit_args(spec, cost, now, name)
        });
    }
    request
}

/// The arguments of a charge of one token, unless they depend on the key or the time.
pub(super) fn args_of_one(spec: &LimitSpec) -> Option<Arc<[u8]>> {
    if spec.penalty().is_some() || matches!(spec.algorithm(), Algorithm::CalendarWindow(_)) {
        return None;
    }
    let mut request = Request::new(Task::Acquire, 1);
    request.limit(limit_args(spec, 1, 0, String::new()));
    Some(request.into_template())
}

/// A limit that is charged `cost` at about `now`, without its override and penalty.
fn limit_args(spec: &LimitSpec, cost: u64, now: u64, key: String) -> LimitArgs<'static> {
    let codec = Codec::of(spec.rule().deciding());
    let mode = match spec {
        _ if !spec.is_enforced() => Mode::Shadow,
        _ if spec.is_quota() => Mode::Quota,
        _ => Mode::Enforced,
    };
    let mut args = codec.args(cost, spec.algorithm().capacity());
    args.extend(codec.args_at(now));
    LimitArgs { tag: codec.tag(), mode, key, args, expected_override: None, penalty: None }
}

/// Has an override kept for a span of µs, or for good.
pub(super) fn keep(prefix: &str, spec: &LimitSpec, key: KeyHash, size: Size, span: Option<u64>) -> Request {
    let mut request = Request::new(Task::SetOverride, 1);
    let span = span.map_or([-1.0, 0.0], |span| split_micros(span.into()));
    request.set_override(key::of_override(prefix, spec, key), span, size);
    request
}

/// Has an override removed.
pub(super) fn removal(prefix: &str, spec: &LimitSpec, key: KeyHash) -> Request {
    let mut request = Request::new(Task::Reset, 1);
    request.key(key::of_override(prefix, spec, key));
    request
}

/// Asks what the override is, by a belief that no key ever bears out.
pub(super) fn look(prefix: &str, spec: &LimitSpec, key: KeyHash, now: u64) -> Request {
    let mut request = Request::new(Task::Peek, 1);
    let limit = limit_args(spec, 0, now, key::name(prefix, spec, key));
    let expected_override = Some((key::of_override(prefix, spec, key), &[0][..]));
    request.limit(LimitArgs { mode: Mode::Enforced, expected_override, ..limit });
    request
}

/// What the override is, by the reply to a [`look`].
pub(super) fn seen(found: &Reply) -> Result<Option<Belief>, Fault> {
    let held = found.states().next().filter(|_| found.has_override_changed()).ok_or(NO_OVERRIDE)?;
    belief(held)
}

pub(super) fn refunds(prefix: &str, refunds: &[Refund<'_>]) -> Request {
    let mut request = Request::new(Task::Refund, refunds.len());
    for Refund { spec, key, cost, mark } in refunds {
        let codec = Codec::of(spec.rule().deciding());
        let mut args = codec.args(*cost, spec.algorithm().capacity());
        // Nothing of a window that has ended is given back, so that it does not matter which one is current.
        args.extend(codec.args_at(0));
        request.refund(key::name(prefix, spec, *key), codec.tag(), codec.encode_mark(mark), &args);
    }
    request
}

pub(super) fn resets(prefix: &str, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> Request {
    let penalties = keys.iter().filter(|(spec, _)| spec.penalty().is_some()).count();
    let mut request = Request::new(Task::Reset, keys.len() + penalties);
    for &(spec, key) in keys {
        let name = key::name(prefix, spec, key);
        if spec.penalty().is_some() {
            request.key(key::of_penalty(name.clone()));
        }
        request.key(name);
    }
    request
}
