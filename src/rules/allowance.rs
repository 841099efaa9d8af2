//! The allowance of a `rate_limit` block: how many requests, by which algorithm.

use std::time::Duration;

use super::calendar;
use super::fields::{self, Fields, one_of};
use super::period;
use super::problem::{Position, Problem};
use crate::algorithm::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Refill, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};
use crate::error::ConfigError;

/// The requests that a `rate_limit` block allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Allowance {
    /// All requests: `unlimited: true`.
    Unlimited,
    /// No requests: `requests_per_unit: 0`.
    Nothing,
    /// The requests that an algorithm allows.
    Limited(Algorithm),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    FixedWindow,
    SlidingWindow,
    SlidingWindowCounter,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    LeakyBucketQueue,
}

const KINDS: &[(&str, Kind)] = &[
    ("fixed_window", Kind::FixedWindow),
    ("sliding_window", Kind::SlidingWindow),
    ("sliding_window_counter", Kind::SlidingWindowCounter),
    ("sliding_log", Kind::SlidingLog),
    ("token_bucket", Kind::TokenBucket),
    ("leaky_bucket", Kind::LeakyBucket),
    ("leaky_bucket_queue", Kind::LeakyBucketQueue),
];

/// The fields that only some algorithms have.
const SPECIFIC_FIELDS: &[(&str, &[Kind])] = &[
    ("burst", &[Kind::TokenBucket, Kind::LeakyBucket]),
    ("refill", &[Kind::TokenBucket]),
    ("buckets", &[Kind::SlidingWindow]),
    ("rounding", &[Kind::SlidingWindowCounter]),
    ("waiting", &[Kind::LeakyBucketQueue]),
    ("calendar", &[Kind::FixedWindow]),
    ("starts", &[Kind::FixedWindow]),
    ("day", &[Kind::FixedWindow]),
];

impl Allowance {
    pub(super) fn read(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<Self> {
        if fields.flag("unlimited", problems) { unlimited(fields, problems) } else { limited(fields, problems) }
    }
}

fn unlimited(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<Allowance> {
    let specific = SPECIFIC_FIELDS.iter().map(|(name, _)| *name);
    for name in ["unit", "period", "algorithm", "cost", "soft", "penalty", "on_store_error", "nodes", "overridable"]
        .into_iter()
        .chain(specific)
    {
        if let Some(node) = fields.get(name) {
            let message = format!("an unlimited rule has no `{name}`: leave it out, or leave `unlimited` out");
            problems.push(Problem::new(node.at, message));
        }
    }
    Some(Allowance::Unlimited)
}

fn limited(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<Allowance> {
    let kind = match fields.get("algorithm") {
        Some(_) => fields.choice("algorithm", KINDS, problems),
        None => Some(Kind::FixedWindow),
    };
    let period = span(fields, problems);
    let tokens = fields.integer("requests_per_unit", problems);
    if fields.lacks("requests_per_unit") {
        let message = "`requests_per_unit` is missing: write how many requests are allowed, or write `unlimited: true`";
        problems.push(Problem::new(fields.at, message));
    }
    let kind = kind?;
    let name = |wanted| KINDS.iter().find(|(_, kind)| *kind == wanted).map_or("", |(name, _)| *name);
    for (field, kinds) in SPECIFIC_FIELDS {
        if let Some(node) = fields.get(field).filter(|_| !kinds.contains(&kind)) {
            let owners: Vec<&str> = kinds.iter().map(|kind| name(*kind)).collect();
            let message = format!("{} has no `{field}`: leave it out, or use {}", name(kind), one_of(&owners));
            problems.push(Problem::new(node.at, message));
        }
    }
    // Read before returning for missing fields, so that all problems are reported.
    let before = problems.len();
    let options = Options {
        burst: positive(fields, "burst", problems),
        refill: fields.choice(
            "refill",
            &[("continuous", Refill::Continuous), ("interval", Refill::Interval)],
            problems,
        ),
        buckets: positive(fields, "buckets", problems),
        rounding: fields.choice("rounding", &[("up", Rounding::Up), ("down", Rounding::Down)], problems),
        waiting: positive(fields, "waiting", problems),
        calendar: calendar::read(fields, tokens.map_or(1, |(tokens, _)| tokens.max(1)), problems),
    };
    let is_wrong = problems.len() > before;
    let ((tokens, tokens_at), (period, period_at)) = (tokens?, period?);
    if tokens == 0 && fields.get("algorithm").is_some() {
        let message = "`requests_per_unit` is 0: allow at least 1 request, or write `unlimited: true`; \
                       to deny all requests, leave `algorithm` out";
        problems.push(Problem::new(tokens_at, message));
        return None;
    }
    if is_wrong {
        return None;
    }
    match algorithm(kind, tokens.max(1), period, &options) {
        Ok(_) if tokens == 0 => Some(Allowance::Nothing),
        Ok(algorithm) => Some(Allowance::Limited(algorithm)),
        Err(error) => {
            let at = fields.get("buckets").filter(|_| options.buckets.is_some()).map_or(period_at, |node| node.at);
            problems.push(Problem::new(at, error.to_string()));
            None
        }
    }
}

/// The optional fields of algorithms.
struct Options {
    burst: Option<u32>,
    refill: Option<Refill>,
    buckets: Option<u32>,
    rounding: Option<Rounding>,
    waiting: Option<u32>,
    calendar: Option<CalendarWindow>,
}

fn algorithm(kind: Kind, tokens: u32, period: Duration, options: &Options) -> Result<Algorithm, ConfigError> {
    let burst = options.burst.unwrap_or(tokens);
    Ok(match kind {
        Kind::FixedWindow => match options.calendar {
            Some(window) => window.into(),
            None => FixedWindow::try_new(tokens, period)?.into(),
        },
        Kind::SlidingLog => SlidingLog::try_new(tokens, period)?.into(),
        Kind::SlidingWindow => {
            let window = SlidingWindow::try_new(tokens, period)?;
            options.buckets.map_or(Ok(window), |buckets| window.try_buckets(buckets))?.into()
        }
        Kind::SlidingWindowCounter => {
            SlidingWindowCounter::try_new(tokens, period)?.rounding(options.rounding.unwrap_or_default()).into()
        }
        Kind::TokenBucket => {
            TokenBucket::try_new(burst, tokens, period)?.refill(options.refill.unwrap_or_default()).into()
        }
        Kind::LeakyBucket => LeakyBucket::try_new(burst, tokens, period)?.into(),
        Kind::LeakyBucketQueue => LeakyBucketQueue::try_new(options.waiting.unwrap_or(tokens), tokens, period)?.into(),
    })
}

/// Reads a number that can't be 0, if the field exists.
pub(super) fn positive(fields: &Fields<'_>, name: &str, problems: &mut Vec<Problem>) -> Option<u32> {
    let (number, at) = fields.integer(name, problems)?;
    if number == 0 {
        problems.push(Problem::new(at, format!("`{name}` is 0: use at least 1, or leave it out")));
        return None;
    }
    Some(number)
}

/// Reads the duration of `unit` or `period`, whichever exists.
fn span(fields: &Fields<'_>, problems: &mut Vec<Problem>) -> Option<(Duration, Position)> {
    match (fields.get("unit"), fields.get("period")) {
        (Some(_), Some(node)) => {
            problems.push(Problem::new(node.at, "`unit` and `period` are both given: keep one"));
            None
        }
        (Some(_), None) => {
            let (unit, at) = fields.text("unit", problems)?;
            let names: Vec<&str> = period::UNITS.iter().map(|(name, _)| *name).collect();
            let known = period::UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
            if known.is_none() {
                let meant = fields::closest(unit, names.iter().copied());
                let advice = meant.map_or_else(
                    || format!("use {}, or `period`, as in `period: 90s`", one_of(&names)),
                    |name| format!("did you mean `{name}`?"),
                );
                problems.push(Problem::new(at, format!("`unit` can't be {unit:?}: {advice}")));
            }
            known.map(|(_, span)| (*span, at))
        }
        (None, Some(_)) => {
            let (text, at) = fields.text("period", problems)?;
            let span =
                period::parse("period", text).map_err(|message| problems.push(Problem::new(at, message))).ok()?;
            if span.is_zero() {
                problems.push(Problem::new(at, format!("`period` is {text:?}: use at least 1us")));
                return None;
            }
            Some((span, at))
        }
        (None, None) if !fields.lacks("unit") || !fields.lacks("period") => None,
        (None, None) => {
            let message = "`unit` is missing: write `unit: minute`, for example, or `period: 90s`";
            problems.push(Problem::new(fields.at, message));
            None
        }
    }
}
