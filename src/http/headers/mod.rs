//! The headers that report limits to clients, in the chosen styles, and merged with those of nested layers.
//!
//! They are formatted when a request is decided, and added when its response is there.

mod ietf;
mod merge;
mod style;

use std::cmp::Reverse;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;

use self::ietf::LimitText;
use self::merge::merge;
use self::style::X_RETRY_AFTER;
pub use self::style::{HeaderStyle, ResetFormat};
use super::text::{insert, insert_missing, number};
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::time::{Timestamp, ceil_seconds};

/// The values of the headers about a decision, in the order of the styles and of their names; `None` for a header that
/// is left out. Empty if no limit is reported.
pub(super) type Fields = SmallVec<[Option<HeaderValue>; 3]>;

/// The chosen styles, and the parts of the headers that are the same for all requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Headers {
    styles: Vec<HeaderStyle>,
    limits: Vec<LimitText>,
    /// The number of limits that are enforced.
    enforced: usize,
    /// `RateLimit-Policy` with all enforced limits, if it is the same in all responses.
    policies: Option<HeaderValue>,
    /// The longest wait that clients are told.
    longest_wait: Duration,
    /// Whether it was logged that a limit has the name of another one. Shared by all layers of the limiter.
    pub(super) repeats_name: Arc<AtomicBool>,
}

/// The maximum number of limits that are reported in one response. Clients accept 8 KiB of headers in all, and a limit's
/// name has up to 64 characters.
pub(super) const MAX_REPORTED: usize = 16;

impl Headers {
    /// Creates the headers of some limits. Of two styles that write the same headers, the first is used.
    pub(super) fn new(styles: Vec<HeaderStyle>, longest_wait: Duration, limits: &[Limit]) -> Self {
        let mut headers = Self { longest_wait, ..Self::default() };
        headers.set_limits(limits);
        for style in styles {
            if !headers.styles.iter().any(|known| known.names() == style.names()) {
                headers.styles.push(style);
            }
        }
        headers
    }

    /// Sets the limits, and derives their parts of the headers.
    pub(super) fn set_limits(&mut self, limits: &[Limit]) {
        self.limits = limits.iter().map(LimitText::new).collect();
        let texts = self.limits.iter().zip(limits).filter(|(_, limit)| !limit.is_shadow());
        let enforced: Vec<_> = texts.map(|(text, limit)| (text, *limit.algorithm())).collect();
        self.enforced = enforced.len();
        // A file may have thousands of limits, which never apply to one request together.
        let has_calendar = enforced.iter().any(|(_, algorithm)| algorithm.is_calendar());
        let are_constant = self.enforced <= MAX_REPORTED && !has_calendar;
        self.policies = are_constant.then(|| ietf::policies(enforced.into_iter(), Timestamp::EPOCH));
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.styles.is_empty()
    }

    /// Returns the maximum number of headers that are added to a response, without `Retry-After`.
    pub(super) fn max_headers(&self) -> usize {
        self.styles.iter().map(|style| style.names().len()).sum()
    }

    /// Returns the names of all headers that can be added to a response.
    pub(super) fn names(&self) -> Vec<HeaderName> {
        let styles = self.styles.iter().flat_map(|style| style.names());
        iter::once(&RETRY_AFTER).chain(styles).cloned().collect()
    }

    /// Formats the headers about a decision. Of more limits than are reported, the tightest are.
    pub(super) fn format(&self, decision: &Decision) -> Fields {
        let mut fields = Fields::new();
        if decision.outcomes().len() > MAX_REPORTED {
            return self.format(&tightest(decision));
        }
        if reported(decision).next().is_none() {
            return fields;
        }
        for style in &self.styles {
            match *style {
                HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11 => {
                    fields.push(Some(self.policies(decision)));
                    let limits = reported(decision).map(|outcome| (self.text(outcome), outcome));
                    let limit_wait = |outcome: &_, time| self.limit_wait(outcome, time);
                    fields.push(Some(ietf::quotas(limits, *style, decision.at(), limit_wait)));
                }
                HeaderStyle::XRateLimit(reset) | HeaderStyle::XRateLimitDashed(reset) => {
                    fields.extend(self.triple(reset, decision));
                }
                HeaderStyle::Overage => {
                    let mut over = reported(decision).filter(|outcome| outcome.uses_overage()).peekable();
                    let is_reported = decision.is_allowed() && over.peek().is_some();
                    fields.push(is_reported.then(|| ietf::names(over.map(|outcome| self.text(outcome)))));
                }
                // Only rejections have it: see `write_retry_after`.
                HeaderStyle::XRetryAfter => fields.push(None),
            }
        }
        fields
    }

    /// Adds the headers about a decision to a response.
    pub(super) fn add(&self, decision: &Decision, status: StatusCode, headers: &mut HeaderMap) {
        self.write(&mut self.format(decision), decision.is_allowed(), status, headers);
    }

    /// Adds formatted headers, of a decision that `is_allowed`, to a response. If the inner service has added headers too,
    /// lists are merged, and of two `X-RateLimit` triples, the one with less remaining is kept.
    pub(super) fn write(&self, fields: &mut Fields, is_allowed: bool, status: StatusCode, headers: &mut HeaderMap) {
        let mut rest = &mut fields[..];
        for style in &self.styles {
            let names = style.names();
            let Some((values, others)) = rest.split_at_mut_checked(names.len()) else { return };
            rest = others;
            match style {
                // A limit that has passed does not explain when to retry.
                HeaderStyle::XRateLimit(_) | HeaderStyle::XRateLimitDashed(_)
                    if is_allowed && rejects(status, headers) => {}
                HeaderStyle::XRateLimit(_) | HeaderStyle::XRateLimitDashed(_) => insert_triple(names, values, headers),
                _ => self.append_lists(names, values, headers),
            }
        }
    }

    /// Appends a line to each list. Merges it with the lines of the inner service.
    fn append_lists(&self, names: &[HeaderName], values: &mut [Option<HeaderValue>], headers: &mut HeaderMap) {
        let mut has_inner = false;
        for (name, value) in names.iter().zip(values) {
            if let Some(value) = value.take() {
                has_inner |= headers.try_append(name, value).unwrap_or_default();
            }
        }
        if has_inner {
            merge(names, headers, &self.repeats_name);
        }
    }

    fn text(&self, outcome: &Outcome) -> &LimitText {
        &self.limits[outcome.limit()]
    }

    /// Returns the policies of the limits that are reported.
    fn policies(&self, decision: &Decision) -> HeaderValue {
        if let Some(policies) = &self.policies
            && reported(decision).all(|outcome| self.text(outcome).is_of(outcome))
            && reported(decision).count() == self.enforced
        {
            return policies.clone();
        }
        let limits = reported(decision).map(|outcome| (self.text(outcome), outcome.algorithm().without_lease()));
        ietf::policies(limits, decision.at())
    }

    /// Limits a time to the longest wait, if a client would have to wait for it before it repeats the request.
    fn limit_wait(&self, outcome: &Outcome, time: Duration) -> Duration {
        if outcome.remaining() < outcome.cost().max(1) { time.min(self.longest_wait) } else { time }
    }

    /// Formats the triple of the tightest limit, unless all are concurrency limits, which these headers can't describe.
    fn triple(&self, format: ResetFormat, decision: &Decision) -> [Option<HeaderValue>; 3] {
        let rates = reported(decision).filter(|outcome| !outcome.algorithm().is_concurrency);
        let Some(outcome) = rates.min_by_key(|outcome| looseness(outcome)) else {
            return [const { None }; 3];
        };
        let reset_after = self.limit_wait(outcome, outcome.reset_after());
        let seconds = ceil_seconds(match format {
            ResetFormat::Seconds => reset_after,
            ResetFormat::Epoch => Duration::from_micros(decision.at().as_micros()).saturating_add(reset_after),
        });
        let text = self.text(outcome);
        let capacity = if text.is_of(outcome) {
            text.capacity.clone()
        } else {
            number(outcome.algorithm().without_lease().capacity())
        };
        [Some(capacity), Some(number(outcome.remaining())), Some(number(seconds))]
    }

    /// Adds the time after which a rejected request may be retried, unless the response contains it: to `Retry-After`,
    /// except for gRPC, and to `X-Ratelimit-Retry-After`, if it is one of the styles.
    pub(super) fn write_retry_after(&self, seconds: u64, is_grpc: bool, headers: &mut HeaderMap) {
        if !is_grpc {
            insert_missing(headers, RETRY_AFTER, number(seconds));
        }
        if self.styles.contains(&HeaderStyle::XRetryAfter) {
            // The response may have a wait of its own, or a date.
            let own = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
            insert_missing(headers, X_RETRY_AFTER[0].clone(), number(own.unwrap_or(seconds)));
        }
    }
}

/// Returns the outcomes that are reported to clients. Limits that are not enforced are left out, because clients would
/// slow down for them.
fn reported(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    decision.outcomes().iter().filter(|outcome| outcome.is_enforced())
}

/// Returns whether a response tells the client to retry later.
fn rejects(status: StatusCode, headers: &HeaderMap) -> bool {
    // `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    let is_grpc = || matches!(headers.get("grpc-status").map(HeaderValue::as_bytes), Some(b"8" | b"14"));
    matches!(status.as_u16(), 429 | 503) || headers.contains_key(RETRY_AFTER) || is_grpc()
}

/// Returns the tightest limits of a decision, as many as are reported.
#[cold]
fn tightest(decision: &Decision) -> Decision {
    let mut limits: Vec<_> = reported(decision).map(|outcome| (looseness(outcome), outcome.limit())).collect();
    limits.sort();
    limits.truncate(MAX_REPORTED);
    decision.clone().only(|limit| limits.iter().any(|(_, tight)| *tight == limit))
}

/// Returns the order of limits from the tightest one: that which denies for longest, or else has the least remaining.
fn looseness(outcome: &Outcome) -> impl Ord {
    let wait = (!outcome.is_allowed()).then(|| outcome.verdict().retry_after().unwrap_or(Duration::MAX));
    (Reverse(wait), outcome.remaining(), Reverse(outcome.reset_after()))
}

/// Adds a triple, unless the inner service has added that of a tighter limit. One that is not complete is replaced. If
/// there is no room for all three headers, adds none.
fn insert_triple(names: &[HeaderName], values: &mut [Option<HeaderValue>], headers: &mut HeaderMap) {
    let remaining = |value: Option<&HeaderValue>| value?.to_str().ok()?.parse::<u64>().ok();
    let is_tighter =
        remaining(headers.get(&names[1])).is_some_and(|inner| Some(inner) <= remaining(values[1].as_ref()));
    if is_tighter && names.iter().all(|name| headers.contains_key(name)) || headers.try_reserve(names.len()).is_err() {
        return;
    }
    for (name, value) in names.iter().zip(values) {
        if let Some(value) = value.take() {
            insert(headers, name.clone(), value);
        }
    }
}
