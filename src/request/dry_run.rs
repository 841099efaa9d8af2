//! Dry runs of limits on recorded requests.
//!
//! A [`DryRun`] decides recorded requests at their own times, in memory. It counts the requests that each limit would
//! have denied. A [`Comparison`] runs two sets of limits, such as two versions of a rules file, and reports the
//! requests that only one of them denies.
//!
//! ```
//! use http::Request;
//! use tower_ratelimit::dry_run::{Comparison, DryRun};
//! use tower_ratelimit::key::PeerAddr;
//! use tower_ratelimit::{FixedWindow, Limit, RequestHead, Timestamp, key};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let hourly = |requests| [Limit::new("hourly", FixedWindow::per_hour(requests)).by(key::peer_ip())];
//! let mut comparison = Comparison::new(DryRun::new(hourly(3)), DryRun::new(hourly(2)));
//!
//! for second in 0..5 {
//!     let mut request = Request::get("/").body(()).unwrap();
//!     request.extensions_mut().insert(PeerAddr(([192, 0, 2, 7], 50_000).into()));
//!     comparison.request(Timestamp::from_micros(second * 1_000_000), &RequestHead::of(&request)).await;
//! }
//!
//! assert_eq!(comparison.before.report.denied, 2);
//! assert_eq!(comparison.after.report.denied, 3);
//! assert_eq!(comparison.newly_denied.count, 1);
//! # });
//! ```
//!
//! For a rules file, pass `rules::from_file(path, &extractors)?` to [`DryRun::new`]. The example `dry_run` in the
//! repository compares two files on requests in JSON lines.
//!
//! # What a dry run can't tell
//!
//! - A recording has no responses. So requests are charged their cost on arrival, which neither the response
//!   ([`Limit::count_if`](crate::Limit::count_if), [`Limit::settle_by`](crate::Limit::settle_by),
//!   [`Limit::settle_at_end`](crate::Limit::settle_at_end)) nor a [`Permit`](crate::Permit) adjusts.
//! - A recording does not say when requests end, so [concurrency limits](crate::Limit::concurrent) deny none.
//! - A recording has no router. If limits depend on the route, as the key `path` of a rules file does, record the
//!   matched route, and insert it as a [`RoutePattern`](crate::key::RoutePattern). Otherwise, all requests share one
//!   key of [`key::matched_route`](crate::key::matched_route), and match no value of `path`.
//! - Clients might have sent other requests, had other requests been denied.
//! - All keys start unused.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::explain::explain;
use super::options::RequestOptions;
use super::request_limiter::RequestLimiter;
use crate::algorithm::date_and_time;
use crate::decision::DecidedBy;
use crate::error::{ConfigError, or_panic, printable};
use crate::explain::{Conclusion, Explanation, KeyParts, LimitExplanation};
#[cfg(feature = "serde")]
use crate::explain::{serialize_instant, serialize_span};
use crate::key::head::RequestHead;
use crate::limit::{CostRule, Limit};
use crate::limiter::Builder;
use crate::store::{MemoryStore, Purpose};
use crate::text::RoundedUp;
use crate::time::{Clock, ManualClock, Timestamp};

/// Decides recorded requests, and counts the outcomes of each limit. See the [module](crate::dry_run).
#[derive(Debug)]
#[non_exhaustive]
pub struct DryRun {
    /// The counts so far.
    pub report: Report,
    limits: RequestLimiter,
    clock: ManualClock,
}

impl DryRun {
    /// Creates a dry run of limits in which each request costs 1 token.
    ///
    /// # Panics
    ///
    /// Panics if the limits can't be decided together. [`from_builder`](Self::from_builder) returns an error instead.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        or_panic(Self::from_builder(RequestLimiter::builder(limits)))
    }

    /// Creates a dry run of a [`RequestLimiter`] or a [`RateLimitLayer`](crate::RateLimitLayer), with its lists and
    /// costs. Its store is replaced by an empty [`MemoryStore`].
    ///
    /// ```
    /// use tower_ratelimit::dry_run::DryRun;
    /// use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .costs(CostTable::new().path("/reports", 10));
    /// let run = DryRun::from_builder(layer)?;
    /// # let _ = run;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the [configuration is invalid](Builder#errors).
    pub fn from_builder(builder: Builder<impl AsMut<RequestOptions>>) -> Result<Self, ConfigError> {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let builder = builder.store(MemoryStore::new().clock(clock.clone()));
        let limits = RequestLimiter::derived(builder, |requests, limits| {
            requests.with_limits(&limits.with_slots_at(Some(CostRule::Constant(0))))
        })?;
        let report = Report::new(&limits.current().engine.limits);
        Ok(Self { limits, clock, report })
    }

    /// Decides a request that arrived at `at`, charges it if it is allowed, and returns the explanation.
    ///
    /// Pass requests in the order of their arrival. A request that is earlier than the previous one is decided at the
    /// time of the previous one. Conditions on the time of day use their own clock.
    pub async fn request(&mut self, at: Timestamp, head: &RequestHead<'_>) -> Explanation {
        self.clock.set(at.max(self.clock.now()));
        let explanation = explain(&self.limits.current(), head, Purpose::Take).await;
        self.report.count(self.clock.now(), head, &explanation);
        explanation
    }
}

/// Compares the decisions of two sets of limits about the same requests. See the [module](crate::dry_run).
///
/// `Display` writes the changes for a terminal.
#[derive(Debug)]
#[non_exhaustive]
pub struct Comparison {
    /// The dry run of the old limits.
    pub before: DryRun,
    /// The dry run of the new limits.
    pub after: DryRun,
    /// The requests that only the new limits deny or reject.
    pub newly_denied: Changes,
    /// The requests that only the old limits deny or reject.
    pub newly_allowed: Changes,
}

impl Comparison {
    /// Creates a comparison of limits that have decided no request yet.
    #[must_use]
    pub fn new(before: DryRun, after: DryRun) -> Self {
        Self { before, after, newly_denied: Changes::default(), newly_allowed: Changes::default() }
    }

    /// Decides a request by both sets of limits, and notes if their decisions differ. See [`DryRun::request`].
    pub async fn request(&mut self, at: Timestamp, head: &RequestHead<'_>) {
        let before = self.before.request(at, head).await;
        let after = self.after.request(at, head).await;
        let at = self.after.clock.now();
        match (before.is_allowed(), after.is_allowed()) {
            (true, false) => self.newly_denied.add(at, head, &after),
            (false, true) => self.newly_allowed.add(at, head, &before),
            (true, true) | (false, false) => {}
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "before: {}", self.before.report)?;
        writeln!(f, "after: {}", self.after.report)?;
        writeln!(f, "newly denied: {}", self.newly_denied)?;
        write!(f, "newly allowed: {}", self.newly_allowed)
    }
}

/// The most samples that are kept of each kind.
const MAX_SAMPLES: usize = 5;

/// The counts of a dry run. `Display` writes them for a terminal.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The number of requests.
    pub requests: u64,
    /// The number of allowed requests, including those without a limit.
    pub allowed: u64,
    /// The number of requests that a limit denied.
    pub denied: u64,
    /// The number of requests that were rejected because of a list or a missing key.
    pub rejected: u64,
    /// The number of requests to which no limit applied, or that a list exempts. They were allowed.
    pub unlimited: u64,
    /// The limits, in order. An `unlimited` block of a rules file is not a limit.
    pub limits: Vec<LimitReport>,
}

/// The counts of one limit.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitReport {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The path of its descriptor, if the limit comes from a rules file.
    pub rule: Option<Arc<str>>,
    /// The number of requests that the limit decided.
    pub requests: u64,
    /// The number of requests for which the limit had capacity. Another limit may have denied them.
    pub allowed: u64,
    /// The number of requests that the limit denied.
    pub denied: u64,
    /// The number of requests for which the limit had no capacity, but was not enforced: in shadow mode, or because
    /// another limit in quota mode had capacity.
    pub shadow_denied: u64,
    /// The number of requests that were rejected because they had no key for the limit.
    pub missing_key: u64,
    /// The first requests that the limit denied, or would deny if it were enforced: at most five.
    pub samples: Vec<SampleRequest>,
}

/// A recorded request, as an example in a report.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SampleRequest {
    /// The time at which it was decided: when it arrived, or the time of the previous request if that is later.
    #[cfg_attr(feature = "serde", serde(rename = "at_seconds", serialize_with = "serialize_instant"))]
    pub at: Timestamp,
    /// The method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The wait of the limit in a [`LimitReport`], or of the whole decision in [`Changes`]. `None` if
    /// no wait can help, or if the request was allowed.
    #[cfg_attr(feature = "serde", serde(rename = "retry_after_seconds", serialize_with = "serialize_span"))]
    pub retry_after: Option<Duration>,
    /// The limit of the [`LimitReport`], or the limits that deny or reject the request, in [`Changes`].
    pub limits: Vec<LimitExplanation>,
}

/// The requests that only one of two sets of limits denies or rejects.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Changes {
    /// The number of requests.
    pub count: u64,
    /// The first requests, at most five. `retry_after` is that of the limits that deny the request.
    pub samples: Vec<SampleRequest>,
}

impl Report {
    fn new(limits: &[Limit]) -> Self {
        let limit = |limit: &Limit| LimitReport::new(&LimitExplanation::new(limit));
        Self { limits: limits.iter().map(limit).collect(), ..Self::default() }
    }

    /// Counts a request and its decision.
    fn count(&mut self, at: Timestamp, head: &RequestHead<'_>, explanation: &Explanation) {
        self.requests += 1;
        match explanation.conclusion {
            Conclusion::Allowed { .. } | Conclusion::Exempt => self.allowed += 1,
            Conclusion::Denied { .. } => self.denied += 1,
            Conclusion::Listed { .. } | Conclusion::MissingKey { .. } | Conclusion::StoreFailed => self.rejected += 1,
        }
        let is_unlimited =
            explanation.decided_by == Some(DecidedBy::Unlimited) || explanation.conclusion == Conclusion::Exempt;
        self.unlimited += u64::from(is_unlimited);
        for (index, limit) in explanation.limits.iter().enumerate() {
            let count = self.limits.len();
            // Its report is at the same position unless live limits have been replaced.
            let known = (index..count).chain(0..count).find(|index| self.limits[*index].name == limit.name);
            if known.is_none() {
                self.limits.push(LimitReport::new(limit));
            }
            self.limits[known.unwrap_or(count)].count(at, head, limit);
        }
    }
}

impl LimitReport {
    fn new(limit: &LimitExplanation) -> Self {
        Self { name: limit.name.clone(), rule: limit.rule.clone(), ..Self::default() }
    }

    fn count(&mut self, at: Timestamp, head: &RequestHead<'_>, limit: &LimitExplanation) {
        self.missing_key += u64::from(limit.rejects());
        let Some(outcome) = limit.outcome() else { return };
        self.requests += 1;
        self.allowed += u64::from(outcome.is_allowed());
        self.denied += u64::from(outcome.denies());
        self.shadow_denied += u64::from(!outcome.is_allowed() && !outcome.is_enforced());
        if !outcome.is_allowed() && self.samples.len() < MAX_SAMPLES {
            self.samples.push(SampleRequest::new(at, head, outcome.verdict().retry_after(), vec![limit.clone()]));
        }
    }
}

impl Changes {
    fn add(&mut self, at: Timestamp, head: &RequestHead<'_>, denial: &Explanation) {
        self.count += 1;
        if self.samples.len() < MAX_SAMPLES {
            let limits = denial.limits.iter().filter(|limit| limit.denies()).cloned().collect();
            self.samples.push(SampleRequest::new(at, head, denial.retry_after(), limits));
        }
    }
}

impl SampleRequest {
    fn new(
        at: Timestamp,
        head: &RequestHead<'_>,
        retry_after: Option<Duration>,
        limits: Vec<LimitExplanation>,
    ) -> Self {
        Self { at, method: head.method.to_string(), path: head.path().to_owned(), retry_after, limits }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, allowed, denied, rejected, unlimited, limits } = self;
        write!(f, "{denied} of {requests} requests denied, {rejected} rejected, {allowed} allowed")?;
        write!(f, ", of which {unlimited} without a limit")?;
        limits.iter().try_for_each(|limit| write!(f, "\n  {limit}"))
    }
}

impl fmt::Display for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(rule) = &self.rule {
            write!(f, " ({})", printable(rule))?;
        }
        write!(f, ": {} of {} requests denied", self.denied, self.requests)?;
        if self.shadow_denied > 0 {
            write!(f, ", {} would be denied if it were enforced", self.shadow_denied)?;
        }
        if self.missing_key > 0 {
            write!(f, ", {} rejected without a key", self.missing_key)?;
        }
        self.samples.iter().try_for_each(|sample| write!(f, "\n    {sample}"))
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count.fmt(f)?;
        self.samples.iter().try_for_each(|sample| write!(f, "\n  {sample}"))
    }
}

impl fmt::Display for SampleRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, path) = (printable(&self.method), printable(&self.path));
        write!(f, "{} {method} {path}", date_and_time(self.at))?;
        if let Some(wait) = self.retry_after {
            write!(f, ", retry after {}", RoundedUp(wait))?;
        }
        self.limits.iter().try_for_each(|limit| write!(f, "; {}{}", limit.name, KeyParts(&limit.key)))
    }
}
