//! Options of a limit: what it enforces, its other sizes, and settlement by the response.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::body_end::BodyEnd;
use super::definition::Limit;
use super::spare_capacity::SpareCapacity;
use crate::algorithm::{Algorithm, Penalty};
use crate::error::ConfigError;
use crate::key::head::{RequestHead, ResponseHead};
use crate::select::Condition;

/// What the limit enforces.
impl Limit {
    /// Makes the limit soft: adds an overage of `percent` percent, from 1, rounded down to whole tokens. The percentage
    /// is of the limit of a window, of the capacity of a bucket, or of the length of a queue.
    ///
    /// The overage is used last, and `remaining` does not include it. A request that uses it is allowed and flagged: by
    /// [`Outcome::uses_overage`](crate::store::Outcome::uses_overage), [`Event::OverageUsed`](crate::Event), and with
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
    /// It is a [mistake](crate::Builder#errors) if `percent` is 0, or if the limit and its overage exceed 2^32 − 1
    /// tokens or take more than 142 years to drain. It is reported when a layer or limiter is built.
    pub fn soft(self, percent: u32) -> Self {
        Self { overage: Some(percent), spare_capacity: None, ..self }
    }

    /// Makes the limit elastic: adds an overage as [`soft`](Self::soft) does, but only while there is
    /// `spare_capacity`: an [`InFlight`](crate::InFlight) or a closure. Used overage keeps counting after the
    /// spare capacity is gone. Replaces any previous `soft` or `elastic`.
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
    pub fn elastic(self, percent: u32, spare_capacity: impl SpareCapacity) -> Self {
        Self { overage: Some(percent), spare_capacity: Some(Arc::new(spare_capacity)), ..self }
    }

    /// Puts the limit in shadow mode: it decides and reports, but enforces nothing. Use it to try a limit out.
    ///
    /// A request is charged if the limit has capacity and the enforced limits allow the request. Otherwise, the limit
    /// neither denies nor delays the request, and other limits charge it as usual.
    /// [`Event::ShadowDenied`](crate::Event) and [`Outcome::verdict`](crate::store::Outcome::verdict) report the decision of
    /// the limit; responses don't show it. It never rejects a request for a missing key or a failing store.
    #[doc(alias = "shadow mode")]
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
    /// effect.
    pub fn quota_mode(self) -> Self {
        Self { is_quota: true, ..self }
    }

    /// Returns whether the limit is in [quota mode](Self::quota_mode).
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// Locks out keys that the limit has denied too often, for longer each time: see [`Penalty`].
    /// [`Outcome::is_locked_out`](crate::store::Outcome::is_locked_out) flags denials by a lockout, and
    /// [`Event::PenaltyBegan`](crate::Event) reports its beginning. Under [`count_if`](Self::count_if), denials that are
    /// due to [charges in flight](Penalty#charges-in-flight) do not count. Replaces any previous penalty.
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
    #[doc(alias = "ban")]
    #[doc(alias = "lockout")]
    pub fn penalty(self, penalty: Penalty) -> Self {
        Self { penalty: Some(penalty), ..self }
    }
}

/// Other sizes, for some requests or for single keys.
impl Limit {
    /// Gives the limit another size for requests that meet a condition. Of several sizes, including those of
    /// [`size_by`](Self::size_by), the first one that applies counts.
    ///
    /// Clients see the size that applied. A key's usage carries over to another size with the same algorithm and
    /// period. With another algorithm or period, the key starts unused, and a [`LimitHandle`](crate::LimitHandle) needs
    /// to know [which size](crate::LimitHandle::at_size) it is for. In a bucket with another rate, the used tokens
    /// stay used, including fractions, and each request counts them as they come back at its own rate.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, key, when};
    ///
    /// let daily = Limit::new("daily", FixedWindow::per_day(100))
    ///     .by(key::header("x-api-key"))
    ///     .size_when(when::header("x-plan", "pro"), FixedWindow::per_day(10_000));
    /// # let _ = daily;
    /// ```
    pub fn size_when(self, when: impl Condition, algorithm: impl Into<Algorithm>) -> Self {
        let algorithm = algorithm.into();
        self.has_several_states.fetch_or(!self.algorithm.shares_state_with(&algorithm), Ordering::Relaxed);
        self.size_by(move |head| when.holds(head).then_some(algorithm))
    }

    /// Computes another size of the limit for a request. `None` keeps the limit's own size. See
    /// [`size_when`](Self::size_when). Called inline for each request that the limit applies to; must be fast and must
    /// not block.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use tower_ratelimit::{FixedWindow, Limit, key};
    ///
    /// let contracts = HashMap::from([("customer-42".to_owned(), 10_000)]);
    /// let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).size_by(
    ///     move |head| Some(FixedWindow::per_day(*contracts.get(head.header("x-customer")?)?).into()),
    /// );
    /// # let _ = daily;
    /// ```
    pub fn size_by(mut self, size: impl Fn(&RequestHead<'_>) -> Option<Algorithm> + Send + Sync + 'static) -> Self {
        self.sizes.push(Arc::new(size));
        self
    }

    /// Allows [overrides](crate::LimitHandle#overrides): other sizes for single keys, set at runtime and kept in the
    /// store. An override takes precedence over [`size_when`](Self::size_when), if both have the same algorithm and
    /// period.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).overridable();
    /// let limits = RateLimitLayer::new([daily]);
    ///
    /// let daily = limits.limit("daily").unwrap();
    /// daily.set_override("42", FixedWindow::per_day(10_000), None).await.unwrap();
    /// # });
    /// ```
    pub fn overridable(self) -> Self {
        Self { is_overridable: true, ..self }
    }

    /// Returns whether the limit allows overrides. See [`overridable`](Self::overridable).
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.is_overridable
    }
}

/// Settlement by the response.
impl Limit {
    /// Sets which requests count, by their responses. Defaults to all. Every request is charged before it is forwarded,
    /// so that concurrent requests can't exceed the limit. If its response does not count, the charge is refunded as
    /// far as it is still in force.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_ratelimit::{Limit, SlidingLog, key};
    ///
    /// // Five failed logins per hour and address.
    /// let logins = Limit::new("failed-logins", SlidingLog::per_hour(5))
    ///     .by(key::peer_ip())
    ///     .count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    /// # let _ = logins;
    /// ```
    ///
    /// A request counts until its response arrives: of ten concurrent requests, five are allowed and five are denied,
    /// even if none of the five counts in the end. Requests without a response count too: if the handler panics, the
    /// service fails, or the client disconnects. A refund includes what a [`Permit`](crate::Permit) has charged in
    /// addition. With a [`penalty`](Self::penalty), denials that are due to [charges in
    /// flight](Penalty#charges-in-flight) do not count.
    ///
    /// A store that answers immediately settles before the response is forwarded, and its headers show the result.
    /// Other stores, such as Redis, settle in the background, without delaying the response; its headers show the state
    /// when the request was allowed. A [`LeakyBucketQueue`](crate::LeakyBucketQueue) can refund only its last slot.
    ///
    /// Replaces any previous `count_if` or [`settle_by`](Self::settle_by). The limits of a [`Limiter`](crate::Limiter)
    /// can't have either, because there are no responses.
    pub fn count_if(self, counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        let has_estimate = self.cost_at_end.is_some();
        let settled = self.settle_by(move |response| if counts(response) { None } else { Some(0) });
        Self { has_estimate, ..settled }
    }

    /// Computes the actual cost of a request from its response, in tokens. `None` keeps the charge.
    ///
    /// A lower cost refunds the difference, as far as it is still in force. A higher cost charges the difference, as
    /// far as there is capacity or [debt](Self::debt); [`Event::Shortfall`](crate::Event::Shortfall) reports the rest.
    /// Neither changes the response. [`count_if`](Self::count_if) describes when this happens, and what headers show.
    /// [`settle_at_end`](Self::settle_at_end) settles at the end of the body, and a [`Permit`](crate::Permit) at any
    /// time.
    ///
    /// The cost before the response is an estimate. It is capped at the size that the limit has for the request, so that
    /// one that is too high is allowed when all tokens are left. A smaller [override](Self::overridable) is found only by
    /// the store, so an estimate above it is denied.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // Tokens of a language model: reserves 1,000, and settles by the number that the handler reports.
    /// let tokens = Limit::new("tokens", TokenBucket::per_minute(100_000))
    ///     .by(key::header("x-api-key"))
    ///     .cost(1_000)
    ///     .settle_by(|response| response.header("x-tokens-used")?.parse().ok());
    /// # let _ = tokens;
    /// ```
    pub fn settle_by(mut self, actual: impl Fn(&ResponseHead<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.actual_cost = Some(Arc::new(actual));
        self.has_estimate = true;
        self
    }

    /// Computes the actual cost of a request at the end of its response's body, in tokens: when its last frame or its
    /// trailers have passed, when it fails, or when it is dropped because the client disconnected. `None` keeps the
    /// charge.
    ///
    /// Called once for each response of a request that the limit applies to, inline; must be fast and must not block or
    /// panic. The body is observed, not buffered. A response without a body ends at once. If the request has no
    /// response, because its handler fails or is dropped, the charge stays.
    ///
    /// The cost replaces that of [`settle_by`](Self::settle_by), if both are set, and is charged or refunded likewise.
    /// The first cost is a capped estimate there and here. The headers of the response have been sent by then.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // Reserves 64 KiB of a client's download volume, and charges the bytes that were sent.
    /// let download = Limit::new("download", TokenBucket::per_hour(1_000_000_000))
    ///     .by(key::peer_ip())
    ///     .cost(65_536)
    ///     .settle_at_end(|end| Some(end.bytes));
    /// # let _ = download;
    /// ```
    pub fn settle_at_end(mut self, actual: impl Fn(&BodyEnd<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.cost_at_end = Some(Arc::new(actual));
        self.has_estimate = true;
        self
    }

    /// Lets a settlement exceed the limit and its overage by `percent` percent of the limit, rounded down to whole tokens.
    /// By default, a settlement charges what the limit has capacity for.
    ///
    /// Settlements are those of [`settle_by`](Self::settle_by), [`settle_at_end`](Self::settle_at_end) and
    /// [`Permit::settle`](crate::Permit::settle). What exceeds the debt is a [`Shortfall`](crate::Event::Shortfall). While
    /// a key is [in debt](crate::Outcome::debt), its requests are denied, with the exact wait, and `remaining` is 0. A
    /// bucket pays the debt back at its rate. A window forgets it with its tokens, so [use a
    /// bucket](crate::guide::costs#debt) if all usage must be paid for.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, TokenBucket, key};
    ///
    /// // A request that takes 25,000 tokens is charged in full. The next one waits until the debt is paid.
    /// let tokens = Limit::new("tokens", TokenBucket::per_minute(10_000)).by(key::header("x-api-key")).debt(150);
    /// # let _ = tokens;
    /// ```
    ///
    /// It is a [mistake](crate::Builder#errors) if `percent` is 0, if the limit is a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue), whose requests would wait for the debt of others, or if the limit,
    /// its overage and its debt exceed 2^32 − 1 tokens or take more than 142 years to drain.
    pub fn debt(self, percent: u32) -> Self {
        Self { debt: Some(percent), ..self }
    }
}

impl Limit {
    /// Returns an error if the overage or the debt is 0 percent, if `algorithm` can have no debt, or if all of them exceed
    /// the tokens that a limit can have.
    pub(crate) fn check_overage(&self, algorithm: &Algorithm) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::new(format!("the limit {:?} {message}", self.name)));
        match (self.overage, self.debt) {
            (None, None) => return Ok(()),
            (Some(0), _) => return invalid("is soft by 0 %: use at least 1, or leave it hard"),
            (_, Some(0)) => return invalid("has a debt of 0 %: use at least 1, or leave it out"),
            (_, Some(_)) if algorithm.queue_burst().is_some() => {
                return invalid("is a queue, which can't have a debt: use a token bucket, or leave the debt out");
            }
            _ => {}
        }
        let percent = self.overage.unwrap_or_default().saturating_add(self.debt.unwrap_or_default());
        let [tokens, _] = algorithm.size();
        if algorithm.with_overage(percent).overage() < u64::from(tokens) * u64::from(percent) / 100 {
            return Err(ConfigError::new(format!(
                "the limit {:?} of {} and {percent} % of that are more than the 4,294,967,295 tokens that a limit can \
                 have, or take more than 142 years to drain: lower one",
                self.name,
                algorithm.capacity()
            )));
        }
        Ok(())
    }

    /// Returns an error if the limit has no overrides, or if `size` can't be one for keys with the size `own`.
    pub(crate) fn check_override(&self, own: &Algorithm, size: Option<&Algorithm>) -> Result<(), ConfigError> {
        if !self.is_overridable {
            return Err(ConfigError::new(format!(
                "the limit {:?} has no overrides: call `Limit::overridable` when you build it",
                self.name
            )));
        }
        let Some(algorithm) = size else { return Ok(()) };
        if !own.shares_state_with(algorithm) {
            return Err(self.not_a_size(own, algorithm));
        }
        self.check_overage(algorithm)
    }

    /// Returns an error unless it is clear which state of a key `size` refers to.
    pub(crate) fn check_size(&self, size: Option<&Algorithm>) -> Result<(), ConfigError> {
        match size {
            None if self.has_several_states.load(Ordering::Relaxed) => Err(ConfigError::new(format!(
                "the limit {:?} has sizes of several algorithms or periods: choose one by `LimitHandle::at_size`",
                self.name
            ))),
            Some(size) if self.sizes.is_empty() && !self.algorithm.shares_state_with(size) => {
                Err(self.not_a_size(&self.algorithm, size))
            }
            _ => Ok(()),
        }
    }

    fn not_a_size(&self, own: &Algorithm, given: &Algorithm) -> ConfigError {
        ConfigError::new(format!(
            "{given} is not a size of the limit {:?}, which is {own}: use the same algorithm and period, and change \
             only the tokens",
            self.name
        ))
    }
}
