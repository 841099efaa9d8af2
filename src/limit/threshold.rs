//! What a limit does where it has no room: overage, shadow, penalties, and other sizes for some requests.

use std::sync::Arc;

use super::Limit;
use crate::algorithm::{Algorithm, Penalty};
use crate::error::{ConfigError, ConfigErrorKind, or_panic};
use crate::request::RequestHead;
use crate::signal::Signal;
use crate::when::Condition;

/// How much may be used beyond a limit, and when.
#[derive(Clone)]
pub(super) struct Overage {
    pub(super) percent: u32,
    /// Always, if there is none.
    pub(super) signal: Option<Arc<dyn Signal>>,
}

/// The size of a limit for a request, where it is another.
pub(super) type Instead = dyn Fn(&RequestHead<'_>) -> Option<Algorithm> + Send + Sync;

impl Limit {
    /// A soft limit: `percent` per cent of it, from 1, rounded down to whole tokens, may be used beyond
    /// it (of a bucket, of its capacity; of a queue, of those that may wait). That is its overage, used
    /// last. What is left is told without it; a request that uses any of it is allowed, and flagged:
    /// [`Outcome::uses_overage`](crate::Outcome::uses_overage), [`Event::OverageUsed`](crate::Event), and
    /// with [`HeaderStyle::Overage`](crate::HeaderStyle::Overage) a header.
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
    /// When `percent` is 0, or the limit and its overage are more than 2^32 − 1 tokens.
    /// [`try_soft`](Self::try_soft) returns an error instead.
    #[track_caller]
    pub fn soft(self, percent: u32) -> Self {
        or_panic(self.try_soft(percent))
    }

    /// Like [`soft`](Self::soft), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `percent` is 0, or the limit and its overage are more than 2^32 − 1 tokens.
    pub fn try_soft(self, percent: u32) -> Result<Self, ConfigError> {
        self.with_overage(percent, None)
    }

    /// Like [`soft`](Self::soft), but the overage is there only while the application has capacity to
    /// spare: by [`InFlight`](crate::InFlight), or by a closure. What was used of it counts on when it is
    /// gone. Of this and `soft`, the last counts.
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
    /// When `percent` is 0, or the limit and its overage are more than 2^32 − 1 tokens.
    /// [`try_elastic`](Self::try_elastic) returns an error instead.
    #[track_caller]
    pub fn elastic(self, percent: u32, signal: impl Signal) -> Self {
        or_panic(self.try_elastic(percent, signal))
    }

    /// Like [`elastic`](Self::elastic), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `percent` is 0, or the limit and its overage are more than 2^32 − 1 tokens.
    pub fn try_elastic(self, percent: u32, signal: impl Signal) -> Result<Self, ConfigError> {
        self.with_overage(percent, Some(Arc::new(signal)))
    }

    fn with_overage(self, percent: u32, signal: Option<Arc<dyn Signal>>) -> Result<Self, ConfigError> {
        let limit = || self.name.to_string();
        if percent == 0 {
            return Err(ConfigErrorKind::SoftZero { limit: limit() }.into());
        }
        let capacity = self.algorithm.capacity();
        if capacity + capacity * u64::from(percent) / 100 > u32::MAX.into() {
            return Err(ConfigErrorKind::SoftTooLarge { limit: limit(), percent, capacity }.into());
        }
        Ok(Self { overage: Some(Overage { percent, signal }), ..self })
    }

    /// Decides and reports, and enforces nothing: to try a limit out. It is charged if it has room and the
    /// limits that are enforced allow the request; if it has none, it denies nothing, delays nothing and
    /// keeps no other limit from being charged. [`Event::ShadowDenied`](crate::Event) and
    /// [`Outcome::verdict`](crate::Outcome::verdict) tell what it would have done; clients are told nothing
    /// of it. It never refuses a request for a missing key or for a store that fails.
    pub fn shadow(self) -> Self {
        Self { is_shadow: true, ..self }
    }

    /// Puts the limit in quota mode: a request is denied by the limits in quota mode that apply to it only if none of
    /// them has room. Each of them that has room is charged, and those that have none are not.
    ///
    /// Alone, it denies as any other limit. The limits that are not in quota mode have to have room in any case; if one
    /// has none, nothing is charged. Clients are told of the quotas that have room, or else of the one that will have
    /// room first, which is when they may come back.
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
    /// // Her own quota is used up, but the team's is not.
    /// assert!(quotas.acquire("ann", 1).await.unwrap().is_allowed());
    /// assert!(!quotas.acquire("ann", 1).await.unwrap().is_allowed());
    /// # });
    /// ```
    ///
    /// A limit in quota mode can't have a [penalty](Self::penalty). In the [shadow](Self::shadow), it is no quota.
    pub fn quota_mode(self) -> Self {
        Self { is_quota: true, ..self }
    }

    /// Whether it is in [quota mode](Self::quota_mode).
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// Refuses whoever it has denied too often, for a while, and longer each time: [`Penalty`] says how.
    /// [`Outcome::is_penalty`](crate::Outcome::is_penalty) tells, and [`Event::PenaltyBegan`](crate::Event)
    /// when one begins.
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

    /// Another size of this limit for the requests for which a condition holds. Of several, the first that
    /// holds counts; [`instead_by`](Self::instead_by) is one of them.
    ///
    /// Clients are told the size that applied. What a key has used counts on in another size of the same
    /// algorithm and period; under another algorithm or period it starts anew. In a bucket of another rate, the
    /// tokens that are missing stay missing, to the fraction, and come back at the rate by which the key was
    /// last decided.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, key, when};
    ///
    /// let daily = Limit::new("daily", FixedWindow::per_day(100))
    ///     .by(key::header("x-api-key"))
    ///     .instead(when::header("x-plan", "pro"), FixedWindow::per_day(10_000));
    /// # let _ = daily;
    /// ```
    pub fn instead(self, when: impl Condition, algorithm: impl Into<Algorithm>) -> Self {
        let algorithm = algorithm.into();
        self.instead_by(move |head| when.holds(head).then_some(algorithm))
    }

    /// Another size of this limit for the requests for which a closure returns one: see
    /// [`instead`](Self::instead). It is asked for each request, on the task that serves it, and should not
    /// block.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use tower_ratelimit::{FixedWindow, Limit, key};
    ///
    /// let contracts = HashMap::from([("customer-42".to_owned(), 10_000)]);
    /// let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).instead_by(
    ///     move |head| Some(FixedWindow::per_day(*contracts.get(head.header("x-customer")?)?).into()),
    /// );
    /// # let _ = daily;
    /// ```
    pub fn instead_by(mut self, size: impl Fn(&RequestHead<'_>) -> Option<Algorithm> + Send + Sync + 'static) -> Self {
        self.instead.push(Arc::new(size));
        self
    }

    /// Lets single keys have another size of it, which is set at run time and kept in the store: see
    /// [`Overrides`](crate::Overrides). Where [`instead`](Self::instead) says another size for a request too, that
    /// of its key counts, if both are of one algorithm and period.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).overridable();
    /// let limits = RateLimitLayer::new([daily]);
    ///
    /// let overrides = limits.overrides("daily").unwrap();
    /// overrides.set("42", FixedWindow::per_day(10_000), None).await.unwrap();
    /// # });
    /// ```
    pub fn overridable(self) -> Self {
        Self { is_overridable: true, ..self }
    }

    /// Whether single keys may have another size of it: see [`overridable`](Self::overridable).
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.is_overridable
    }

    /// Refuses another size of it that keys can't have.
    pub(crate) fn can_be(&self, algorithm: &Algorithm) -> Result<(), ConfigError> {
        let limit = || self.name.to_string();
        if self.algorithm.sized(algorithm.size()) != Some(*algorithm) {
            let [is, given] = [&self.algorithm, algorithm].map(Algorithm::describe);
            return Err(ConfigErrorKind::OverrideAlgorithm { limit: limit(), is, given }.into());
        }
        let percent = self.overage.as_ref().map_or(0, |overage| overage.percent);
        let capacity = algorithm.capacity();
        if capacity + capacity * u64::from(percent) / 100 > u32::MAX.into() {
            return Err(ConfigErrorKind::SoftTooLarge { limit: limit(), percent, capacity }.into());
        }
        Ok(())
    }

    /// Whether it is decided and not enforced: see [`shadow`](Self::shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    pub(crate) fn has_other_sizes(&self) -> bool {
        !self.instead.is_empty()
    }

    /// Its size for a request, where it is another.
    pub(super) fn size_for(&self, head: &RequestHead<'_>) -> Option<Algorithm> {
        let size = self.instead.iter().find_map(|size| size(head));
        size.filter(|size| *size != self.algorithm)
    }
}
