//! Reads the `rate_limit` blocks of descriptors into limits.

use std::slice;
use std::time::Duration;

use super::error::Problem;
use super::fields::{self, SECOND_LIMIT, one_of};
use super::yaml::{YamlNode, YamlValue};
use crate::algorithm::{
    Algorithm, CalendarWindow, Concurrency, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Rounding, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};
use crate::error::validation::{self, DAY, HOUR, MINUTE, SECOND};
use crate::error::{Fault, Position};
use crate::limit::{Limit, OnMissingKey, OnStoreError, Share};

/// A `rate_limit` block.
pub(super) struct Rule<'a> {
    pub(super) node: &'a YamlNode,
    /// The limit, without its final name and key. `None` if it is unlimited.
    pub(super) limit: Option<Limit>,
    /// The name by which other rules replace this one.
    pub(super) name: Option<&'a str>,
    /// The names of the rules that do not apply where this one does, with their positions.
    pub(super) replaces: Vec<(&'a str, Position)>,
    /// The extractors of the bucket key, with their positions. If empty, the descriptors' values are the key.
    pub(super) key: Vec<(&'a str, Position)>,
    pub(super) on_missing_key: Option<OnMissingKey>,
}

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

impl<'a> Rule<'a> {
    /// Reads the `rate_limit` of a descriptor, if it has one.
    pub(super) fn read(descriptor: &'a YamlNode) -> Result<Option<Self>, Problem> {
        let (is_shadow, is_quota) = (descriptor.flag("shadow_mode")?, descriptor.flag("quota_mode")?);
        let Some(rule) = descriptor.written("rate_limit") else { return Ok(None) };
        let of_limits = [fields::RATE, fields::CONCURRENCY, fields::LIMIT].concat();
        rule.check_fields("`rate_limit`", &[&of_limits, fields::RULE].concat())?;
        let is_shadow = rule.flag("shadow_mode")? || is_shadow;
        let message = "a limit in shadow mode denies nothing, so it can't be in quota mode: \
                       leave out `quota_mode` or `shadow_mode`";
        descriptor.reject_if(is_quota && is_shadow, "quota_mode", message)?;
        let message = "a limit in quota mode does not deny requests by itself, so it can't have a `penalty`: \
                       leave one of them out";
        descriptor.reject_if(is_quota && rule.has("penalty"), "quota_mode", message)?;
        let message = "requests return what they take of `concurrent`, so it can't be a quota: leave one of them out";
        descriptor.reject_if(is_quota && rule.has("concurrent"), "quota_mode", message)?;
        let is_unlimited = rule.flag("unlimited")?;
        for name in of_limits {
            rule.reject_if(
                is_unlimited,
                name,
                format_args!("an unlimited rule has no `{name}`: leave it out, or leave `unlimited` out"),
            )?;
        }
        let limit = (!is_unlimited).then(|| read_limit(rule, is_shadow, is_quota)).transpose()?;
        let name = rule.text("name")?;
        let mut replaces = Vec::new();
        for item in rule.list("replaces")? {
            item.check_fields("an item of `replaces`", &["name"])?;
            let nameless = "an item of `replaces` has no name: write `name: …`, or leave it out";
            let replaced = item.required("name", nameless)?;
            let message = format!("a limit can't replace itself: write another name than {replaced:?}");
            item.reject_if(name == Some(replaced), "name", message)?;
            replaces.push((replaced, item.position("name")));
        }
        Ok(Some(Self {
            node: rule,
            limit,
            name,
            replaces,
            key: read_key(rule)?,
            on_missing_key: rule.choice("on_missing_key", ON_MISSING_KEY, "")?,
        }))
    }
}

/// Reads `key`: a name, or a list of names.
fn read_key(rule: &YamlNode) -> Result<Vec<(&str, Position)>, Problem> {
    let key = rule.get("key");
    let names = match key.map(|key| &key.value) {
        Some(YamlValue::List(names)) => names,
        _ => key.map(slice::from_ref).unwrap_or_default(),
    };
    let message = "`key` is an empty list: name at least one extractor, or leave it out";
    rule.reject_if(names.is_empty(), "key", message)?;
    names.iter().map(|name| Ok((name.parse_as("key", YamlNode::as_text)?, name.at))).collect()
}

/// Reads a limit, whose name is not known yet.
fn read_limit(rule: &YamlNode, is_shadow: bool, is_quota: bool) -> Result<Limit, Problem> {
    let slots = read_concurrency(rule)?;
    let algorithm = slots.map_or_else(|| read_rate(rule), |slots| Ok(slots.into()))?;
    let mut limit = Limit::new("unnamed", algorithm);
    let (cost, overage) = (rule.integer("cost")?, rule.parse("soft", percent)?);
    limit.is_overridable = rule.flag("overridable")?;
    if algorithm.capacity() == 0 {
        // A cost over the capacity is always denied.
        limit = limit.cost_by(|_| u64::MAX);
    } else if let Some(cost) = cost.map(u64::from) {
        let capacity = algorithm.with_overage(overage.unwrap_or_default()).hard_capacity();
        let message = format!("a `cost` of {cost} can never pass a limit of {capacity}: lower it, or raise the limit");
        rule.reject_if(cost > capacity && !limit.is_overridable, "cost", message)?;
        limit = limit.cost(cost);
    }
    limit.lease = rule.duration("lease")?;
    limit.longest_hold = rule.duration("longest_hold")?;
    limit.is_until_head = rule.choice("until", &[("body", false), ("head", true)], "")?.unwrap_or_default();
    (limit.is_shadow, limit.is_quota) = (is_shadow, is_quota);
    (limit.overage, limit.debt) = (overage, rule.parse("debt", percent)?);
    limit.penalty = read_penalty(rule)?;
    limit.on_store_error = read_store_error_policy(rule)?;
    Ok(limit)
}

/// Reads a percentage: `20` or `20%`.
fn percent(node: &YamlNode) -> Result<u32, String> {
    let text = node.as_text().unwrap_or_default();
    let digits = text.strip_suffix('%').unwrap_or(text).trim_end();
    // `parse` would also accept a sign.
    let percent = digits.parse().ok().filter(|_| !digits.starts_with('+'));
    percent.ok_or_else(|| "write a percentage, as in `20%`".to_owned())
}

/// Reads `on_store_error` and `nodes`, which divides the limit of `decide_locally`.
fn read_store_error_policy(rule: &YamlNode) -> Result<Option<OnStoreError>, Problem> {
    let policy = rule.choice("on_store_error", ON_STORE_ERROR, "")?;
    let Some(nodes) = rule.positive("nodes")? else { return Ok(policy) };
    let message = "`nodes` divides a limit among nodes that decide locally: \
                   write `on_store_error: decide_locally`, or leave it out";
    rule.reject_if(!matches!(policy, Some(OnStoreError::DecideLocally(_))), "nodes", message)?;
    Ok(Some(OnStoreError::DecideLocally(Share::one_of(nodes))))
}

type SetSpan = fn(Penalty, Duration) -> Result<Penalty, Fault>;

/// Reads the penalty of a limit, if it has one.
fn read_penalty(rule: &YamlNode) -> Result<Option<Penalty>, Problem> {
    let Some(fields) = rule.get("penalty") else { return Ok(None) };
    fields.check_fields("`penalty`", fields::PENALTY)?;
    let missing =
        |name, example| fields.problem(name, format!("`{name}` is missing: write `{name}: {example}`, for example"));
    let denials = fields.integer("denials")?.ok_or_else(|| missing("denials", "5"))?;
    let within = fields.duration("within")?.ok_or_else(|| missing("within", "1m"))?;
    let blamed = if Penalty::try_after(denials, SECOND).is_err() { "denials" } else { "within" };
    let mut penalty = fields.check(blamed, Penalty::try_after(denials, within))?;
    let spans: [(_, SetSpan); 3] = [
        ("locked_out_for", Penalty::checked_locked_out_for),
        ("up_to", Penalty::checked_doubling_up_to),
        ("remembered_for", Penalty::checked_remembered_for),
    ];
    for (name, set) in spans {
        if let Some(span) = fields.duration(name)? {
            penalty = fields.check(name, set(penalty, span))?;
        }
    }
    Ok(Some(penalty))
}

/// The algorithms, with the fields that only some of them have.
const ALGORITHMS: &[(&str, &[&str])] = &[
    ("fixed_window", &["calendar", "starts", "day"]),
    ("sliding_window", &["buckets"]),
    ("sliding_window_counter", &["rounding", "weight"]),
    ("sliding_log", &[]),
    ("token_bucket", &["burst", "refill"]),
    ("leaky_bucket", &["burst"]),
    ("leaky_bucket_queue", &["burst", "waiting"]),
];

/// Reads `concurrent`, if it exists.
fn read_concurrency(rule: &YamlNode) -> Result<Option<Concurrency>, Problem> {
    let Some(slots) = rule.positive("concurrent")? else {
        for field in fields::CONCURRENCY {
            let message = format!(
                "`{field}` needs `concurrent`: leave it out, or write `concurrent: 8`, for example, in place of \
                 `requests_per_unit`"
            );
            rule.reject_if(true, field, message)?;
        }
        return Ok(None);
    };
    for field in [&["requests_per_unit"], fields::RATE].concat() {
        let message = format!("a limit of `concurrent` requests has no `{field}`: leave it out{SECOND_LIMIT}");
        rule.reject_if(true, field, message)?;
    }
    let (limit, span) = (rule.check("concurrent", Concurrency::try_limit(slots))?, rule.duration("time_to_live")?);
    Ok(Some(match span {
        Some(span) => rule.check("time_to_live", limit.try_time_to_live(span))?,
        None => limit,
    }))
}

/// Reads a rate. If no requests are allowed, its capacity is 0.
fn read_rate(rule: &YamlNode) -> Result<Algorithm, Problem> {
    let missing = "`requests_per_unit` is missing: write how many requests are allowed, or write `unlimited: true`";
    let tokens = rule.integer("requests_per_unit")?.ok_or_else(|| rule.problem("requests_per_unit", missing))?;
    if tokens == 0
        && let Some(name) =
            ["algorithm", "cost", "soft", "debt", "overridable", "lease"].into_iter().find(|name| rule.has(name))
    {
        let message = format!(
            "`requests_per_unit` is 0: allow at least 1 request, or write `unlimited: true`; to deny all requests, \
             leave `{name}` out"
        );
        return Err(rule.problem("requests_per_unit", message));
    }
    let own = rule
        .choice("algorithm", ALGORITHMS, ", and for calendar days or months, add `calendar: UTC`")?
        .unwrap_or(ALGORITHMS[0].1);
    let name = rule.text("algorithm")?.unwrap_or(ALGORITHMS[0].0).to_ascii_lowercase();
    for field in ALGORITHMS.iter().flat_map(|(_, fields)| *fields).filter(|field| rule.has(field)) {
        let owners = ALGORITHMS.iter().filter(|(_, fields)| fields.contains(field));
        let owners: Vec<&str> = owners.map(|(name, _)| *name).collect();
        let message = format!("{name} has no `{field}`: leave it out, or use {}", one_of(&owners));
        rule.reject_if(!own.contains(field), field, message)?;
    }
    let period_at = rule.position(if rule.has("unit") { "unit" } else { "period" });
    let algorithm =
        build(rule, &name, tokens.max(1), read_period(rule)?).map_err(|problem| problem.or_at(period_at))?;
    Ok(if tokens == 0 { Algorithm { capacity: 0, ..algorithm } } else { algorithm })
}

/// Builds an algorithm with the options of a rule. Problems without a position concern the period.
fn build(rule: &YamlNode, name: &str, tokens: u32, period: Duration) -> Result<Algorithm, Problem> {
    let capacity = |field| Ok::<_, Problem>(rule.positive(field)?.unwrap_or(tokens));
    Ok(match name {
        "fixed_window" => match read_calendar(rule, tokens)? {
            Some(window) => window.into(),
            None => FixedWindow::try_new(tokens, period)?.into(),
        },
        "sliding_window" => {
            let window = SlidingWindow::try_new(tokens, period)?;
            let buckets = rule.positive("buckets")?;
            buckets.map_or(Ok(window), |buckets| rule.check("buckets", window.try_buckets(buckets)))?.into()
        }
        "sliding_window_counter" => {
            let rounding = rule.choice("rounding", &[("up", Rounding::Up), ("down", Rounding::Down)], "")?;
            let counter = SlidingWindowCounter::try_new(tokens, period)?.rounding(rounding.unwrap_or_default());
            let weight = rule.parse("weight", percent)?;
            weight.map_or(Ok(counter), |weight| rule.check("weight", counter.try_weight(weight)))?.into()
        }
        "sliding_log" => SlidingLog::try_new(tokens, period)?.into(),
        "token_bucket" => {
            let refills = [("continuous", false), ("interval", true)];
            let at_intervals = rule.choice("refill", &refills, "")?.unwrap_or_default();
            let bucket = TokenBucket::try_new(capacity("burst")?, tokens, period)?;
            if at_intervals { bucket.try_at_intervals()? } else { bucket }.into()
        }
        "leaky_bucket" => LeakyBucket::try_new(capacity("burst")?, tokens, period)?.into(),
        "leaky_bucket_queue" => {
            let queue = LeakyBucketQueue::try_new(capacity("waiting")?, tokens, period)?;
            let burst = rule.positive("burst")?;
            burst.map_or(Ok(queue), |burst| rule.check("burst", queue.try_burst(burst)))?.into()
        }
        _ => unreachable!("`ALGORITHMS` has no {name:?}"),
    })
}

/// Reads `unit` or `period`, whichever exists.
fn read_period(rule: &YamlNode) -> Result<Duration, Problem> {
    let is_calendar = rule.has("calendar");
    rule.reject_if(is_calendar, "period", "a calendar has no `period`: use `unit: month`, for example")?;
    rule.reject_if(rule.has("unit"), "period", "`unit` and `period` are both given: keep one")?;
    let (units, otherwise) = match is_calendar {
        true => (&UNITS[3..], ", or leave `calendar` out"),
        false => (UNITS, ", or `period`, as in `period: 90s`"),
    };
    let period = rule.choice("unit", units, otherwise)?.or(rule.duration("period")?);
    let missing = "`unit` is missing: write `unit: minute`, for example, or `period: 90s`";
    period.ok_or_else(|| rule.problem("unit", missing))
}

/// Reads a calendar window that allows `limit` requests in each `unit`, if there is a `calendar`.
fn read_calendar(rule: &YamlNode, limit: u32) -> Result<Option<CalendarWindow>, Problem> {
    let zone = rule.parse("calendar", YamlNode::as_text)?;
    let unit = rule.text("unit")?.unwrap_or_default().to_ascii_lowercase();
    for (name, owner) in [("starts", "week"), ("day", "month")] {
        let message = format!(
            "`{name}` needs a calendar: write `calendar: UTC`, or a time zone such as `Europe/Berlin`, or leave it out"
        );
        rule.reject_if(zone.is_none(), name, message)?;
        rule.reject_if(unit != owner, name, format_args!("`{name}` needs `unit: {owner}`: leave it out"))?;
    }
    let Some(zone) = zone else { return Ok(None) };
    let window = match unit.as_str() {
        "day" => CalendarWindow::daily(limit),
        "week" => CalendarWindow::weekly(limit, rule.choice("starts", DAYS, "")?.unwrap_or_default()),
        "month" => {
            let day = rule.integer("day")?.unwrap_or(1);
            CalendarWindow::monthly(limit).from_day(rule.check("day", validation::day_of_month(day))?)
        }
        _ => CalendarWindow::yearly(limit),
    };
    #[cfg(feature = "time-zones")]
    let window = rule.check("calendar", window.try_in_zone(zone))?;
    #[cfg(not(feature = "time-zones"))]
    rule.reject_if(
        !zone.eq_ignore_ascii_case("UTC"),
        "calendar",
        format_args!("the time zone {zone:?} needs the feature `time-zones`: turn it on, or use \"UTC\""),
    )?;
    Ok(Some(window))
}
