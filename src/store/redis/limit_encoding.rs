//! The parts of a limit's keys and requests that are the same for all of its keys.

use std::sync::Arc;

use super::script::{LimitArgs, Mode, Request, Task, args};
use crate::algorithm::Kind;
use crate::store::LimitSpec;
use crate::store::key_name::escape;

/// A limit's encoding, computed once per limit.
pub(super) struct LimitEncoding {
    /// The part of key names that follows the hash.
    pub(super) key_suffix: String,
    /// The encoded charge of one token, unless its arguments depend on the key or the time.
    pub(super) template: Option<Arc<[u8]>>,
}

impl LimitEncoding {
    pub(super) fn of(spec: &LimitSpec) -> Arc<Self> {
        spec.store_data(|| Self { key_suffix: key_suffix(spec), template: template(spec) })
    }
}

fn key_suffix(spec: &LimitSpec) -> String {
    let (algorithm, name) = (spec.algorithm(), escape(spec.name()));
    format!("}}:{name}:{}{}", algorithm.tag(), algorithm.state_period())
}

fn template(spec: &LimitSpec) -> Option<Arc<[u8]>> {
    if spec.penalty().is_some() || matches!(spec.algorithm().kind, Kind::CalendarWindow(_)) {
        return None;
    }
    let mut request = Request::new(Task::Acquire, 1);
    request.limit(limit_args(spec, 1, 0, String::new()));
    Some(request.into_template())
}

/// Returns the arguments of a limit that is charged `cost` at about `now` (in µs), without its override and penalty.
pub(super) fn limit_args(spec: &LimitSpec, cost: u64, now: u64, key: String) -> LimitArgs<'static> {
    let rule = spec.algorithm();
    let mode = match spec {
        _ if !spec.is_enforced() => Mode::Shadow,
        _ if spec.is_quota() => Mode::Quota,
        _ => Mode::Enforced,
    };
    let numbers = args::args(rule, cost, now);
    LimitArgs { tag: args::tag(rule), mode, key, args: numbers, expected_override: None, penalty: None }
}
