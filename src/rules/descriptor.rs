//! The descriptors of a file.

use std::rc::Rc;

use super::fields::Fields;
use super::pattern::Pattern;
use super::policy::Policy;
use super::problem::{Position, Problem};
use super::yaml::Node;

/// A descriptor: what a request has to have, which limit it then meets, and what else it may have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Descriptor {
    /// The name of an extractor.
    pub key: String,
    /// What it has to find.
    pub value: Wanted,
    /// The limit of the requests that meet this descriptor and those around it. `None`: no limit.
    pub rate_limit: Option<Policy>,
    /// The descriptors within it.
    pub descriptors: Vec<Descriptor>,
    /// The limit is decided and reported, but not enforced.
    pub shadow_mode: bool,
    /// The limit denies a request only if no other limit in quota mode that applies to it has room.
    pub quota_mode: bool,
    /// All values that fit the pattern share a bucket.
    pub share_threshold: bool,
    /// Metrics tell all values apart.
    pub detailed_metric: bool,
    /// Metrics tell the values of this descriptor apart.
    pub value_to_metric: bool,
    /// Where its key is.
    pub position: Position,
    /// Where its value is, or its key.
    pub value_position: Position,
}

/// Which values of a key are meant.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Wanted {
    /// Any, each with a bucket of its own.
    Any,
    /// This one.
    Exactly(String),
    /// Those that fit, each with a bucket of its own unless they share a threshold.
    Like(Pattern),
}

const FIELDS: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "quota_mode",
    "metadata",
];

impl Descriptor {
    /// The descriptors of a list, which belong together: no two of them want the same.
    pub(super) fn read_all(nodes: &[Rc<Node>], problems: &mut Vec<Problem>) -> Vec<Self> {
        let mut read: Vec<Self> = Vec::new();
        // By what they want, not one by one: lists are long where each customer has a limit.
        let mut known = std::collections::HashMap::new();
        for node in nodes {
            let Some(descriptor) = Self::read(node, problems) else { continue };
            let Position { line, .. } = descriptor.position;
            let wants = (descriptor.key.clone(), descriptor.value.as_str().map(str::to_owned));
            if let Some(first) = known.insert(wants, line) {
                let Self { key, value, .. } = &descriptor;
                let what = value.as_str().map_or_else(|| format!("`{key}`"), |value| format!("`{key}` = {value:?}"));
                let message = format!("{what} is here twice, first on line {first}: keep one");
                problems.push(Problem::new(descriptor.value_position, message));
            }
            read.push(descriptor);
        }
        read
    }

    fn read(node: &Node, problems: &mut Vec<Problem>) -> Option<Self> {
        let fields = Fields::of(node, "a descriptor", FIELDS, advise, problems)?;
        let otherwise = "a descriptor has no key: write `key: remote_address`, for example";
        let key = fields.required("key", otherwise, problems);
        let value = fields.text("value", problems).filter(|(value, _)| !value.is_empty());
        let share_threshold = fields.flag("share_threshold", problems);
        let wanted = match value {
            None => Wanted::Any,
            Some((text, _)) => Pattern::of(text).map_or_else(|| Wanted::Exactly(text.to_owned()), Wanted::Like),
        };
        if let Some(node) = fields.get("share_threshold").filter(|_| share_threshold)
            && !matches!(wanted, Wanted::Like(_))
        {
            let message = "only values with a `*` can share a threshold: add one to `value`, or leave this out";
            problems.push(Problem::new(node.at, message));
        }
        let rate_limit = fields.written("rate_limit").and_then(|node| {
            if node.is_null() {
                let message = "`rate_limit` is empty: say how many requests are allowed, or leave it out for no limit";
                problems.push(Problem::new(node.at, message));
                return None;
            }
            Policy::read(node, problems)
        });
        let descriptors = Self::read_all(fields.list("descriptors", problems), problems);
        let quota_mode = fields.flag("quota_mode", problems);
        let shadow_mode = fields.flag("shadow_mode", problems);
        if let Some(node) = fields.get("quota_mode").filter(|_| quota_mode) {
            let is_shadow = shadow_mode || rate_limit.as_ref().is_some_and(|policy| policy.shadow_mode);
            if is_shadow {
                let message = "a limit in shadow mode denies nothing, and can't be one of the quotas that deny a \
                               request together: leave out `quota_mode` or `shadow_mode`";
                problems.push(Problem::new(node.at, message));
            }
            if rate_limit.as_ref().is_some_and(|policy| policy.penalty.is_some()) {
                let message = "a limit in quota mode does not deny requests by itself, so it can't have a `penalty`: \
                               leave one out";
                problems.push(Problem::new(node.at, message));
            }
        }
        let (key, position) = key?;
        Some(Self {
            key: key.to_owned(),
            value: wanted,
            rate_limit,
            descriptors,
            shadow_mode,
            quota_mode,
            share_threshold,
            detailed_metric: fields.flag("detailed_metric", problems),
            value_to_metric: fields.flag("value_to_metric", problems),
            position,
            value_position: value.map_or(position, |(_, at)| at),
        })
    }

    /// Whether its limit is not enforced, wherever that is said.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow_mode || self.rate_limit.as_ref().is_some_and(|policy| policy.shadow_mode)
    }
}

impl Wanted {
    /// The text that was written, if there is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exactly(text) => Some(text),
            Self::Like(pattern) => Some(pattern.as_str()),
        }
    }
}

fn advise(name: &str) -> Option<String> {
    let advice = match name {
        "unit" | "requests_per_unit" | "unlimited" | "name" | "replaces" | "algorithm" | "period" | "burst"
        | "refill" | "buckets" | "rounding" | "waiting" | "calendar" | "starts" | "day" | "cost" | "soft"
        | "penalty" | "on_missing_key" | "on_store_error" | "nodes" | "overridable" => "it belongs into `rate_limit`",
        "domain" => "it belongs at the top of the file",
        _ => return None,
    };
    Some(advice.to_owned())
}
