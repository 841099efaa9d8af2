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
//! For a rules file, pass `rules.limits(&extractors)?` to [`DryRun::new`]. `cargo run --example dry_run --features
//! policies` compares two files on requests in JSON lines.
//!
//! # What a dry run can't tell
//!
//! - A recording has no responses. So requests are charged their cost on arrival, which neither the response
//!   ([`Limit::count_if`](crate::Limit::count_if), [`Limit::settle_by`](crate::Limit::settle_by)) nor a
//!   [`Permit`](crate::Permit) adjusts.
//! - A recording has no router. If limits depend on the route, as the key `path` of a rules file does, record the
//!   matched route, and insert it as a [`RoutePattern`](crate::key::RoutePattern). Otherwise, all requests share one
//!   key of [`key::matched_route`](crate::key::matched_route), and match no value of `path`.
//! - Clients might have sent other requests, had other requests been denied.
//! - All keys start unused.

mod report;

use std::fmt;

pub use self::report::{Changes, LimitReport, Report, SampleRequest};
use crate::error::{ConfigError, or_panic};
use crate::explain::Explanation;
use crate::http::{HttpOptions, RateLimitLayer};
use crate::key::heads::RequestHead;
use crate::limit::Limit;
use crate::limiter::Builder;
use crate::store::MemoryStore;
use crate::time::{Clock, ManualClock, Timestamp};

/// Decides recorded requests, and counts the outcomes of each limit. See the [module](crate::dry_run).
#[derive(Debug)]
#[non_exhaustive]
pub struct DryRun {
    /// The counts so far.
    pub report: Report,
    layer: RateLimitLayer,
    clock: ManualClock,
}

impl DryRun {
    /// Creates a dry run of limits with the settings of [`RateLimitLayer::new`].
    ///
    /// # Panics
    ///
    /// Panics if the limits can't be decided together. [`from_builder`](Self::from_builder) returns an error instead.
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        or_panic(Self::from_builder(RateLimitLayer::builder(limits)))
    }

    /// Creates a dry run of a layer, with its lists and costs. Its store is replaced by an empty
    /// [`MemoryStore`].
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
    /// Returns an error if [`Builder::try_build`] does.
    pub fn from_builder(builder: Builder<HttpOptions>) -> Result<Self, ConfigError> {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let layer = builder.store(MemoryStore::new().clock(clock.clone())).try_build()?;
        let report = Report::new(layer.limits());
        Ok(Self { layer, clock, report })
    }

    /// Decides a request that arrived at `at`, charges it if it is allowed, and returns the explanation.
    ///
    /// Pass requests in the order of their arrival. A request that is earlier than the previous one is decided at the
    /// time of the previous one. Conditions on the time of day use their own clock.
    pub async fn request(&mut self, at: Timestamp, head: &RequestHead<'_>) -> Explanation {
        self.clock.set(at.max(self.clock.now()));
        let explanation = self.layer.decide_and_explain(head).await;
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
