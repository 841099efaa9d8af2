//! The headers that report limits to clients.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::header_map::{append, insert, insert_missing};
use super::header_style::{HeaderStyle, Reset};
use super::limit_text::LimitText;
use super::merge::{RATE_LIMIT, RATE_LIMIT_POLICY, merge_names};
use super::text::{Text, number};
use super::triple_headers::{TripleNames, X_RATE_LIMIT, X_RATE_LIMIT_DASHED, tighter};
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::limit_spec;

/// RFC 6585 forbids caches to store a 429, but not all caches comply.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

const RATE_LIMIT_OVERAGE: HeaderName = HeaderName::from_static("ratelimit-overage");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
/// The number of headers that fit into a `HeaderMap` after its first allocation.
const DEFAULT_HEADER_CAPACITY: usize = 6;

/// The maximum number of limits of one request.
const MAX_LIMITS: usize = 64;

/// The chosen styles, and the parts of the headers that are the same for all requests.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    pub(super) styles: Vec<HeaderStyle>,
    /// The maximum number of headers that the styles add to a response.
    max_headers: usize,
    pub(super) limits: Vec<LimitText>,
    /// The number of limits that are enforced.
    pub(super) enforced: usize,
    /// `RateLimit-Policy` with all enforced limits, if it is the same in all responses.
    pub(super) policies: Option<HeaderValue>,
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

    /// Adds the headers for `decision`. If an inner layer has added headers too, lists are merged, and of two
    /// `X-RateLimit` triples, the one with less remaining is kept.
    pub(super) fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        if let Some(draft) = self.common_draft(decision) {
            return draft.write(headers);
        }
        let count = reported(decision).count();
        if count == 0 {
            return;
        }
        for style in &self.styles {
            match style {
                HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11 => {
                    self.draft(*style, decision, count).write(headers);
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
                        if append(headers, RATE_LIMIT_OVERAGE, names) {
                            merge_names(&RATE_LIMIT_OVERAGE, headers);
                        }
                    }
                }
                // Only rejections have it: see `write_retry_after`.
                HeaderStyle::XRetryAfter => {}
            }
        }
    }

    fn write_triple(&self, names: &TripleNames, reset: Reset, decision: &Decision, headers: &mut HeaderMap) {
        if let Some(outcome) = reported(decision).reduce(tighter) {
            names.write(reset, decision, outcome, self.limit_text(decision, outcome).capacity.clone(), headers);
        }
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
        insert(headers, CONTENT_TYPE, content_type);
        if let Some(seconds) = retry_after {
            self.write_retry_after(seconds, headers);
        }
        insert(headers, CACHE_CONTROL, NO_STORE);
        if let Some(decision) = decision {
            self.write(decision, headers);
        }
    }

    /// Adds the time after which a rejected request may be retried, unless the response contains it.
    pub(super) fn write_retry_after(&self, seconds: u64, headers: &mut HeaderMap) {
        insert_missing(headers, RETRY_AFTER, number(seconds));
        self.write_x_retry_after(seconds, headers);
    }

    /// Adds `X-Ratelimit-Retry-After`, if it is one of the styles, unless the response contains it.
    pub(super) fn write_x_retry_after(&self, seconds: u64, headers: &mut HeaderMap) {
        if self.styles.contains(&HeaderStyle::XRetryAfter) {
            insert_missing(headers, X_RETRY_AFTER, number(seconds));
        }
    }

    /// Returns the text of a limit in its size for this request.
    pub(super) fn limit_text(&self, decision: &Decision, outcome: &Outcome) -> Cow<'_, LimitText> {
        match limit_spec::find(outcome.limit(), decision.resized()) {
            Some(spec) => Cow::Owned(LimitText::of(spec.name(), spec.algorithm())),
            None => Cow::Borrowed(&self.limits[outcome.limit()]),
        }
    }
}

/// Returns the outcomes that are reported to clients. Limits that are not enforced are left out, because clients would
/// slow down for them.
pub(super) fn reported(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    decision.outcomes().iter().filter(|outcome| outcome.is_enforced())
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
