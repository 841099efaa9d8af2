//! Encodes charges, refunds, resets and overrides as requests to the script.

use std::sync::Arc;

use super::override_cache::CachedOverride;
use super::prepared::{INVALID_OVERRIDE, PreparedCharge, parse_override};
use crate::algorithm::Size;
use crate::hash::KeyHash;
use crate::store::redis::error::Fault;
use crate::store::redis::key;
use crate::store::redis::limit_encoding::limit_args;
use crate::store::redis::script::{LimitArgs, Mode, Reply, Request, Task, args};
use crate::store::{LimitSpec, Refund};

/// Encodes the decision on `charges` at about `now` (in µs).
pub(in crate::store::redis) fn decide(prefix: &str, task: Task, now: u64, charges: &[PreparedCharge]) -> Request {
    if let ([charge], Task::Acquire) = (charges, task)
        && let Some(template) = charge.template()
    {
        return Request::from_template(template, key::name(prefix, &charge.spec, charge.key));
    }
    let mut request = Request::new(task, charges.len());
    for charge in charges {
        let &PreparedCharge { ref spec, key, cost, ref overridable } = charge;
        let name = key::name(prefix, spec, key);
        if let Some(template) = charge.template() {
            request.limit_from_template(&template, name);
            continue;
        }
        let expected = overridable.as_ref().map(|it| it.expected.map(CachedOverride::to_bytes));
        let expected = expected.as_ref().map(|bytes| bytes.as_ref().map_or(&[][..], |bytes| bytes));
        let penalty =
            spec.penalty().map(|by| (key::of_penalty(name.clone()), args::penalty(by, spec.counts_strikes())));
        request.limit(LimitArgs {
            expected_override: expected.map(|expected| (key::of_override(prefix, spec, key), expected)),
            penalty,
            ..limit_args(spec, cost, now, name)
        });
    }
    request
}

/// Encodes refunds.
pub(in crate::store::redis) fn refund(prefix: &str, refunds: &[Refund<'_>]) -> Request {
    let mut request = Request::new(Task::Refund, refunds.len());
    for Refund { spec, key, cost, mark } in refunds {
        let rule = spec.algorithm();
        // Refunds do not depend on the instant.
        let numbers = args::args(rule, *cost, 0);
        request.refund(key::name(prefix, spec, *key), args::tag(rule), *mark, &numbers);
    }
    request
}

/// Encodes the removal of the state of `keys`, and of their penalties.
pub(in crate::store::redis) fn reset(prefix: &str, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> Request {
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

/// Encodes setting an override, for a span of µs or without expiry.
pub(in crate::store::redis) fn set_override(
    prefix: &str,
    spec: &LimitSpec,
    key: KeyHash,
    size: Size,
    span: Option<u64>,
) -> Request {
    let mut request = Request::new(Task::SetOverride, 1);
    let span = span.map_or(-1.0, |span| span as f64);
    request.set_override(key::of_override(prefix, spec, key), span, size);
    request
}

/// Encodes the removal of an override.
pub(in crate::store::redis) fn remove_override(prefix: &str, spec: &LimitSpec, key: KeyHash) -> Request {
    let mut request = Request::new(Task::Reset, 1);
    request.key(key::of_override(prefix, spec, key));
    request
}

/// Encodes reading an override. It expects one that no key ever holds, so that the script replies with the actual one.
pub(in crate::store::redis) fn get_override(prefix: &str, spec: &LimitSpec, key: KeyHash, now: u64) -> Request {
    let mut request = Request::new(Task::Peek, 1);
    let limit = limit_args(spec, 0, now, key::name(prefix, spec, key));
    let expected_override = Some((key::of_override(prefix, spec, key), &[0][..]));
    request.limit(LimitArgs { mode: Mode::Enforced, expected_override, ..limit });
    request
}

/// Parses the reply to [`get_override`].
pub(in crate::store::redis) fn parse_get_override(reply: &Reply) -> Result<Option<CachedOverride>, Fault> {
    let states = reply.states().next().filter(|_| reply.has_override_changed()).ok_or(INVALID_OVERRIDE)?;
    parse_override(states)
}
