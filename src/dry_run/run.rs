//! The dry run of one set of limits.

use std::fmt;

use super::report::Report;
use crate::builder::Builder;
use crate::error::{ConfigError, or_panic};
use crate::explain::Explanation;
use crate::http::{HttpOptions, RateLimitLayer};
use crate::key::heads::RequestHead;
use crate::limit::Limit;
use crate::store::MemoryStore;
use crate::time::{Clock, ManualClock, Timestamp};

/// Decides recorded requests, and counts the outcomes of each limit. See the [module](crate::dry_run).
pub struct DryRun {
    layer: RateLimitLayer,
    clock: ManualClock,
    report: Report,
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

    /// Returns the counts so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

impl fmt::Debug for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DryRun").field("layer", &self.layer).field("requests", &self.report.requests).finish()
    }
}
