//! The descriptors of a file.

use std::rc::Rc;

use super::fields::Fields;
use super::pattern::Pattern;
use super::policy::Policy;
use super::problem::{Position, Problem};
use super::yaml::Node;

/// A descriptor: the value that a request must have, the limit that then applies, and nested descriptors.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Descriptor {
    /// The name of an extractor.
    pub key: String,
    /// The values that it matches.
    pub value: ValueMatcher,
    /// The limit of requests that match this descriptor and those around it. `None` for no limit.
    pub rate_limit: Option<Policy>,
    /// The nested descriptors.
    pub descriptors: Vec<Descriptor>,
    /// Whether the limit is decided and reported, but not enforced.
    pub shadow_mode: bool,
    /// Whether the limit denies a request only if no other limit in quota mode that applies to it has capacity.
    pub quota_mode: bool,
    /// Whether all values that match the pattern share a bucket.
    pub share_threshold: bool,
    /// Whether metrics are split by all values.
    pub detailed_metric: bool,
    /// Whether metrics are split by the values of this descriptor.
    pub value_to_metric: bool,
    /// The position of its key.
    pub position: Position,
    /// The position of its value, or of its key if it has none.
    pub value_position: Position,
}

/// The values that a descriptor matches.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ValueMatcher {
    /// Matches any value. Each has its own bucket.
    Any,
    /// Matches this value.
    Exact(String),
    /// Matches by a pattern. Each value has its own bucket unless they share a threshold.
    Pattern(Pattern),
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
    /// Reads the descriptors of a list, which must not have duplicates.
    pub(super) fn read_all(nodes: &[Rc<Node>], problems: &mut Vec<Problem>) -> Vec<Self> {
        let mut read: Vec<Self> = Vec::new();
        // By key and value, because lists are long if each customer has a limit.
        let mut known = std::collections::HashMap::new();
        for node in nodes {
            let Some(descriptor) = Self::read(node, problems) else { continue };
            let Position { line, .. } = descriptor.position;
            let id = (descriptor.key.clone(), descriptor.value.as_str().map(str::to_owned));
            if let Some(first) = known.insert(id, line) {
                let Self { key, value, .. } = &descriptor;
                let what = value.as_str().map_or_else(|| format!("`{key}`"), |value| format!("`{key}` = {value:?}"));
                let message = format!("{what} is defined twice, first on line {first}: keep one");
                problems.push(Problem::new(descriptor.value_position, message));
            }
            read.push(descriptor);
        }
        read
    }

    fn read(node: &Node, problems: &mut Vec<Problem>) -> Option<Self> {
        let fields = Fields::of(node, "a descriptor", FIELDS, advise, problems)?;
        let missing = "a descriptor has no key: write `key: remote_address`, for example";
        let key = fields.required("key", missing, problems);
        let value = fields.text("value", problems).filter(|(value, _)| !value.is_empty());
        let share_threshold = fields.flag("share_threshold", problems);
        let matcher = match value {
            None => ValueMatcher::Any,
            Some((text, _)) => {
                Pattern::parse(text).map_or_else(|| ValueMatcher::Exact(text.to_owned()), ValueMatcher::Pattern)
            }
        };
        if let Some(node) = fields.get("share_threshold").filter(|_| share_threshold)
            && !matches!(matcher, ValueMatcher::Pattern(_))
        {
            let message = "only values with a `*` can share a threshold: add one to `value`, or leave this out";
            problems.push(Problem::new(node.at, message));
        }
        let rate_limit = fields.written("rate_limit").and_then(|node| {
            if node.is_null() {
                let message =
                    "`rate_limit` is empty: write how many requests are allowed, or leave it out for no limit";
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
                let message = "a limit in shadow mode denies nothing, so it can't be in quota mode: leave out `quota_mode` or \
                               `shadow_mode`";
                problems.push(Problem::new(node.at, message));
            }
            if rate_limit.as_ref().is_some_and(|policy| policy.penalty.is_some()) {
                let message = "a limit in quota mode does not deny requests by itself, so it can't have a `penalty`: \
                               leave one of them out";
                problems.push(Problem::new(node.at, message));
            }
        }
        let (key, position) = key?;
        Some(Self {
            key: key.to_owned(),
            value: matcher,
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

    /// Returns whether the limit is in shadow mode, by the descriptor or by its `rate_limit` block.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow_mode || self.rate_limit.as_ref().is_some_and(|policy| policy.shadow_mode)
    }
}

impl ValueMatcher {
    /// Returns the value as written in the file, if there is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Exact(text) => Some(text),
            Self::Pattern(pattern) => Some(pattern.as_str()),
        }
    }
}

fn advise(name: &str) -> Option<String> {
    let advice = match name {
        "unit" | "requests_per_unit" | "unlimited" | "name" | "replaces" | "algorithm" | "period" | "burst"
        | "refill" | "buckets" | "rounding" | "waiting" | "calendar" | "starts" | "day" | "cost" | "soft"
        | "penalty" | "on_missing_key" | "on_store_error" | "nodes" | "overridable" => "it belongs in `rate_limit`",
        "domain" => "it belongs at the top of the file",
        _ => return None,
    };
    Some(advice.to_owned())
}
