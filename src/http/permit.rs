//! What a handler may do about what its request is charged.

use std::fmt;
use std::sync::Arc;

use http::Extensions;

use super::ledger::Ledger;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::limit::Limit;
use crate::time::{Clock, SystemClock};

/// A handler's handle on what its request is charged: from a limiter that
/// [gives permits](crate::Builder::permits), by extractor (feature `axum`) or
/// [`of`](Self::of) the request's extensions. Its clones are the same permit.
///
/// ```
/// use axum::{Router, http::StatusCode, routing::post};
/// use tower_ratelimit::{FixedWindow, Limit, Permit, RateLimitLayer};
///
/// // A batch costs what is in it. One was charged before it came here.
/// async fn batch(permit: Permit, body: String) -> Result<&'static str, StatusCode> {
///     let more = (body.lines().count() as u64).saturating_sub(1);
///     let decision = permit.charge(more).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
///     if decision.is_allowed() { Ok("done") } else { Err(StatusCode::TOO_MANY_REQUESTS) }
/// }
///
/// let limits = RateLimitLayer::builder([Limit::new("rows", FixedWindow::per_hour(10_000))]).permits().build();
/// let app: Router = Router::new().route("/batch", post(batch)).layer(limits);
/// ```
///
/// Where it is the body alone that says what a request costs, let it come to its handler for nothing, by
/// [`cost(0)`](crate::RateLimitLayer::cost), and be charged there.
///
/// It stays of use after the response has begun, from a task that sends a stream too. Headers tell the
/// last decision that there was when the response came to the limiter.
///
/// # What it is about
///
/// All limits that apply to the request, under the keys that they have found in it; or one of them, by
/// [`limit`](Self::limit). A cost is not meant for the limits that have a [`cost`](Limit::cost) of their
/// own, as with [`RateLimitLayer::cost`](crate::RateLimitLayer::cost), unless the permit is for that limit
/// alone. A request that nobody has counted, as no limit applies to it or as it goes on by
/// [`OnStoreError::Allow`](crate::OnStoreError::Allow), is not counted by its permit either.
///
/// What a request was charged, by the router, by its route and by its permit, can be given back once,
/// whoever does so: to whom it was paid, as far as it still counts, as with
/// [`Limiter::refund`](crate::Limiter::refund).
///
/// # When all does not go well
///
/// What was charged stays, if nobody gives it back: when a handler panics or fails, when the client hangs
/// up and the handler is dropped, and when a future of this permit's is dropped half way. Then, and when
/// the store fails half way, limits are stricter, never laxer. What must be given back all the same is to
/// be given back by a task of its own.
#[derive(Clone)]
pub struct Permit {
    ledger: Arc<Ledger>,
    /// The limit that it is about, if it is one.
    only: Option<usize>,
}

/// What has come of settling.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settled {
    /// What limits say after it.
    pub decision: Decision,
    /// What there was no room for, in tokens: of the limit that lacked most. 0 where all is paid.
    pub shortfall: u64,
}

impl Permit {
    /// The permit of a request with these extensions: that of the innermost limiter that gives any.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        Ledger::of_permit(extensions).map(|ledger| Self { ledger, only: None })
    }

    /// The limits of the limiter, whether or not they apply, by [`Outcome::limit`](crate::Outcome::limit).
    pub fn limits(&self) -> &[Limit] {
        self.ledger.shared.client.limits().as_slice()
    }

    /// The permit for one limit alone, if it applies to the request.
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
        let (_, bills) = self.ledger.bills(self.ledger.shared.client.limits(), &|_, paid| paid);
        let applies = bills.iter().any(|bill| bill.limit() == index) && self.only.is_none_or(|only| only == index);
        applies.then(|| Self { ledger: self.ledger.clone(), only: Some(index) })
    }

    /// The last decision about the request, or what limits said after something was given back or
    /// forgotten. Its receipt is empty: the permit gives back.
    pub fn decision(&self) -> Decision {
        self.told(None)
    }

    /// Charges `more` tokens, all limits or none. If they are denied, what was charged before stays: to
    /// refuse the request is up to the handler, and to [give back](Self::refund) what it was charged. The
    /// limiter adds the headers that say where limits stand, but `Retry-After` is the handler's to write: the
    /// decision's [`retry_after`](Decision::retry_after) in seconds, rounded up.
    ///
    /// Under a [`LeakyBucketQueue`](crate::LeakyBucketQueue), the decision's
    /// [`delay`](Decision::delay) is for the handler to wait.
    ///
    /// # Errors
    ///
    /// When the store can't decide, and a policy is to refuse.
    pub async fn charge(&self, more: u64) -> Result<Decision, StoreError> {
        let due = |limit, paid: u64| if self.means(limit) { paid.saturating_add(more) } else { paid };
        let decision = self.ledger.charge(&due).await?;
        Ok(self.told(decision))
    }

    /// Makes what the request is charged `actual` tokens: gives back what was too much, or charges what
    /// was too little, as far as each limit has room for it. Said again, the last counts. Overage is room
    /// too; a limit in the [shadow](Limit::shadow) is charged all that is missing or nothing, and leaves
    /// nothing shortfall.
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
    /// When the store can't, or can't decide and a policy is to refuse.
    pub async fn settle(&self, actual: u64) -> Result<Settled, StoreError> {
        let settling = self.ledger.settle(&|limit, paid| if self.means(limit) { actual } else { paid }).await?;
        let decision = if settling.gave_back { self.look().await } else { settling.decision };
        Ok(Settled { decision: self.told(decision), shortfall: settling.shortfall })
    }

    /// Gives back what the request was charged, under limits that have a cost of their own too.
    ///
    /// # Errors
    ///
    /// When the store can't. It is not tried again.
    pub async fn refund(&self) -> Result<(), StoreError> {
        let settling = self.ledger.settle(&|limit, paid| if self.is_about(limit) { 0 } else { paid }).await?;
        if settling.gave_back {
            self.look().await;
        }
        Ok(())
    }

    /// Forgets the request's keys: it is as if they had never been seen. What this request was charged is
    /// forgotten too, and can't be given back any more.
    ///
    /// Other requests with these keys may be under way, which were charged before. If they are given back
    /// later, while their window lasts or until their bucket had been full, that is taken from what was
    /// charged since.
    ///
    /// # Errors
    ///
    /// When the store can't.
    pub async fn reset(&self) -> Result<(), StoreError> {
        self.ledger.reset(self.only).await?;
        self.look().await;
        Ok(())
    }

    /// What is left now. That the store can't say makes nothing undone.
    async fn look(&self) -> Option<Decision> {
        let decision = self.ledger.look()?.await.ok()?;
        Some(self.ledger.note(decision))
    }

    fn told(&self, decision: Option<Decision>) -> Decision {
        let decision = decision.or_else(|| self.ledger.last());
        let decision = decision.unwrap_or_else(|| Decision::by_nobody(SystemClock::new().now()));
        match self.only {
            Some(limit) => decision.only(limit),
            None => decision,
        }
    }

    fn is_about(&self, limit: usize) -> bool {
        self.only.is_none_or(|only| only == limit)
    }

    /// Whether a cost is meant for a limit.
    fn means(&self, limit: usize) -> bool {
        match self.only {
            Some(only) => only == limit,
            None => self.limits().get(limit).is_some_and(|limit| limit.own_cost().is_none()),
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("only", &self.only).field("decision", &self.ledger.last()).finish()
    }
}

/// A request has no [`Permit`]: no limiter that gives any has let it in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PermitRejection;

impl fmt::Display for PermitRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request has no `Permit`: put a `RateLimitLayer` with `.permits()` around the route")
    }
}

impl std::error::Error for PermitRejection {}

#[cfg(feature = "axum")]
mod extractor {
    use axum::extract::FromRequestParts;
    use axum::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::{Permit, PermitRejection};

    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    impl<S: Sync> FromRequestParts<S> for Permit {
        type Rejection = PermitRejection;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, PermitRejection> {
            Self::of(&parts.extensions).ok_or(PermitRejection)
        }
    }

    /// 500: only the operator can mend it.
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    impl IntoResponse for PermitRejection {
        fn into_response(self) -> Response {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{self}\n")).into_response()
        }
    }
}
