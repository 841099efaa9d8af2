//! Shadow mode, quota mode and penalties.

use super::definition::Limit;
use crate::algorithm::Penalty;

impl Limit {
    /// Puts the limit in shadow mode: it decides and reports, but enforces nothing. Use it to try a limit out.
    ///
    /// A request is charged if the limit has capacity and the enforced limits allow the request. Otherwise, the limit
    /// neither denies nor delays the request, and other limits charge it as usual.
    /// [`Event::ShadowDenied`](crate::Event) and [`Cell::verdict`](crate::store::Cell::verdict) report the decision of
    /// the limit; responses don't show it. It never rejects a request for a missing key or a failing store.
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
    /// [`Cell::is_locked_out`](crate::store::Cell::is_locked_out) flags denials by a lockout, and
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
    /// assert!(codes.acquire("ann", 1).await.unwrap().is_locked_out());
    /// # });
    /// ```
    pub fn penalty(self, penalty: Penalty) -> Self {
        Self { penalty: Some(penalty), ..self }
    }
}
