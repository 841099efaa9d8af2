//! Reads the `rate_limit` blocks of descriptors into limits.

use std::time::Duration;

use super::fields::{self, Fields, choose, one_of};
use super::yaml::{Value, YamlNode};
use crate::algorithm::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Refill, Rounding, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};
use crate::error::validation::{DAY, HOUR, MINUTE, SECOND};
use crate::error::{ConfigError, Fault, Position};
use crate::limit::{Limit, OnMissingKey};
use crate::limit::{OnStoreError, Share};

/// A `rate_limit` block.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) at: Position,
    /// The limit, without its final name and key. `None` if it is unlimited.
    pub(super) limit: Option<Limit>,
    /// The name by which other rules replace this one.
    pub(super) name: Option<String>,
    /// The names of the rules that do not apply where this one does.
    pub(super) replaces: Vec<String>,
    /// The extractors of the bucket key, with their positions. If empty, the descriptors' values are the key.
    pub(super) key: Vec<(String, Position)>,
    pub(super) on_missing_key: Option<OnMissingKey>,
    pub(super) soft_at: Position,
}

/// The fields of rules with and without a limit.
const COMMON_FIELDS: &[&str] =
    &["requests_per_unit", "unlimited", "name", "replaces", "shadow_mode", "key", "on_missing_key"];

/// The units of Envoy's service, in which a month has 30 days and a year 365.
const UNITS: &[(&str, Duration)] = &[
    ("second", SECOND),
    ("minute", MINUTE),
    ("hour", HOUR),
    ("day", DAY),
    ("week", DAY.saturating_mul(7)),
    ("month", DAY.saturating_mul(30)),
    ("year", DAY.saturating_mul(365)),
];

const DAYS: &[(&str, Weekday)] = &[
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

const ON_MISSING_KEY: &[(&str, OnMissingKey)] =
    &[("reject", OnMissingKey::Reject), ("skip", OnMissingKey::Skip), ("share", OnMissingKey::Share)];

const ON_STORE_ERROR: &[(&str, OnStoreError)] = &[
    ("reject", OnStoreError::Reject),
    ("allow", OnStoreError::Allow),
    ("decide_locally", OnStoreError::DecideLocally(Share::whole())),
];

impl Rule {
    /// Reads the block of `descriptor`, which has these modes.
    pub(super) fn read(node: &YamlNode, is_shadow: bool, is_quota: bool, descriptor: &Fields<'_>) -> Self {
        let fields = Fields::of(node, "`rate_limit`", fields::LIMIT, descriptor.problems);
        let mut limit = None;
        if fields.flag("unlimited") {
            for name in fields::LIMIT.iter().filter(|name| !COMMON_FIELDS.contains(name)) {
                fields.reject(
                    name,
                    format_args!("an unlimited rule has no `{name}`: leave it out, or leave `unlimited` out"),
                );
            }
        } else {
            limit = Some(read_limit(&fields));
        }
        let is_shadow = fields.flag("shadow_mode") || is_shadow;
        if is_quota && is_shadow {
            let message = "a limit in shadow mode denies nothing, so it can't be in quota mode: \
                           leave out `quota_mode` or `shadow_mode`";
            descriptor.note("quota_mode", message);
        }
        if is_quota && fields.has("penalty") {
            let message = "a limit in quota mode does not deny requests by itself, so it can't have a `penalty`: \
                           leave one of them out";
            descriptor.note("quota_mode", message);
        }
        if is_shadow {
            limit = limit.map(Limit::shadow);
        }
        if is_quota {
            limit = limit.map(Limit::quota_mode);
        }
        let name = fields.text("name").filter(|name| !name.is_empty());
        let replaced = |item| {
            let fields = Fields::of(item, "an item of `replaces`", &["name"], fields.problems);
            let nameless = "an item of `replaces` has no name: write `name: …`, or leave it out";
            let replaced = fields.required("name", nameless);
            if name == Some(replaced) {
                fields.note("name", format!("a limit can't replace itself: write another name than {replaced:?}"));
            }
            replaced.to_owned()
        };
        Self {
            at: fields.at,
            limit,
            name: name.map(str::to_owned),
            replaces: fields.list("replaces").iter().map(|item| replaced(item)).collect(),
            key: key(&fields),
            on_missing_key: fields.choice("on_missing_key", ON_MISSING_KEY),
            soft_at: fields.position("soft"),
        }
    }
}

/// Reads `key`: a name, or a list of names.
fn key(fields: &Fields<'_>) -> Vec<(String, Position)> {
    let names: Vec<&YamlNode> = match fields.get("key") {
        Some(YamlNode { value: Value::List(items), .. }) => items.iter().map(|item| &**item).collect(),
        name => name.into_iter().collect(),
    };
    if names.is_empty() {
        fields.reject("key", "`key` is an empty list: name at least one extractor, or leave it out");
    }
    names
        .into_iter()
        .filter_map(|name| Some((fields.parse_item("key", name, YamlNode::text)?.to_owned(), name.at)))
        .collect()
}

/// Reads a limit, whose name is not known yet.
fn read_limit(fields: &Fields<'_>) -> Limit {
    let tokens = fields.integer("requests_per_unit");
    let algorithm = read_algorithm(fields, tokens);
    let mut limit = Limit::new("unnamed", algorithm.unwrap_or_else(|| FixedWindow::per_second(1).into()));
    if let Some(cost) = fields.integer("cost") {
        if let Some(capacity) = algorithm.map(|algorithm| algorithm.capacity()).filter(|most| u64::from(cost) > *most) {
            let message =
                format!("a `cost` of {cost} can never pass a limit of {capacity}: lower it, or raise the limit");
            fields.note("cost", message);
        }
        limit = limit.cost(cost.into());
    }
    if tokens == Some(0) {
        // A cost over the capacity is always denied.
        limit = limit.cost_by(|_| u64::MAX);
    }
    if let (Some(percent), Some(_)) = (fields.parse("soft", percent), algorithm) {
        limit = limit.soft(percent);
    }
    if let Some(penalty) = read_penalty(fields) {
        limit = limit.penalty(penalty);
    }
    if let Some(policy) = on_store_error(fields) {
        limit = limit.on_store_error(policy);
    }
    if fields.flag("overridable") { limit.overridable() } else { limit }
}

/// Reads a percentage: `20` or `20%`.
fn percent(node: &YamlNode) -> Result<u32, String> {
    let text = node.text().unwrap_or_default();
    let digits = text.strip_suffix('%').unwrap_or(text).trim_end();
    // `parse` would also accept a sign.
    let percent = digits.parse().ok().filter(|_| !digits.starts_with('+'));
    percent.ok_or_else(|| "write the overage in percent of the limit, as in `20%`".to_owned())
}

/// Reads `on_store_error` and `nodes`, which divides the limit of `decide_locally`.
fn on_store_error(fields: &Fields<'_>) -> Option<OnStoreError> {
    let mut policy = fields.choice("on_store_error", ON_STORE_ERROR);
    let nodes = fields.positive("nodes");
    if let Some(OnStoreError::DecideLocally(share)) = &mut policy {
        if let Some(nodes) = nodes {
            *share = fields.check("nodes", Share::try_one_of(nodes))?;
        }
    } else {
        let message = "`nodes` divides a limit among nodes that decide locally: \
                       write `on_store_error: decide_locally`, or leave it out";
        fields.reject("nodes", message);
    }
    policy
}

type SetSpan = fn(Penalty, Duration) -> Result<Penalty, Fault>;

const SPANS: [(&str, SetSpan); 3] = [
    ("locked_out_for", Penalty::checked_locked_out_for),
    ("up_to", Penalty::checked_doubling_up_to),
    ("remembered_for", Penalty::checked_remembered_for),
];

/// Reads the penalty of a limit, if it has one.
fn read_penalty(limit: &Fields<'_>) -> Option<Penalty> {
    let before = limit.problems.len();
    let fields = Fields::of(limit.get("penalty")?, "`penalty`", fields::PENALTY, limit.problems);
    for (name, example) in [("denials", "5"), ("within", "1m")] {
        if fields.lacks(name) {
            fields.note(name, format!("`{name}` is missing: write `{name}: {example}`, for example"));
        }
    }
    let (denials, within) = (fields.integer("denials"), fields.duration("within"));
    let spans = SPANS.map(|(name, set)| (name, fields.duration(name), set));
    if limit.problems.len() > before {
        return None;
    }
    let blamed = if Penalty::try_after(denials?, SECOND).is_err() { "denials" } else { "within" };
    let mut penalty = fields.check(blamed, Penalty::try_after(denials?, within?))?;
    for (name, span, set) in spans {
        if let Some(span) = span {
            penalty = fields.check(name, set(penalty, span).map_err(ConfigError::from))?;
        }
    }
    Some(penalty)
}

/// Creates an algorithm that allows a number of requests in each period, with the options of the fields.
type Build = fn(&Fields<'_>, u32, Duration) -> Result<Algorithm, ConfigError>;

/// The algorithms, with the fields that only some of them have.
const ALGORITHMS: &[(&str, (&[&str], Build))] = &[
    (
        "fixed_window",
        (&["calendar", "starts", "day"], |fields, tokens, period| {
            calendar(fields, tokens)
                .map_or_else(|| Ok(FixedWindow::try_new(tokens, period)?.into()), |window| Ok(window.into()))
        }),
    ),
    (
        "sliding_window",
        (&["buckets"], |fields, tokens, period| {
            let window = SlidingWindow::try_new(tokens, period)?;
            Ok(fields.positive("buckets").map_or(Ok(window), |buckets| window.try_buckets(buckets))?.into())
        }),
    ),
    (
        "sliding_window_counter",
        (&["rounding"], |fields, tokens, period| {
            let rounding = fields.choice("rounding", &[("up", Rounding::Up), ("down", Rounding::Down)]);
            Ok(SlidingWindowCounter::try_new(tokens, period)?.rounding(rounding.unwrap_or_default()).into())
        }),
    ),
    ("sliding_log", (&[], |_, tokens, period| Ok(SlidingLog::try_new(tokens, period)?.into()))),
    (
        "token_bucket",
        (&["burst", "refill"], |fields, tokens, period| {
            let burst = fields.positive("burst").unwrap_or(tokens);
            let refill = fields.choice("refill", &[("continuous", Refill::Continuous), ("interval", Refill::Interval)]);
            Ok(TokenBucket::try_new(burst, tokens, period)?.try_refill(refill.unwrap_or_default())?.into())
        }),
    ),
    (
        "leaky_bucket",
        (&["burst"], |fields, tokens, period| {
            Ok(LeakyBucket::try_new(fields.positive("burst").unwrap_or(tokens), tokens, period)?.into())
        }),
    ),
    (
        "leaky_bucket_queue",
        (&["waiting"], |fields, tokens, period| {
            Ok(LeakyBucketQueue::try_new(fields.positive("waiting").unwrap_or(tokens), tokens, period)?.into())
        }),
    ),
];

/// Reads the algorithm. Returns `None` if a field is wrong, or if all requests are denied.
fn read_algorithm(fields: &Fields<'_>, tokens: Option<u32>) -> Option<Algorithm> {
    let before = fields.problems.len();
    if fields.lacks("requests_per_unit") {
        let message = "`requests_per_unit` is missing: write how many requests are allowed, or write `unlimited: true`";
        fields.note("requests_per_unit", message);
    }
    if tokens == Some(0) && fields.has("algorithm") {
        let message = "`requests_per_unit` is 0: allow at least 1 request, or write `unlimited: true`; \
                       to deny all requests, leave `algorithm` out";
        fields.note("requests_per_unit", message);
    }
    let period = read_period(fields);
    let (own, build) =
        if fields.lacks("algorithm") { ALGORITHMS[0].1 } else { fields.choice("algorithm", ALGORITHMS)? };
    let name = fields.text("algorithm").unwrap_or(ALGORITHMS[0].0);
    for (_, (others, _)) in ALGORITHMS {
        for field in others.iter().filter(|field| !own.contains(field) && fields.has(field)) {
            let owners = ALGORITHMS.iter().filter(|(_, (fields, _))| fields.contains(field));
            let owners: Vec<&str> = owners.map(|(name, _)| *name).collect();
            fields.note(field, format!("{name} has no `{field}`: leave it out, or use {}", one_of(&owners)));
        }
    }
    let built = build(fields, tokens.unwrap_or(1).max(1), period.unwrap_or(SECOND));
    if fields.problems.len() > before {
        return None;
    }
    let blamed = ["buckets", "unit", "period"].into_iter().find(|name| fields.has(name));
    fields.check(blamed.unwrap_or_default(), built).filter(|_| tokens != Some(0))
}

/// Reads `unit` or `period`, whichever exists.
fn read_period(fields: &Fields<'_>) -> Option<Duration> {
    let (mut units, mut otherwise) = (UNITS, ", or `period`, as in `period: 90s`");
    if fields.has("calendar") {
        (units, otherwise) = (&UNITS[3..], ", or leave `calendar` out");
        fields.reject("period", "a calendar has no `period`: use `unit: month`, for example");
    } else if fields.has("unit") {
        fields.reject("period", "`unit` and `period` are both given: keep one");
    }
    if fields.lacks("unit") && fields.lacks("period") {
        fields.note("unit", "`unit` is missing: write `unit: minute`, for example, or `period: 90s`");
    }
    let unit = fields.parse("unit", |node| choose(node, units, otherwise));
    unit.or_else(|| fields.duration("period"))
}

/// Reads a calendar window that allows `limit` requests in each `unit`, if there is a `calendar`.
fn calendar(fields: &Fields<'_>, limit: u32) -> Option<CalendarWindow> {
    let (starts, day) = (fields.choice("starts", DAYS), fields.integer("day"));
    if fields.lacks("calendar") {
        for name in ["starts", "day"] {
            fields.reject(
                name,
                format_args!(
                    "`{name}` needs a calendar: write `calendar: UTC`, or a time zone such as `Europe/Berlin`, \
                     or leave it out"
                ),
            );
        }
        return None;
    }
    let zone = fields.text("calendar")?;
    let unit = fields.text("unit")?.to_ascii_lowercase();
    for (name, owner) in [("starts", "week"), ("day", "month")] {
        if unit != owner {
            fields.reject(name, format_args!("`{name}` needs `unit: {owner}`: leave it out"));
        }
    }
    let mut window = match unit.as_str() {
        "day" => CalendarWindow::daily(limit),
        "week" => CalendarWindow::weekly(limit, starts.unwrap_or_default()),
        "month" => CalendarWindow::monthly(limit),
        _ => CalendarWindow::yearly(limit),
    };
    if let (Some(day), "month") = (day, &*unit) {
        let day = u8::try_from(day).map_err(|_| Fault::DayOfMonth { day }.into());
        window = fields.check("day", day.and_then(|day| window.try_from_day(day)))?;
    }
    fields.check("calendar", in_zone(window, zone))
}

#[cfg(feature = "time-zones")]
fn in_zone(window: CalendarWindow, zone: &str) -> Result<CalendarWindow, ConfigError> {
    window.try_in_zone(zone)
}

#[cfg(not(feature = "time-zones"))]
fn in_zone(window: CalendarWindow, zone: &str) -> Result<CalendarWindow, ConfigError> {
    if zone.eq_ignore_ascii_case("UTC") {
        return Ok(window);
    }
    Err(ConfigError::new(format!("the time zone {zone:?} needs the feature `time-zones`: turn it on, or use \"UTC\"")))
}
