//! `RateLimit-Policy`, `RateLimit` and `RateLimit-Overage`: lists with an item for each limit (RFC 9651).

use std::time::Duration;

use http::HeaderValue;

use super::style::HeaderStyle;
use crate::algorithm::state::{div_ceil, product};
use crate::algorithm::{Algorithm, Kind};
use crate::decision::Outcome;
use crate::http::text::{Text, number, push_number, value};
use crate::limit::Limit;
use crate::time::{Timestamp, ceil_seconds};

/// The parts of headers that are the same in all responses, for one limit.
#[derive(Clone, Debug)]
pub(super) struct LimitText {
    /// `"name"`
    pub(super) name: String,
    /// `20`
    pub(super) capacity: HeaderValue,
    algorithm: Algorithm,
}

impl LimitText {
    pub(super) fn new(limit: &Limit) -> Self {
        let name = limit.name().replace('\\', r"\\").replace('"', "\\\"");
        let algorithm = *limit.algorithm();
        Self { name: format!("\"{name}\""), capacity: number(algorithm.capacity()), algorithm }
    }

    /// Returns whether the limit has its own numbers in an outcome, whatever its overage.
    pub(super) fn is_of(&self, outcome: &Outcome) -> bool {
        Algorithm { overage: 0, ..outcome.algorithm().without_lease() } == self.algorithm
            || outcome.algorithm().is_concurrency && outcome.algorithm().capacity() == self.algorithm.capacity()
    }
}

/// Formats the policies of limits at an instant, each as `"name";q=20;w=2`.
pub(super) fn policies<'a>(limits: impl Iterator<Item = (&'a LimitText, Algorithm)>, at: Timestamp) -> HeaderValue {
    list(limits, |text, (limit, algorithm)| {
        text.extend_from_slice(limit.name.as_bytes());
        text.extend_from_slice(b";q=");
        push_number(text, algorithm.capacity());
        if algorithm.is_concurrency {
            text.extend_from_slice(b";qu=\"concurrent-requests\"");
        }
        let window = algorithm.window_at(at);
        if window.as_secs() > 0 {
            text.extend_from_slice(b";w=");
            push_number(text, integer(window));
        }
    })
}

/// Formats the remaining tokens of limits, each as `"name";r=9;t=1`. What `t` means depends on the draft. `limit_wait`
/// limits a time for which a client may have to wait.
#[inline]
pub(super) fn quotas<'a>(
    limits: impl Iterator<Item = (&'a LimitText, &'a Outcome)>,
    style: HeaderStyle,
    at: Timestamp,
    limit_wait: impl Fn(&Outcome, Duration) -> Duration,
) -> HeaderValue {
    list(limits, |text, (limit, outcome)| {
        text.extend_from_slice(limit.name.as_bytes());
        text.extend_from_slice(b";r=");
        push_number(text, outcome.remaining());
        let time = match style {
            HeaderStyle::IetfDraft10 => outcome.more_after(),
            // Nobody knows when a slot is free.
            _ if outcome.algorithm().is_concurrency => None,
            _ => Some(effective_window(outcome, at)),
        };
        if let Some(time) = time {
            text.extend_from_slice(b";t=");
            push_number(text, integer(limit_wait(outcome, time)));
        }
    })
}

/// Formats the names of limits.
pub(super) fn names<'a>(limits: impl Iterator<Item = &'a LimitText>) -> HeaderValue {
    list(limits, |text, limit| text.extend_from_slice(limit.name.as_bytes()))
}

#[inline]
fn list<T>(items: impl Iterator<Item = T>, push: impl Fn(&mut Text, T)) -> HeaderValue {
    let mut text = Text::new();
    for item in items {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        push(&mut text, item);
    }
    value(&text)
}

/// Returns the time for which a client should make the remaining tokens last: see
/// [`HeaderStyle::IetfDraft11`].
fn effective_window(outcome: &Outcome, at: Timestamp) -> Duration {
    let algorithm = outcome.algorithm().without_lease();
    let (window, until_more) = (algorithm.window_at(at), outcome.more_after());
    let until_used = match algorithm.kind {
        Kind::Window(_) => until_more.unwrap_or(window),
        _ => {
            let until_refilled =
                div_ceil(product(window.as_micros() as u64, outcome.remaining()), algorithm.capacity());
            Duration::from_micros(until_refilled).max(until_more.unwrap_or_default())
        }
    };
    outcome.verdict().retry_after().map_or(until_used, |wait| until_used.min(wait))
}

/// Returns seconds, rounded up, and at most the largest integer of structured fields (RFC 9651, section 3.3.1).
fn integer(span: Duration) -> u64 {
    ceil_seconds(span).min(999_999_999_999_999)
}
