//! The headers that report limits to clients.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::effective_window::Replenishment;
use super::header_style::{HeaderStyle, Reset};
use super::merge::{RATE_LIMIT, RATE_LIMIT_POLICY, merge, merge_names};
use super::text::{Number, Text, joined, number, numbers};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, Outcome, Verdict};
use crate::limit::Limit;
use crate::limit_spec;
use crate::time::{Timestamp, ceil_seconds};

/// RFC 6585 forbids caches to store a 429, but not all caches comply.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

const RATE_LIMIT_OVERAGE: HeaderName = HeaderName::from_static("ratelimit-overage");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const X_RATE_LIMIT: TripleNames = TripleNames {
    limit: HeaderName::from_static("x-ratelimit-limit"),
    remaining: HeaderName::from_static("x-ratelimit-remaining"),
    reset: HeaderName::from_static("x-ratelimit-reset"),
};
const X_RATE_LIMIT_DASHED: TripleNames = TripleNames {
    limit: HeaderName::from_static("x-rate-limit-limit"),
    remaining: HeaderName::from_static("x-rate-limit-remaining"),
    reset: HeaderName::from_static("x-rate-limit-reset"),
};

/// The number of headers that fit into a `HeaderMap` after its first allocation.
const DEFAULT_HEADER_CAPACITY: usize = 6;

/// The maximum number of limits of one request.
const MAX_LIMITS: usize = 64;

/// The names of the three `X-RateLimit` headers.
struct TripleNames {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

/// The chosen styles, and the parts of the headers that are the same for all requests.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    styles: Vec<HeaderStyle>,
    /// The maximum number of headers that the styles add to a response.
    max_headers: usize,
    limits: Vec<LimitText>,
    /// The number of limits that are enforced.
    enforced: usize,
    /// `RateLimit-Policy` with all enforced limits, if it is the same in all responses.
    policies: Option<HeaderValue>,
}

/// The headers of an IETF draft for one decision.
#[derive(Debug)]
pub(super) struct DraftHeaders {
    policies: HeaderValue,
    quotas: HeaderValue,
}

/// The parts of headers that are the same in all responses, for one limit.
#[derive(Clone, Debug)]
struct LimitText {
    /// `"name"`
    name: Bytes,
    /// `"name";r=`
    remaining: Bytes,
    /// `"name";q=20;w=2`
    policy: Bytes,
    replenishment: Replenishment,
    /// `20`
    capacity: HeaderValue,
}

impl Headers {
    pub(super) fn new(styles: impl IntoIterator<Item = HeaderStyle>, limits: &[Limit]) -> Self {
        let mut headers = Self { styles: Vec::new(), max_headers: 0, limits: Vec::new(), enforced: 0, policies: None };
        headers.set_limits(limits);
        headers.set_styles(styles);
        headers
    }

    /// Sets the limits.
    pub(super) fn set_limits(&mut self, limits: &[Limit]) {
        self.limits = limits.iter().map(|limit| LimitText::of(limit.name(), limit.algorithm())).collect();
        let enforced = || limits.iter().zip(&self.limits).filter(|(limit, _)| !limit.is_shadow());
        self.enforced = enforced().count();
        // A file may have thousands of limits, which never apply to one request together.
        let are_constant =
            self.enforced <= MAX_LIMITS && enforced().all(|(_, texts)| texts.replenishment.calendar().is_none());
        self.policies = are_constant.then(|| join(enforced().map(|(_, texts)| &texts.policy)));
    }

    /// Sets the styles. Of two styles that write the same headers, the first is used.
    pub(super) fn set_styles(&mut self, styles: impl IntoIterator<Item = HeaderStyle>) {
        self.styles.clear();
        for style in styles {
            if !self.styles.iter().any(|known| known.shares_headers_with(&style)) {
                self.styles.push(style);
            }
        }
        // Without `Retry-After`, which is sent in every style.
        self.max_headers = self.names().len() - 1;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.styles.is_empty()
    }

    /// Returns the names of the limits, in quotes.
    pub(super) fn limit_names(&self) -> impl Iterator<Item = &[u8]> {
        self.limits.iter().map(|texts| &*texts.name)
    }

    /// Returns the maximum number of headers that are added to a response.
    pub(super) fn max_headers(&self) -> usize {
        self.max_headers
    }

    /// Returns the names of all headers that can be added to a response.
    pub(super) fn names(&self) -> Vec<HeaderName> {
        let mut names = vec![RETRY_AFTER];
        for style in &self.styles {
            match style {
                HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11 => names.extend([RATE_LIMIT_POLICY, RATE_LIMIT]),
                HeaderStyle::XRateLimit(_) => names.extend(X_RATE_LIMIT.all()),
                HeaderStyle::XRateLimitDashed(_) => names.extend(X_RATE_LIMIT_DASHED.all()),
                HeaderStyle::Overage => names.push(RATE_LIMIT_OVERAGE),
                HeaderStyle::XRetryAfter => names.push(X_RETRY_AFTER),
            }
        }
        names
    }

    /// Adds the headers for `decision`. If an inner layer has added headers too, lists are merged, and of two `X-RateLimit`
    /// triples, the one with less remaining is kept.
    pub(super) fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        if let Some(draft) = self.draft(decision) {
            return draft.write(headers);
        }
        let count = reported(decision).count();
        if count == 0 {
            return;
        }
        for style in &self.styles {
            match style {
                HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11 => {
                    let (policies, quotas) = (self.policies(decision, count), self.quotas(*style, decision));
                    DraftHeaders { policies, quotas }.write(headers);
                }
                HeaderStyle::XRateLimit(reset) => {
                    self.write_triple(&X_RATE_LIMIT, *reset, decision, headers);
                }
                HeaderStyle::XRateLimitDashed(reset) => {
                    self.write_triple(&X_RATE_LIMIT_DASHED, *reset, decision, headers);
                }
                HeaderStyle::Overage => {
                    let mut over = reported(decision).filter(|outcome| outcome.uses_overage()).peekable();
                    if decision.is_allowed() && over.peek().is_some() {
                        let names = join(over.map(|outcome| &self.limits[outcome.limit()].name));
                        if headers.append(RATE_LIMIT_OVERAGE, names) {
                            merge_names(&RATE_LIMIT_OVERAGE, headers);
                        }
                    }
                }
                HeaderStyle::XRetryAfter => {
                    if let Some(wait) = decision.retry_after() {
                        headers.insert(X_RETRY_AFTER, number(ceil_seconds(wait).max(1)));
                    }
                }
            }
        }
    }

    /// Returns the headers for a decision in the most frequent case: one enforced limit in its usual size, and a draft as the
    /// only style.
    #[inline]
    pub(super) fn draft(&self, decision: &Decision) -> Option<DraftHeaders> {
        let ([style @ (HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11)], Some(policies), [outcome]) =
            (&*self.styles, &self.policies, decision.outcomes())
        else {
            return None;
        };
        let has_common_policy = self.enforced == 1 && decision.resized().is_empty();
        if !has_common_policy || !outcome.is_enforced() {
            return None;
        }
        Some(DraftHeaders { policies: policies.clone(), quotas: self.quota(*style, decision, outcome) })
    }

    /// Adds all headers of a rejection. Reserves room for the `Content-Length` that Axum adds.
    pub(super) fn write_rejection(
        &self,
        content_type: HeaderValue,
        retry_after: Option<u64>,
        decision: Option<&Decision>,
        headers: &mut HeaderMap,
    ) {
        // `Content-Type`, `Retry-After`, `Cache-Control` and `Content-Length`.
        let capacity = 4 + self.max_headers;
        if capacity > DEFAULT_HEADER_CAPACITY {
            headers.reserve(capacity);
        }
        headers.insert(CONTENT_TYPE, content_type);
        if let Some(seconds) = retry_after {
            self.write_retry_after(seconds, headers);
        }
        headers.insert(CACHE_CONTROL, NO_STORE);
        if let Some(decision) = decision {
            self.write(decision, headers);
        }
    }

    /// Adds the time after which a rejected request may be retried, unless the response contains it.
    pub(super) fn write_retry_after(&self, seconds: u64, headers: &mut HeaderMap) {
        headers.entry(RETRY_AFTER).or_insert_with(|| number(seconds));
        if self.styles.contains(&HeaderStyle::XRetryAfter) {
            headers.entry(X_RETRY_AFTER).or_insert_with(|| number(seconds));
        }
    }

    /// Returns the policies of the `count` limits that are reported.
    fn policies(&self, decision: &Decision, count: usize) -> HeaderValue {
        if let Some(policies) = &self.policies
            && count == self.enforced
            && decision.resized().is_empty()
        {
            return policies.clone();
        }
        let mut text = Text::new();
        for outcome in reported(decision) {
            let texts = self.limit_text(decision, outcome);
            if !text.is_empty() {
                text.push(b", ");
            }
            text.push(&texts.policy);
            if let Some(calendar) = texts.replenishment.calendar() {
                text.push(b";w=");
                let window = ceil_seconds(calendar.window_at(decision.at()));
                text.push_number(integer(window));
            }
        }
        text.value()
    }

    /// Returns the text of a limit in its size for this request.
    fn limit_text(&self, decision: &Decision, outcome: &Outcome) -> Cow<'_, LimitText> {
        match limit_spec::find(outcome.limit(), decision.resized()) {
            Some(spec) => Cow::Owned(LimitText::of(spec.name(), spec.algorithm())),
            None => Cow::Borrowed(&self.limits[outcome.limit()]),
        }
    }

    fn quotas(&self, style: HeaderStyle, decision: &Decision) -> HeaderValue {
        if let [outcome] = decision.outcomes() {
            return self.quota(style, decision, outcome);
        }
        let mut text = Text::new();
        for outcome in reported(decision) {
            if !text.is_empty() {
                text.push(b", ");
            }
            text.push(&self.limits[outcome.limit()].remaining);
            text.push_number(outcome.remaining());
            if let Some(seconds) = self.t(style, decision, outcome) {
                text.push(b";t=");
                text.push_number(integer(seconds));
            }
        }
        text.value()
    }

    /// Returns the item of a single limit, in one allocation.
    #[inline]
    fn quota(&self, style: HeaderStyle, decision: &Decision, outcome: &Outcome) -> HeaderValue {
        let name = &*self.limits[outcome.limit()].remaining;
        let (mut remaining, mut time) = (Number::new(), Number::new());
        let remaining = remaining.format(outcome.remaining()).as_bytes();
        match self.t(style, decision, outcome) {
            None => joined([name, remaining]),
            Some(seconds) => joined([name, remaining, b";t=", time.format(integer(seconds)).as_bytes()]),
        }
    }

    /// Returns the value of the parameter `t`, whose meaning depends on the draft.
    #[inline]
    fn t(&self, style: HeaderStyle, decision: &Decision, outcome: &Outcome) -> Option<u64> {
        if style == HeaderStyle::IetfDraft10 {
            return outcome.more_after().map(ceil_seconds);
        }
        Some(match limit_spec::find(outcome.limit(), decision.resized()) {
            Some(spec) => Replenishment::of(spec.algorithm()).effective_window(outcome, decision.at()),
            None => self.limits[outcome.limit()].replenishment.effective_window(outcome, decision.at()),
        })
    }

    fn write_triple(&self, names: &TripleNames, reset: Reset, decision: &Decision, headers: &mut HeaderMap) {
        let Some(outcome) = reported(decision).reduce(tighter) else { return };
        let inner = headers.get(&names.remaining).and_then(|left| left.to_str().ok()?.parse::<u64>().ok());
        // An inner layer that rejected the request has written the triple of the limit that denies.
        let is_inner_denial = decision.is_allowed() && headers.contains_key(RETRY_AFTER);
        if inner.is_some_and(|left| is_inner_denial || left <= outcome.remaining()) {
            return;
        }
        let reset = match reset {
            Reset::Seconds => ceil_seconds(outcome.reset_after()),
            Reset::Epoch => epoch_seconds(decision.at(), outcome),
        };
        headers.insert(names.limit.clone(), self.limit_text(decision, outcome).capacity.clone());
        let [remaining, reset] = numbers(outcome.remaining(), reset);
        headers.insert(names.remaining.clone(), remaining);
        headers.insert(names.reset.clone(), reset);
    }
}

impl DraftHeaders {
    pub(super) fn write(self, headers: &mut HeaderMap) {
        headers.append(RATE_LIMIT_POLICY, self.policies);
        if headers.append(RATE_LIMIT, self.quotas) {
            merge(headers);
        }
    }
}

impl TripleNames {
    fn all(self) -> [HeaderName; 3] {
        [self.limit, self.remaining, self.reset]
    }
}

impl LimitText {
    fn of(name: &str, algorithm: &Algorithm) -> Self {
        let escaped = name.replace('\\', r"\\").replace('"', "\\\"");
        let name = format!("\"{escaped}\"");
        let capacity = algorithm.capacity();
        let window = algorithm.window();
        let replenishment = Replenishment::of(algorithm);
        let policy = match window.as_secs() {
            // The length of the window depends on the date, and is added to each response.
            _ if replenishment.calendar().is_some() => format!("{name};q={capacity}"),
            0 => format!("{name};q={capacity}"),
            _ => format!("{name};q={capacity};w={}", integer(ceil_seconds(window))),
        };
        let remaining = format!("{name};r=").into();
        Self { name: name.into(), remaining, policy: policy.into(), replenishment, capacity: number(capacity) }
    }
}

/// Returns the outcomes that are reported to clients. Limits that are not enforced are left out, because clients would
/// slow down for them.
fn reported(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    decision.outcomes().iter().filter(|outcome| outcome.is_enforced())
}

/// Returns the tighter of two limits: the one that denies for longer, or else the one with less remaining.
fn tighter<'a>(one: &'a Outcome, other: &'a Outcome) -> &'a Outcome {
    let looseness = |outcome: &Outcome| {
        let wait = match outcome.verdict() {
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => Some(retry_after.unwrap_or(std::time::Duration::MAX)),
        };
        (std::cmp::Reverse(wait), outcome.remaining(), std::cmp::Reverse(outcome.reset_after()))
    };
    if looseness(other) < looseness(one) { other } else { one }
}

fn epoch_seconds(at: Timestamp, outcome: &Outcome) -> u64 {
    let at = u128::from(at.as_micros()) + outcome.reset_after().as_micros();
    u64::try_from(at.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Limits a number to the largest integer of structured fields (RFC 9651, section 3.3.1).
#[inline]
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

fn join<'a>(members: impl Iterator<Item = &'a Bytes>) -> HeaderValue {
    let mut text = Text::new();
    for member in members {
        if !text.is_empty() {
            text.push(b", ");
        }
        text.push(member);
    }
    text.value()
}
