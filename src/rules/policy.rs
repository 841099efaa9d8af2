//! The `rate_limit` blocks of descriptors.

use std::rc::Rc;

use super::allowance::{self, Allowance};
use super::fields::{self, Fields};
use super::penalty;
use super::problem::{Position, Problem};
use super::yaml::{Node, Value};
use crate::algorithm::Penalty;
use crate::limit::OnMissingKey;
use crate::on_store_error::{OnStoreError, Share};

/// A `rate_limit` block.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy {
    /// The requests that are allowed, and the algorithm.
    pub allowance: Allowance,
    /// `name`: the name by which other limits replace this one, and which clients see.
    pub name: Option<String>,
    /// `replaces`: the names of the limits that do not apply where this one does.
    pub replaces: Vec<String>,
    /// `cost`: the cost of each request. Takes precedence over all other costs.
    pub cost: Option<u32>,
    /// `soft`: the overage that is allowed, in percent of the limit.
    pub soft: Option<u32>,
    /// `penalty`: the lockout of keys that are denied too often.
    pub penalty: Option<Penalty>,
    /// `key`: the extractors of the bucket key. If empty, the descriptors' values are the key.
    pub key: Vec<(String, Position)>,
    /// `on_missing_key`: the policy for requests without a key.
    pub on_missing_key: Option<OnMissingKey>,
    /// `on_store_error`, with `nodes`: the policy for requests that the store does not decide.
    pub on_store_error: Option<OnStoreError>,
    /// `overridable`: whether keys can have a size of their own, set at runtime.
    pub overridable: bool,
    /// `shadow_mode` within the block.
    pub shadow_mode: bool,
    /// The position of the block.
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
        | "descriptors" => "it belongs beside `rate_limit`, not in it",
        "unit_multiplier" => "write `period`, as in `period: 5m`, instead of `unit`",
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
        problems.push(Problem::new(at, format!("a limit can't replace itself: write another name than {name:?}")));
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

/// Reads `on_store_error` and `nodes`, which divides the limit of `decide_locally`.
fn on_store_error(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<OnStoreError> {
    let policy = fields.choice("on_store_error", STORE_ERROR, problems);
    let Some(nodes) = allowance::positive(fields, "nodes", problems) else { return policy };
    if !matches!(policy, Some(OnStoreError::DecideLocally(_))) {
        // An invalid policy is reported already.
        if policy.is_some() || fields.lacks("on_store_error") {
            let message = "`nodes` divides a limit among nodes that decide locally: write `on_store_error: decide_locally`, or leave it out";
            problems.push(Problem::new(fields.get("nodes").map_or(fields.at, |node| node.at), message));
        }
        return policy;
    }
    Share::try_one_of(nodes).ok().map(OnStoreError::DecideLocally)
}

/// Reads `soft`: `20` or `20%`.
fn soft(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> (Option<u32>, Position) {
    let Some(node) = fields.get("soft") else { return (None, Position::default()) };
    let percent = match &node.value {
        Value::Scalar { text, .. } => {
            let digits = text.strip_suffix('%').unwrap_or(text).trim_end();
            // `parse` would also accept a sign.
            digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
        }
        _ => None,
    };
    if percent.is_none() {
        let message = format!("`soft` is {}: write the overage in percent of the limit, as in `20%`", node.kind());
        problems.push(Problem::new(node.at, message));
    }
    (percent, node.at)
}

/// Reads `key`: a name, or a list of names.
fn key(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Vec<(String, Position)> {
    let Some(node) = fields.get("key") else { return Vec::new() };
    let names = match &node.value {
        Value::List(items) => items.iter().map(Rc::as_ref).collect(),
        _ => vec![node],
    };
    if names.is_empty() {
        problems.push(Problem::new(node.at, "`key` is an empty list: name at least one extractor, or leave it out"));
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
