//! What a `rate_limit` block says.

use std::rc::Rc;

use super::allowance::{self, Allowance};
use super::fields::{self, Fields};
use super::penalty;
use super::problem::{Position, Problem};
use super::yaml::{Node, Value};
use crate::algorithm::Penalty;
use crate::limit::OnMissingKey;
use crate::on_store_error::{OnStoreError, Share};

/// What a `rate_limit` block says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// How much is allowed.
    pub allowance: Allowance,
    /// `name`: what others say that they replace, and clients see.
    pub name: Option<String>,
    /// `replaces`: the names of the limits that do not apply where this one does.
    pub replaces: Vec<String>,
    /// `cost`: what each request takes, whatever else says what it costs.
    pub cost: Option<u32>,
    /// `soft`: how many per cent of the limit may be used beyond it.
    pub soft: Option<u32>,
    /// `penalty`: what becomes of those whom the limit denies too often.
    pub penalty: Option<Penalty>,
    /// `key`: the extractors that say whose bucket is charged. Empty: the descriptors' values do.
    pub key: Vec<(String, Position)>,
    /// `on_missing_key`: what becomes of requests that lack what is charged.
    pub on_missing_key: Option<OnMissingKey>,
    /// `on_store_error`, with `nodes`: what becomes of requests that the store does not decide.
    pub on_store_error: Option<OnStoreError>,
    /// `overridable`: whether single keys can be given another size at run time.
    pub overridable: bool,
    /// `shadow_mode`, in here.
    pub shadow_mode: bool,
    /// Where it is.
    pub position: Position,
    pub(super) soft_at: Position,
}

const FIELDS: &[&str] = &[
    "unit",
    "period",
    "requests_per_unit",
    "unlimited",
    "algorithm",
    "burst",
    "refill",
    "buckets",
    "rounding",
    "waiting",
    "calendar",
    "starts",
    "day",
    "name",
    "replaces",
    "cost",
    "soft",
    "penalty",
    "shadow_mode",
    "key",
    "on_missing_key",
    "on_store_error",
    "nodes",
    "overridable",
];

const MISSING: &[(&str, OnMissingKey)] =
    &[("reject", OnMissingKey::Reject), ("skip", OnMissingKey::Skip), ("share", OnMissingKey::Share)];

const STORE_ERROR: &[(&str, OnStoreError)] = &[
    ("reject", OnStoreError::Reject),
    ("allow", OnStoreError::Allow),
    ("decide_locally", OnStoreError::DecideLocally(Share::whole())),
];

impl Policy {
    pub(super) fn read(node: &Node, problems: &mut Vec<Problem>) -> Option<Self> {
        let fields = Fields::of(node, "`rate_limit`", FIELDS, advise, problems)?;
        let allowance = Allowance::read(&fields, problems);
        let name = fields.text("name", problems).map(|(name, _)| name.to_owned()).filter(|name| !name.is_empty());
        let replaces = fields.list("replaces", problems);
        let replaces = replaces.iter().filter_map(|item| replaced(item, name.as_deref(), problems)).collect();
        let (soft, soft_at) = soft(&fields, problems);
        let policy = Self {
            name,
            replaces,
            soft,
            soft_at,
            penalty: penalty::read(&fields, problems),
            cost: cost(&fields, allowance, problems),
            key: key(&fields, problems),
            on_missing_key: fields.choice("on_missing_key", MISSING, problems),
            on_store_error: on_store_error(&fields, problems),
            overridable: fields.flag("overridable", problems),
            shadow_mode: fields.flag("shadow_mode", problems),
            position: fields.at,
            allowance: allowance?,
        };
        Some(policy)
    }
}

fn advise(name: &str) -> Option<String> {
    let advice = match name {
        "quota_mode" | "detailed_metric" | "value_to_metric" | "share_threshold" | "metadata" | "value"
        | "descriptors" => "it belongs beside `rate_limit`, not into it",
        "unit_multiplier" => "write `period`, as in `period: 5m`, in place of `unit`",
        "limit" | "max" | "requests" => "did you mean `requests_per_unit`?",
        "capacity" => "did you mean `burst`?",
        _ => return None,
    };
    Some(advice.to_owned())
}

fn replaced(item: &Rc<Node>, own: Option<&str>, problems: &mut Vec<Problem>) -> Option<String> {
    let fields = Fields::of(item, "an item of `replaces`", &["name"], |_| None, problems)?;
    let (name, at) = fields.text("name", problems).unwrap_or(("", item.at));
    if name.is_empty() {
        problems.push(Problem::new(at, "an item of `replaces` has no name: write `name: …`, or leave it out"));
        return None;
    }
    if own == Some(name) {
        problems.push(Problem::new(at, format!("a limit can't replace itself: name another than {name:?}")));
        return None;
    }
    Some(name.to_owned())
}

fn cost(fields: &Fields<'_>, allowance: Option<Allowance>, problems: &mut Vec<Problem>) -> Option<u32> {
    let (cost, at) = fields.integer("cost", problems)?;
    if let Some(Allowance::Limited(algorithm)) = allowance {
        let capacity = algorithm.capacity();
        if u64::from(cost) > capacity {
            let message =
                format!("a `cost` of {cost} can never pass a limit of {capacity}: lower it, or raise the limit");
            problems.push(Problem::new(at, message));
        }
    }
    Some(cost)
}

/// What becomes of requests that the store does not decide; each of `nodes` decides by its part.
fn on_store_error(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<OnStoreError> {
    let policy = fields.choice("on_store_error", STORE_ERROR, problems);
    let Some(nodes) = allowance::positive(fields, "nodes", problems) else { return policy };
    if !matches!(policy, Some(OnStoreError::DecideLocally(_))) {
        // If the policy was wrong, that is said already.
        if policy.is_some() || fields.lacks("on_store_error") {
            let message = "`nodes` says what is a node's part: write `on_store_error: decide_locally`, or leave it out";
            problems.push(Problem::new(fields.get("nodes").map_or(fields.at, |node| node.at), message));
        }
        return policy;
    }
    Share::try_one_of(nodes).ok().map(OnStoreError::DecideLocally)
}

/// `20` or `20%`.
fn soft(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> (Option<u32>, Position) {
    let Some(node) = fields.get("soft") else { return (None, Position::default()) };
    let percent = match &node.value {
        Value::Scalar { text, .. } => {
            let digits = text.strip_suffix('%').unwrap_or(text).trim_end();
            // `parse` would also take a sign.
            digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
        }
        _ => None,
    };
    if percent.is_none() {
        let message =
            format!("`soft` is {}: write how many per cent may be used beyond the limit, as in `20%`", node.kind());
        problems.push(Problem::new(node.at, message));
    }
    (percent, node.at)
}

/// A name, or a list of names.
fn key(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<(String, Position)> {
    let Some(node) = fields.get("key") else { return Vec::new() };
    let names = match &node.value {
        Value::List(items) => items.iter().map(Rc::as_ref).collect(),
        _ => vec![node],
    };
    if names.is_empty() {
        problems.push(Problem::new(node.at, "`key` is an empty list: name what is charged, or leave it out"));
    }
    let mut read = Vec::new();
    for node in names {
        match fields::text(node, "key") {
            Ok(name) => read.push((name.to_owned(), node.at)),
            Err(problem) => problems.push(problem),
        }
    }
    read
}
