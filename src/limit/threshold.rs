//! Thresholds: overage, shadow mode, quota mode and penalties.

use std::sync::Arc;

use super::builder::{Limit, Overage};
use crate::algorithm::{Algorithm, Penalty};
use crate::error::{ConfigError, ConfigErrorKind, or_panic};
use crate::signal::Signal;

impl Limit {
    /// Makes the limit soft: adds an overage of `percent` percent, from 1, rounded down to whole tokens. The percentage is
    /// of the limit of a window, of the capacity of a bucket, or of the length of a queue.
    ///
    /// The overage is used last, and `remaining` does not include it. A request that uses it is allowed and flagged: by
    /// [`Outcome::uses_overage`](crate::Outcome::uses_overage), [`Event::OverageUsed`](crate::Event), and with
    /// [`HeaderStyle::Overage`](crate::HeaderStyle::Overage) by a header.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(10)).soft(20)]);
    /// assert!(!mails.acquire("ann", 10).await.unwrap().outcomes()[0].uses_overage());
    ///
    /// let over = mails.acquire("ann", 2).await.unwrap();
    /// assert!(over.is_allowed() && over.outcomes()[0].uses_overage());
    /// assert!(!mails.acquire("ann", 1).await.unwrap().is_allowed());
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens. [`try_soft`](Self::try_soft) returns
    /// an error instead.
    #[track_caller]
    pub fn soft(self, percent: u32) -> Self {
        or_panic(self.try_soft(percent))
    }

    /// Fallible version of [`soft`](Self::soft).
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens.
    pub fn try_soft(self, percent: u32) -> Result<Self, ConfigError> {
        self.with_overage(percent, None)
    }

    /// Makes the limit elastic: adds an overage as [`soft`](Self::soft) does, but only while `signal` reports spare
    /// capacity. Use [`InFlight`](crate::InFlight) or a closure as the signal. Used overage keeps counting after the spare
    /// capacity is gone. Replaces any previous `soft` or `elastic`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// let is_idle = Arc::new(AtomicBool::new(true));
    /// let limit = Limit::new("search", TokenBucket::per_second(10))
    ///     .by(key::peer_ip())
    ///     .elastic(100, move || is_idle.load(Ordering::Relaxed));
    /// # let _ = limit;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens. [`try_elastic`](Self::try_elastic)
    /// returns an error instead.
    #[track_caller]
    pub fn elastic(self, percent: u32, signal: impl Signal) -> Self {
        or_panic(self.try_elastic(percent, signal))
    }

    /// Fallible version of [`elastic`](Self::elastic).
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is 0, or the limit and its overage exceed 2^32 − 1 tokens.
    pub fn try_elastic(self, percent: u32, signal: impl Signal) -> Result<Self, ConfigError> {
        self.with_overage(percent, Some(Arc::new(signal)))
    }

    fn with_overage(self, percent: u32, signal: Option<Arc<dyn Signal>>) -> Result<Self, ConfigError> {
        if percent == 0 {
            return Err(ConfigErrorKind::SoftZero { limit: self.name.to_string() }.into());
        }
        self.check_overage(&self.algorithm, percent)?;
        Ok(Self { overage: Some(Overage { percent, signal }), ..self })
    }

    /// Returns an error if `algorithm` and an overage of `percent` percent exceed 2^32 − 1 tokens.
    pub(super) fn check_overage(&self, algorithm: &Algorithm, percent: u32) -> Result<(), ConfigError> {
        let capacity = algorithm.capacity();
        if capacity + capacity * u64::from(percent) / 100 > u32::MAX.into() {
            return Err(ConfigErrorKind::SoftTooLarge { limit: self.name.to_string(), percent, capacity }.into());
        }
        Ok(())
    }

    /// Puts the limit in shadow mode: it decides and reports, but enforces nothing. Use it to try a limit out.
    ///
    /// A request is charged if the limit has capacity and the enforced limits allow the request. Otherwise, the limit
    /// neither denies nor delays the request, and other limits charge it as usual.
    /// [`Event::ShadowDenied`](crate::Event) and [`Outcome::verdict`](crate::Outcome::verdict) report the decision of the
    /// limit; responses don't show it. It never rejects a request for a missing key or a failing store.
    pub fn shadow(self) -> Self {
        Self { is_shadow: true, ..self }
    }

    /// Returns whether the limit is in [shadow mode](Self::shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Puts the limit in quota mode: the limits in quota mode that apply to a request deny it only if none of them has
    /// capacity. Those that have capacity are charged; the others are not.
    ///
    /// A single limit in quota mode denies like any other. Limits that are not in quota mode must have capacity in any
    /// case: if one has none, nothing is charged. Clients see the quotas with capacity, or otherwise the first one that
    /// will have capacity again.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let quotas = Limiter::new([
    ///     Limit::new("own", FixedWindow::per_day(1)).quota_mode(),
    ///     Limit::new("team", FixedWindow::per_day(2)).quota_mode(),
    /// ]);
    /// assert!(quotas.acquire("ann", 1).await.unwrap().is_allowed());
    /// // Ann's own quota is used up, but the team's is not.
    /// assert!(quotas.acquire("ann", 1).await.unwrap().is_allowed());
    /// assert!(!quotas.acquire("ann", 1).await.unwrap().is_allowed());
    /// # });
    /// ```
    ///
    /// A limit in quota mode can't have a [penalty](Self::penalty). In [shadow mode](Self::shadow), quota mode has no
    /// effect. A `RedisStore` does not [remember](crate::store::Store::remembered) denials of a request with several
    /// limits of which one is in quota mode, so each such request is sent to Redis.
    pub fn quota_mode(self) -> Self {
        Self { is_quota: true, ..self }
    }

    /// Returns whether the limit is in [quota mode](Self::quota_mode).
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// Locks out keys that the limit has denied too often, for longer each time: see [`Penalty`].
    /// [`Outcome::is_penalty`](crate::Outcome::is_penalty) flags denials by a lockout, and
    /// [`Event::PenaltyBegan`](crate::Event) reports its beginning. Replaces any previous penalty.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, Penalty};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let hour = Duration::from_secs(3_600);
    /// let codes = Limiter::new([
    ///     Limit::new("codes", FixedWindow::per_minute(3)).penalty(Penalty::after(2, hour).locked_out_for(hour)),
    /// ]);
    /// for _ in 0..3 {
    ///     assert!(codes.acquire("ann", 1).await.unwrap().is_allowed());
    /// }
    /// assert!(codes.acquire("ann", 1).await.unwrap().retry_after().unwrap().as_secs() <= 60);
    /// assert!(codes.acquire("ann", 1).await.unwrap().is_penalty());
    /// # });
    /// ```
    pub fn penalty(self, penalty: Penalty) -> Self {
        Self { penalty: Some(penalty), ..self }
    }
}
