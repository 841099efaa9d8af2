//! The headers that report limits to clients, in the chosen styles, and merged with those of nested layers.
//!
//! Values are formatted with few allocations. A response that already has as many headers as a `HeaderMap` can hold
//! stays as it is.

use std::cmp::Reverse;
use std::iter;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{FieldType, Item, List, ListEntry, Parser};

use crate::algorithm::{Algorithm, Kind};
use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::time::{Timestamp, ceil_seconds};

/// A set of response headers that report the remaining tokens of limits.
///
/// Times are whole seconds, rounded up, and relative to the instant of the decision. If a request was delayed, that
/// instant is before the delay.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` by
    /// [draft 11](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11) of the IETF (May
    /// 2026), which list every limit by name. This is the default, and [`HeaderStyle::IETF`].
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=2, "daily";q=10000;w=86400
    /// RateLimit: "burst";r=9;t=1, "daily";r=9999;t=3600
    /// ```
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `q` | The quota: the tokens of a window, or the capacity of a bucket. |
    /// | `w` | The window in seconds: its period, the time in which an empty bucket fills, or the length of the current calendar window. Left out if shorter than a second. |
    /// | `r` | The available quota: the tokens left. |
    /// | `t` | The effective window: the seconds within which the client should use no more than `r`. |
    ///
    /// A client that uses no more than `r` tokens within `t` seconds is not denied:
    ///
    /// - For a [`FixedWindow`](crate::FixedWindow) or [`CalendarWindow`](crate::CalendarWindow), `t` is the time left
    ///   in the current window, or the length of a window if the current one is unused.
    /// - For every other limit, `t` is the time in which `r` tokens come back, `r · w / q`, so that a client that
    ///   spreads `r` requests over `t` keeps to the limit's rate; or the time until there are more than `r`, if that is
    ///   longer.
    /// - For a limit that denies the request, `t` is at most `Retry-After`.
    ///
    /// The parameters `qu` and `pk` are not sent: costs are in the default unit, and a partition key could reveal the
    /// key of the request.
    #[default]
    IetfDraft11,
    /// `RateLimit-Policy` and `RateLimit` by
    /// [draft 10](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-10) of the IETF
    /// (September 2025). `q`, `w` and `r` are the same as in [draft 11](Self::IetfDraft11); `t` has another meaning:
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=2, "daily";q=10000;w=86400
    /// RateLimit: "burst";r=9;t=1, "daily";r=9999;t=3600
    /// ```
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `t` | The seconds until there are more than `r` tokens. Left out if the limit is unused. |
    IetfDraft10,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, for the limit that denies the request, or
    /// else the limit with the fewest remaining tokens. Left out if the limits allow the request and the response
    /// rejects it, with 429, 503, or their gRPC statuses.
    XRateLimit(ResetFormat),
    /// `X-Rate-Limit-Limit`, `X-Rate-Limit-Remaining` and `X-Rate-Limit-Reset`, for the same limit as
    /// [`XRateLimit`](Self::XRateLimit).
    XRateLimitDashed(ResetFormat),
    /// `RateLimit-Overage`, on responses to allowed requests that used the overage of [soft](crate::Limit::soft) or
    /// [elastic](crate::Limit::elastic) limits: the names of these limits. Not a standard.
    ///
    /// ```text
    /// RateLimit-Overage: "daily"
    /// ```
    Overage,
    /// `X-Ratelimit-Retry-After`, on rejections: the value of `Retry-After`, for clients that read this header instead.
    XRetryAfter,
}

impl HeaderStyle {
    /// The latest draft of the IETF that this crate implements, currently [`IetfDraft11`](Self::IetfDraft11).
    ///
    /// A later release may change it. If clients depend on the details of a draft, select that draft.
    pub const IETF: Self = Self::IetfDraft11;

    /// Returns the names of the headers. A response can have only one set of the same headers.
    fn names(self) -> &'static [HeaderName] {
        match self {
            Self::IetfDraft10 | Self::IetfDraft11 => &IETF,
            Self::XRateLimit(_) => &X_RATE_LIMIT,
            Self::XRateLimitDashed(_) => &X_RATE_LIMIT_DASHED,
            Self::Overage => &OVERAGE,
            Self::XRetryAfter => &X_RETRY_AFTER,
        }
    }
}

/// Yields the style itself, so that a single style is accepted instead of a list.
impl IntoIterator for HeaderStyle {
    type Item = Self;
    type IntoIter = iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

/// The format of an `…-Reset` header, which reports when the limit is entirely unused again.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// The number of seconds until then.
    #[default]
    Seconds,
    /// The Unix timestamp in seconds, by the store's clock. In memory, only decisions with a calendar window follow
    /// corrections of the wall clock: see [`SystemClock`](crate::SystemClock).
    Epoch,
}

pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static IETF: [HeaderName; 2] = [RATE_LIMIT_POLICY, RATE_LIMIT];
static OVERAGE: [HeaderName; 1] = [HeaderName::from_static("ratelimit-overage")];
static X_RETRY_AFTER: [HeaderName; 1] = [HeaderName::from_static("x-ratelimit-retry-after")];
/// The limit, the remaining tokens, and the reset.
static X_RATE_LIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
static X_RATE_LIMIT_DASHED: [HeaderName; 3] = [
    HeaderName::from_static("x-rate-limit-limit"),
    HeaderName::from_static("x-rate-limit-remaining"),
    HeaderName::from_static("x-rate-limit-reset"),
];

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

/// The parts of headers that are the same in all responses, for one limit.
#[derive(Clone, Debug)]
struct LimitText {
    /// `"name"`
    name: String,
    /// `20`
    capacity: HeaderValue,
    algorithm: Algorithm,
}

impl LimitText {
    /// Returns whether the limit has its own numbers in an outcome, whatever its overage.
    fn is_of(&self, outcome: &Outcome) -> bool {
        Algorithm { overage: 0, ..*outcome.algorithm() } == self.algorithm
    }
}

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
        let text = |limit: &Limit| {
            let name = limit.name().replace('\\', r"\\").replace('"', "\\\"");
            let algorithm = *limit.algorithm();
            LimitText { name: format!("\"{name}\""), capacity: number(algorithm.capacity()), algorithm }
        };
        self.limits = limits.iter().map(text).collect();
        let texts = self.limits.iter().zip(limits).filter(|(_, limit)| !limit.is_shadow());
        let enforced: Vec<_> = texts.map(|(text, limit)| (text, limit.algorithm())).collect();
        self.enforced = enforced.len();
        // A file may have thousands of limits, which never apply to one request together.
        let has_calendar = enforced.iter().any(|(_, algorithm)| algorithm.is_calendar());
        let are_constant = self.enforced <= MAX_REPORTED && !has_calendar;
        self.policies = are_constant.then(|| policies(enforced.into_iter(), Timestamp::EPOCH));
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

    /// Adds the headers for `decision` to a response. If the inner service has added headers too, lists are merged, and
    /// of two `X-RateLimit` triples, the one with less remaining is kept. Of more limits than are reported, the tightest
    /// are.
    pub(super) fn write(&self, decision: &Decision, status: StatusCode, headers: &mut HeaderMap) {
        if decision.outcomes().len() > MAX_REPORTED {
            return self.write(&tightest(decision), status, headers);
        }
        if reported(decision).next().is_none() {
            return;
        }
        for style in &self.styles {
            match style {
                HeaderStyle::IetfDraft10 | HeaderStyle::IetfDraft11 => {
                    let has_policies = append(headers, RATE_LIMIT_POLICY, self.policies(decision));
                    if append(headers, RATE_LIMIT, self.quotas(*style, decision)) || has_policies {
                        merge(&IETF, headers, &self.repeats_name);
                    }
                }
                // A limit that has passed does not explain when to retry.
                HeaderStyle::XRateLimit(_) | HeaderStyle::XRateLimitDashed(_)
                    if decision.is_allowed() && rejects(status, headers) => {}
                HeaderStyle::XRateLimit(reset) | HeaderStyle::XRateLimitDashed(reset) => {
                    self.write_triple(style.names(), *reset, decision, headers);
                }
                HeaderStyle::Overage => {
                    let mut over = reported(decision).filter(|outcome| outcome.uses_overage()).peekable();
                    if decision.is_allowed() && over.peek().is_some() {
                        let names = join(over.map(|outcome| self.limits[outcome.limit()].name.as_bytes()));
                        if append(headers, OVERAGE[0].clone(), names) {
                            merge(&OVERAGE, headers, &self.repeats_name);
                        }
                    }
                }
                // Only rejections have it: see `write_retry_after`.
                HeaderStyle::XRetryAfter => {}
            }
        }
    }

    /// Returns the policies of the limits that are reported.
    fn policies(&self, decision: &Decision) -> HeaderValue {
        if let Some(policies) = &self.policies
            && reported(decision).all(|outcome| self.limits[outcome.limit()].is_of(outcome))
            && reported(decision).count() == self.enforced
        {
            return policies.clone();
        }
        let limits = reported(decision).map(|outcome| (&self.limits[outcome.limit()], outcome.algorithm()));
        policies(limits, decision.at())
    }

    /// Returns the remaining tokens of the limits that are reported, and the parameter `t`. What `t` means depends on
    /// the draft.
    fn quotas(&self, style: HeaderStyle, decision: &Decision) -> HeaderValue {
        let mut text = Text::new();
        for outcome in reported(decision) {
            push_separator(&mut text);
            text.extend_from_slice(self.limits[outcome.limit()].name.as_bytes());
            text.extend_from_slice(b";r=");
            push_number(&mut text, outcome.remaining());
            let time = match style {
                HeaderStyle::IetfDraft10 => outcome.more_after(),
                _ => Some(effective_window(outcome, decision.at())),
            };
            if let Some(time) = time {
                text.extend_from_slice(b";t=");
                push_number(&mut text, integer(self.limited(outcome, time)));
            }
        }
        value(&text)
    }

    /// Limits a time to the longest wait, if a client would have to wait for it before it repeats the request.
    fn limited(&self, outcome: &Outcome, time: Duration) -> Duration {
        if outcome.remaining() < outcome.cost().max(1) { time.min(self.longest_wait) } else { time }
    }

    /// Adds a triple for the tightest limit, unless the inner service has added that of a tighter limit. One that is not
    /// complete is replaced. If there is no room for all three headers, adds none.
    fn write_triple(&self, names: &[HeaderName], format: ResetFormat, decision: &Decision, headers: &mut HeaderMap) {
        let ([limit, remaining, reset], Some(outcome)) =
            (names, reported(decision).min_by_key(|outcome| looseness(outcome)))
        else {
            return;
        };
        let inner = headers.get(remaining).and_then(|left| left.to_str().ok()?.parse::<u64>().ok());
        let is_complete = || names.iter().all(|name| headers.contains_key(name));
        if inner.is_some_and(|left| left <= outcome.remaining() && is_complete())
            || headers.try_reserve(names.len()).is_err()
        {
            return;
        }
        let reset_after = self.limited(outcome, outcome.reset_after());
        let seconds = ceil_seconds(match format {
            ResetFormat::Seconds => reset_after,
            ResetFormat::Epoch => Duration::from_micros(decision.at().as_micros()).saturating_add(reset_after),
        });
        let text = &self.limits[outcome.limit()];
        let capacity = if text.is_of(outcome) { text.capacity.clone() } else { number(outcome.algorithm().capacity()) };
        insert(headers, limit.clone(), capacity);
        insert(headers, remaining.clone(), number(outcome.remaining()));
        insert(headers, reset.clone(), number(seconds));
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

/// Formats the policies of limits at an instant, each as `"name";q=20;w=2`.
fn policies<'a>(limits: impl Iterator<Item = (&'a LimitText, &'a Algorithm)>, at: Timestamp) -> HeaderValue {
    let mut text = Text::new();
    for (limit, algorithm) in limits {
        push_separator(&mut text);
        text.extend_from_slice(limit.name.as_bytes());
        text.extend_from_slice(b";q=");
        push_number(&mut text, algorithm.capacity());
        let window = algorithm.window_at(at);
        if window.as_secs() > 0 {
            text.extend_from_slice(b";w=");
            push_number(&mut text, integer(window));
        }
    }
    value(&text)
}

/// Returns the time for which a client should make the remaining tokens last: see
/// [`HeaderStyle::IetfDraft11`].
fn effective_window(outcome: &Outcome, at: Timestamp) -> Duration {
    let algorithm = outcome.algorithm();
    let (window, until_more) = (algorithm.window_at(at), outcome.more_after());
    let until_used = match algorithm.kind {
        Kind::Window(_) => until_more.unwrap_or(window),
        _ => {
            let micros = window.as_micros().saturating_mul(outcome.remaining().into());
            let until_refilled = micros.div_ceil(algorithm.capacity().into());
            Duration::from_micros(until_refilled.min(u64::MAX.into()) as u64).max(until_more.unwrap_or_default())
        }
    };
    outcome.verdict().retry_after().map_or(until_used, |wait| until_used.min(wait))
}

/// Returns the outcomes that are reported to clients. Limits that are not enforced are left out, because clients would
/// slow down for them.
fn reported(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    decision.outcomes().iter().filter(|outcome| outcome.is_enforced())
}

/// Returns whether a response tells the client to retry later.
fn rejects(status: StatusCode, headers: &HeaderMap) -> bool {
    // `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    let is_grpc = || matches!(headers.get(GRPC_STATUS).map(HeaderValue::as_bytes), Some(b"8" | b"14"));
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

/// Returns seconds, rounded up, and at most the largest integer of structured fields (RFC 9651, section 3.3.1).
fn integer(span: Duration) -> u64 {
    ceil_seconds(span).min(999_999_999_999_999)
}

/// A buffer in which texts are built. Short ones take no memory but that of the result. Appending to a `SmallVec` takes
/// more instructions ("allowed, with headers" in `.ci/instructions`).
pub(super) struct Text {
    len: usize,
    inline: [u8; 256],
    /// The whole text, if it does not fit into `inline`.
    heap: Vec<u8>,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { len: 0, inline: [0; 256], heap: Vec::new() }
    }

    #[inline]
    pub(super) fn extend_from_slice(&mut self, piece: &[u8]) {
        let end = self.len + piece.len();
        match self.inline.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(piece),
            None => self.extend_heap(piece),
        }
        self.len = end;
    }

    #[cold]
    fn extend_heap(&mut self, piece: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(piece);
    }

    pub(super) fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.heap)
    }
}

#[inline]
pub(super) fn push_number(text: &mut Text, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Separates the next member of a list from those before.
#[inline]
fn push_separator(text: &mut Text) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
}

/// Creates a header value, in one allocation of its exact length.
pub(super) fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("names of limits, digits and punctuation are visible ASCII")
}

/// Formats a number, in one allocation, where `From<u64>` would make two.
pub(super) fn number(number: u64) -> HeaderValue {
    value(itoa::Buffer::new().format(number).as_bytes())
}

/// Formats a list of members.
fn join<'a>(members: impl Iterator<Item = &'a [u8]>) -> HeaderValue {
    let mut text = Text::new();
    for member in members {
        push_separator(&mut text);
        text.extend_from_slice(member);
    }
    value(&text)
}

/// Sets a header.
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let _ = headers.try_insert(name, value);
}

/// Sets a header, unless the response contains it.
pub(super) fn insert_missing(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if let Ok(entry) = headers.try_entry(name) {
        let _ = entry.or_try_insert(value);
    }
}

/// Adds a line to a header. Returns whether the header had a line before.
fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    headers.try_append(name, value).unwrap_or_default()
}

/// Removes repeated names from lists (RFC 9651), after a layer has appended a line to each. Of several items with the same
/// name in the last list, the one with the least remaining tokens is kept in all lists. If any field is not a list of
/// named items, the lines of the layer replace all others: clients would ignore a field that can't be parsed. Logs a
/// repeated name, unless `is_reported` is set, and then sets that.
#[cold]
fn merge(fields: &[HeaderName], headers: &mut HeaderMap, is_reported: &AtomicBool) {
    let list = |field| -> Option<List> {
        let lines: Vec<_> = headers.get_all(field).iter().map(HeaderValue::as_bytes).collect();
        let list: List = Parser::new(&lines.join(&b", "[..])).parse().ok()?;
        list.iter().all(|item| name(item).is_some()).then_some(list)
    };
    let lists: Option<Vec<List>> = fields.iter().map(list).collect();
    let Some(lists @ [.., quotas]) = lists.as_deref() else {
        for field in fields {
            if let Some(own) = headers.get_all(field).iter().next_back().cloned() {
                insert(headers, field.clone(), own);
            }
        }
        return;
    };
    let count = |items: &[ListEntry], of: &ListEntry| items.iter().filter(|item| name(item) == name(of)).count();
    let mut repeated = lists.iter().flat_map(|items| items.iter().filter(|item| count(items, item) > 1));
    let Some(_repeated) = repeated.next() else { return };
    if !is_reported.swap(true, Ordering::Relaxed) {
        #[cfg(feature = "tracing")]
        tracing::warn!(
            limit = name(_repeated),
            "two nested layers have a limit of this name, and headers list only the one with less remaining: give each \
             limit a name of its own. If one layer was applied twice, it charges requests twice: apply it once",
        );
    }
    for (field, items) in fields.iter().zip(lists) {
        // The item at the position of the one to keep, counted among those of the same name, or the last if there are
        // fewer. The first of items that the last list lacks.
        let kept = items.iter().enumerate().filter(|(index, item)| {
            let quotas = quotas.iter().filter(|quota| name(quota) == name(item)).enumerate();
            let least = quotas.min_by_key(|(_, quota)| remaining(quota)).map_or(0, |(least, _)| least);
            count(&items[..*index], item) == least.min(count(items, item) - 1)
        });
        let kept: List = kept.map(|(_, item)| item.clone()).collect();
        if let Some(Ok(list)) = kept.serialize().map(HeaderValue::try_from) {
            insert(headers, field.clone(), list);
        }
    }
}

/// Returns the name of an item, unless it is not named.
fn name(item: &ListEntry) -> Option<&str> {
    let ListEntry::Item(item) = item else { return None };
    item.bare_item.as_string().map(|name| name.as_str())
}

/// Returns the parameter `r`. Items without it sort last.
fn remaining(item: &ListEntry) -> i64 {
    let ListEntry::Item(Item { params, .. }) = item else { return i64::MAX };
    params.get("r").and_then(|left| left.as_integer()).map_or(i64::MAX, i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_parameters_are_not_parsed_as_the_remaining_tokens() {
        let [policies, quotas] = ["ratelimit-policy", "ratelimit"].map(HeaderName::from_static);
        let mut headers = HeaderMap::new();
        for line in [r#""a";pk="x;r=0;y";r=9"#, r#""a";r=5"#] {
            headers.append(&quotas, HeaderValue::from_static(line));
            headers.append(&policies, HeaderValue::from_static(r#""a";q=10"#));
        }
        merge(&[policies, quotas.clone()], &mut headers, &AtomicBool::new(false));
        assert_eq!(headers.get_all(quotas).iter().collect::<Vec<_>>(), [r#""a";r=5"#]);
    }
}
