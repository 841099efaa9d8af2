//! The permit by which a handler adjusts the charges of its request.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Extensions, Response};

use super::account::Account;
use super::adjustments::Adjusted;
use super::ledger::Ledger;
use crate::decision::{AllowedDecision, Decision};
use crate::engine::SlotGuard;
use crate::error::StoreError;
use crate::limit::Limit;

/// Lets a handler adjust the charges of its request.
///
/// A limiter that [gives permits](crate::Builder::permits) adds one to each request. Take it from the request by
/// extractor (feature `axum`), or by [`of`](Self::of) from its extensions. Clones refer to the same request.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_ratelimit::{ChargeError, FixedWindow, Limit, Permit, RateLimitLayer};
///
/// // A batch costs one token per line. The layer has charged the first.
/// async fn batch(permit: Permit, body: String) -> Result<&'static str, ChargeError> {
///     let more = (body.lines().count() as u64).saturating_sub(1);
///     permit.try_charge(more).await?; // otherwise 429, as the layer would send it
///     Ok("done")
/// }
///
/// let limits = RateLimitLayer::builder([Limit::new("rows", FixedWindow::per_hour(10_000))]).permits().build();
/// let app: Router = Router::new().route("/batch", post(batch)).layer(limits);
/// ```
///
/// If the cost depends on the body alone, let the request reach its handler at [cost 0](crate::RateLimitLayer::cost),
/// and charge it there.
///
/// A permit can be used after the response has begun, for example by a task that produces a stream. The response's
/// headers describe the last decision before the response reached the limiter.
///
/// # Limits that a permit applies to
///
/// A permit applies to all limits that apply to the request, under the keys extracted from it, or to
/// [one of them](Self::limit). A cost is not charged to limits with a [`cost`](Limit::cost) of their own, unless the
/// permit is for that limit alone. If the request is not counted, because no limit applies to it or because of
/// [`OnStoreError::Allow`](crate::OnStoreError::Allow), its permit charges nothing either.
///
/// The charges of the router, the route and the permit can be refunded once, by any of them, as far as they still
/// count: see [`Limiter::refund`](crate::Limiter::refund).
///
/// # Failures
///
/// Charges stay unless they are refunded, even if the handler panics or fails, if the client disconnects and the
/// handler is dropped, or if a future of this permit is dropped before it completes. In these cases, and if the store
/// fails between two calls, limits become stricter, never laxer. To make sure that a refund completes, spawn a task for
/// it.
///
/// A permit remembers about 1,000 charges of each limit. Of more charges that are still in force, it may refund less
/// than it has charged, never more.
#[derive(Clone)]
pub struct Permit {
    ledger: Arc<Ledger>,
    /// The index of the only limit that the permit is for. `None` means all limits.
    only: Option<usize>,
}

/// The result of [`Permit::settle`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Settled {
    /// The state of the limits after the settlement.
    pub decision: Decision,
    /// The tokens that could not be charged for lack of capacity, for the limit that lacked the most. 0 if the
    /// actual cost was charged in full.
    pub shortfall: u64,
}

impl Permit {
    /// Returns the permit of a request with these extensions: that of the innermost limiter that gives permits.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        Ledger::of_permit(extensions).map(|ledger| Self { ledger, only: None })
    }

    /// Returns all limits of the limiter, whether or not they apply, in the order of
    /// [`Charge::limit`](crate::store::Charge::limit).
    pub fn limits(&self) -> &[Limit] {
        &self.ledger.config.engine().limits
    }

    /// Returns a permit for the limit called `name` alone, if that limit applies to the request.
    ///
    /// ```
    /// use tower_ratelimit::{Permit, StoreError};
    ///
    /// async fn logged_in(permit: Permit) -> Result<(), StoreError> {
    ///     if let Some(failures) = permit.limit("failed-logins") {
    ///         failures.reset().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<Self> {
        let index = self.limits().iter().position(|limit| limit.name() == name)?;
        let applies = self.ledger.ask(|_| 0).iter().any(|outcome| outcome.limit() == index) && self.is_for(index);
        applies.then(|| Self { ledger: self.ledger.clone(), only: Some(index) })
    }

    /// Returns the last decision about the request, or the state of the limits after the last refund or reset. Its
    /// receipt is empty, because only the permit can refund.
    pub fn decision(&self) -> Decision {
        self.view(self.ledger.last().unwrap_or_else(Decision::unlimited))
    }

    /// Charges `more` tokens to all limits or to none, or returns the rejection for the handler to respond with.
    ///
    /// To handle a denial differently, use [`charge`](Self::charge). Earlier charges stay in both cases, unless the
    /// handler [refunds](Self::refund) them.
    ///
    /// # Errors
    ///
    /// Returns an error if the charge was denied, or if the store can't decide and the [policy](crate::OnStoreError) is
    /// to reject.
    pub async fn try_charge(&self, more: u64) -> Result<AllowedDecision, ChargeError> {
        match self.charge(more).await {
            Ok(decision) if decision.is_allowed() => Ok(AllowedDecision(decision)),
            cause => Err(ChargeError { ledger: self.ledger.clone(), cause }),
        }
    }

    /// Charges `more` tokens to all limits or to none.
    ///
    /// A denial is `Ok` too: check [`Decision::is_allowed`], or use [`try_charge`](Self::try_charge). After a denial,
    /// earlier charges stay unless the handler [refunds](Self::refund) them, and the handler chooses the response:
    /// [`reject`](Self::reject) creates the one that the limiter would send.
    ///
    /// Under a [`LeakyBucketQueue`](crate::LeakyBucketQueue), the handler has to wait for the decision's
    /// [`delay`](Decision::delay).
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](crate::OnStoreError) is to reject.
    pub async fn charge(&self, more: u64) -> Result<Decision, StoreError> {
        let more = |account: &Account| if self.charges(account) { more } else { 0 };
        Ok(self.view(self.ledger.charge(more).await?))
    }

    /// Records the rejection of the request, and returns the response with which the limiter rejects it after this
    /// denial: its status, body, `Retry-After` and `Cache-Control`. The headers about limits follow when the response
    /// passes the limiter.
    ///
    /// With Axum, convert its body by `.map(Body::from)`.
    ///
    /// A closure of [`on_reject`](crate::Builder::on_reject) sees the request's head without its extensions.
    #[must_use]
    pub fn reject(&self, denied: &Decision) -> Response<Bytes> {
        self.ledger.reject(Some(denied))
    }

    /// Changes the cost of the request to `actual` tokens in the limit that the permit applies to: refunds the excess, or
    /// charges the missing tokens as far as the limit has capacity. May be called repeatedly. The last call determines
    /// the cost.
    ///
    /// Several limits may count different things, such as requests and bytes. Unless only one of those that apply has no
    /// [`cost`](Limit::cost) of its own, settle [one of them](Self::limit) at a time.
    ///
    /// Overage and [debt](Limit::debt) count as capacity. A limit in [shadow mode](Limit::shadow) is charged all missing
    /// tokens or none, and adds nothing to the [shortfall](Settled::shortfall). A limit in
    /// [quota mode](Limit::quota_mode) is left alone if others were charged in its place.
    ///
    /// ```
    /// use axum::http::StatusCode;
    /// use tower_ratelimit::Permit;
    ///
    /// # struct Answer { text: String, tokens: u64 }
    /// # async fn generate() -> Answer { Answer { text: String::new(), tokens: 0 } }
    /// async fn complete(permit: Permit) -> Result<String, StatusCode> {
    ///     let answer = generate().await;
    ///     let settled = permit.settle(answer.tokens).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    ///     if settled.shortfall > 0 {
    ///         println!("{} tokens were over the limit", settled.shortfall);
    ///     }
    ///     Ok(answer.text)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the permit is for several limits without a cost of their own
    /// ([`StoreErrorKind::InvalidCall`](crate::StoreErrorKind::InvalidCall)), if the store can't refund, or if it can't
    /// decide and the [policy](crate::OnStoreError) is to reject.
    pub async fn settle(&self, actual: u64) -> Result<Settled, StoreError> {
        let targets = self.ledger.targets(|account| self.charges(account).then_some(actual));
        if targets.len() > 1 {
            let names: Vec<&str> = targets.iter().map(|(limit, _)| self.limits()[*limit].name()).collect();
            return Err(StoreError::invalid_call(format_args!(
                "a settlement is for several limits, {names:?}: name one by `permit.limit(name)`, or give the others a \
                 cost of their own with `Limit::cost`"
            )));
        }
        let Adjusted { decision, has_refunded, shortfall } = self.ledger.adjust(targets).await?;
        let decision = if has_refunded { self.peek().await } else { decision };
        Ok(Settled { decision: decision.map_or_else(|| self.decision(), |decision| self.view(decision)), shortfall })
    }

    /// Keeps the request's slots under [concurrency limits](crate::Concurrency) until the returned value is dropped, for
    /// work that outlives the response, such as an upgraded connection. `None` if the request holds none, or if they were
    /// released.
    ///
    /// ```
    /// use axum::extract::ws::WebSocketUpgrade;
    /// use axum::response::Response;
    /// use tower_ratelimit::Permit;
    ///
    /// async fn chat(permit: Permit, upgrade: WebSocketUpgrade) -> Response {
    ///     let held = permit.hold();
    ///     upgrade.on_upgrade(async move |socket| {
    ///         let (_held, _socket) = (held, socket); // until the connection ends
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn hold(&self) -> Option<SlotGuard> {
        let slots = self.ledger.slots.as_ref()?.upgrade().filter(|slots| !slots.is_empty())?;
        Some(SlotGuard { decision: self.decision(), slots: Some(slots) })
    }

    /// Refunds everything that the request was charged, including the charges of limits with a cost of their own.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails. The refund is not retried.
    pub async fn refund(&self) -> Result<(), StoreError> {
        let targets = self.ledger.targets(|account| self.is_for(account.asked.limit()).then_some(0));
        if self.ledger.adjust(targets).await?.has_refunded {
            self.peek().await;
        }
        Ok(())
    }

    /// Resets the request's keys, as if they had never been used. The charges of the request can't be refunded any
    /// more.
    ///
    /// A concurrent request with the same keys may have been charged before the reset. Refunding it later, while its
    /// window lasts or until its bucket would have been full, reduces the charges made since the reset.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails. The charges of the request can then still be refunded.
    pub async fn reset(&self) -> Result<(), StoreError> {
        self.ledger.reset(|limit| self.is_for(limit)).await?;
        self.peek().await;
        Ok(())
    }

    /// Records the current state of the limits. A failure is ignored, because the preceding refund or reset has
    /// succeeded.
    async fn peek(&self) -> Option<Decision> {
        let decision = self.ledger.peek().await.ok()?;
        Some(self.ledger.record(decision))
    }

    /// Returns the part of a decision that concerns the limits of the permit.
    fn view(&self, decision: Decision) -> Decision {
        match self.only {
            Some(limit) => decision.only(|index| index == limit),
            None => decision,
        }
    }

    fn is_for(&self, limit: usize) -> bool {
        self.only.is_none_or(|only| only == limit)
    }

    /// Returns whether the limit is charged the costs that are passed to this permit.
    fn charges(&self, account: &Account) -> bool {
        let limit = account.asked.limit();
        self.is_for(limit) && (self.only.is_some() || self.limits()[limit].cost.is_none())
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("only", &self.only).field("decision", &self.ledger.last()).finish()
    }
}

/// A charge that was denied, or that the store could not decide: see
/// [`Permit::try_charge`](crate::Permit::try_charge).
///
/// With the feature `axum`, it implements Axum's `IntoResponse`, so that a handler can return it.
pub struct ChargeError {
    ledger: Arc<Ledger>,
    /// The decision that denied the charge, or the error of the store.
    cause: Result<Decision, StoreError>,
}

impl ChargeError {
    /// Returns the decision that denied the charge, or `None` if the store could not decide.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.cause.as_ref().ok()
    }

    /// Records the rejection of the request, and returns the response to it: 429 for a denial and 503 for a
    /// failed store, unless the limiter is configured otherwise. See [`Permit::reject`].
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        self.ledger.reject(self.decision())
    }
}

/// Shows the message, but not the request, which may contain credentials.
impl fmt::Debug for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Ok(_) => f.write_str("the charge was denied"),
            Err(error) => write!(f, "the charge could not be decided: {error}"),
        }
    }
}

impl Error for ChargeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().err()?.source()
    }
}

/// Permits as extractors, and charge errors as responses.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
mod axum {
    use axum::body::Body;
    use axum::extract::FromRequestParts;
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::{ChargeError, Permit};

    /// Rejects requests without a permit with 500, because only the operator can correct the configuration.
    impl<S: Sync> FromRequestParts<S> for Permit {
        type Rejection = (StatusCode, &'static str);

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
            Self::of(&parts.extensions).ok_or((
                StatusCode::INTERNAL_SERVER_ERROR,
                "the request has no `Permit`: put a `RateLimitLayer` with `.permits()` around the route\n",
            ))
        }
    }

    impl IntoResponse for ChargeError {
        fn into_response(self) -> Response {
            self.response().map(Body::from)
        }
    }
}
