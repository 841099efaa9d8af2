//! The limiter of requests that do not pass a Tower service.

use std::borrow::Cow;
use std::sync::Arc;
use std::{fmt, mem};

use super::decide::{decide, refund_costs};
use super::explain::explain;
use super::options::RequestOptions;
use super::request_limits::RequestLimits;
use crate::decision::{Decision, Purpose, Receipt};
use crate::error::{ConfigError, or_panic};
use crate::explain::Explanation;
use crate::key::head::RequestHead;
use crate::limit::{Limit, Limits, Live, LiveLimits};
use crate::limiter::Builder;
use crate::recorder::Reason;
use crate::store::StoreFuture;

/// Decides requests by their heads, for transports and proxies that are not Tower services: limits have keys, costs and
/// conditions as in a [`RateLimitLayer`](crate::RateLimitLayer), and rules files and lists apply. The caller turns the
/// decision into an answer of its own.
///
/// A request without HTTP has a head, too: build an [`http::Request`] with what the keys and conditions of the limits
/// read, such as its method, a path, headers, and a [`PeerAddr`](crate::key::PeerAddr) among its extensions. This
/// function answers a line of a protocol, such as `GET /reports ann`:
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{FixedWindow, Limit, RequestHead, RequestLimiter, key};
///
/// async fn answer(limits: &RequestLimiter, line: &str) -> String {
///     let words: Vec<&str> = line.split(' ').collect();
///     let [method, path, user] = words[..] else { return "error".to_owned() };
///     // Anything else, such as `example.org`, would be a URI without a path.
///     let path = if path.starts_with('/') { path } else { return "error".to_owned() };
///     let Ok(request) = Request::builder().method(method).uri(path).header("x-user", user).body(()) else {
///         return "error".to_owned();
///     };
///     match limits.decide(&RequestHead::of(&request)).await {
///         Ok(decision) if decision.is_allowed() => {
///             // Not zero if the limit is a queue.
///             tokio::time::sleep(decision.delay()).await;
///             "allow".to_owned()
///         }
///         Ok(decision) => match decision.retry_after() {
///             Some(wait) => format!("deny {}", wait.as_secs_f64().ceil()),
///             None => "deny".to_owned(),
///         },
///         Err(reason) => format!("reject {reason:?}"),
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let daily = Limit::new("daily", FixedWindow::per_day(1)).by(key::header("x-user"));
/// let limits = RequestLimiter::new([daily]);
/// assert_eq!(answer(&limits, "GET /reports ann").await, "allow");
/// assert!(answer(&limits, "GET /reports ann").await.starts_with("deny "));
/// assert_eq!(answer(&limits, "GET /reports bob").await, "allow");
/// # });
/// ```
///
/// Without Axum's router, requests have no route, and `path` in rules files matches nothing: register it as
/// [`key::path()`](crate::key::path), or insert a [`RoutePattern`](crate::key::RoutePattern). The path is compared as it
/// is spelled, so a limit on `/reports` does not apply to `/%72eports`; a `RoutePattern` has one spelling.
///
/// Limits that depend on a response ([`Limit::count_if`], [`Limit::settle_by`], [`Limit::settle_at_end`]) can't be built:
/// there is none. For the same reason, slots of [concurrency limits](Limit::concurrent) are neither renewed nor returned
/// by themselves, also in memory. The caller [refunds](Self::refund) them when the request has ended. Until then, they
/// count for the [time to live](crate::Concurrency::time_to_live): choose one that is longer than the longest request.
/// [`Limit::longest_hold`] and [`Limit::until_head`] have no effect. A request with a cost of 0 takes no slot.
#[derive(Clone)]
pub struct RequestLimiter {
    limits: Arc<RequestLimits>,
    /// The current limits, if they can be replaced.
    live: Option<Arc<Live<RequestLimits>>>,
}

impl RequestLimiter {
    /// Creates a limiter of requests that keeps its state in memory. Use a [`builder`](Self::builder) for anything else.
    ///
    /// # Panics
    ///
    /// Panics if [`Builder::try_build`] would return an error.
    #[must_use]
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::builder(limits).build()
    }

    /// Returns a builder of a limiter of requests.
    pub fn builder(limits: impl IntoIterator<Item = Limit>) -> Builder<RequestOptions> {
        Builder::new(limits)
    }

    /// Returns a builder with limits that can be replaced at runtime.
    pub fn live_builder(limits: &LiveLimits) -> Builder<RequestOptions> {
        Builder::live(limits)
    }

    /// Decides a request, and charges all limits that apply if it is allowed, or none.
    ///
    /// If a [`LeakyBucketQueue`](crate::LeakyBucketQueue) allows it, the caller continues after the decision's
    /// [`delay`](Decision::delay). A request to which no limit applies, or that [`Builder::never_limit`] exempts, is
    /// allowed, and not recorded. Otherwise, recorders see the decision, and a rejection.
    ///
    /// # Errors
    ///
    /// Returns the reason if the request is rejected without a decision: by a list, for lack of a key, or because the
    /// store can't decide and the [policy](Builder::on_store_error) is to reject. A denial is no error.
    pub async fn decide(&self, head: &RequestHead<'_>) -> Result<Decision, Reason> {
        let decisions = self.decide_all(std::slice::from_ref(head)).await?;
        Ok(decisions.into_iter().next().expect("each request is decided"))
    }

    /// Decides requests together, such as the descriptors of one call, and charges all of them or none. Returns their
    /// decisions, in order. Nothing was charged if one of them denies.
    ///
    /// The call is allowed if all decisions are. Where requests have a limit and a key in common, their costs are added
    /// up, and the size is that of the first. Outcomes show the cost of their request, and the verdict on the sum.
    /// Limits in [quota mode](Limit::quota_mode) count together: one with capacity allows the call.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Decision, FixedWindow, Limit, RequestHead, RequestLimiter, key};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let daily = Limit::new("daily", FixedWindow::per_day(1)).by(key::header("user"));
    /// let limiter = RequestLimiter::new([daily]);
    /// let requests = ["ann", "bob", "ann"].map(|user| Request::builder().header("user", user).body(()).unwrap());
    /// let heads = requests.each_ref().map(RequestHead::of);
    ///
    /// let decisions = limiter.decide_all(&heads).await.unwrap();
    /// let allowed: Vec<bool> = decisions.iter().map(Decision::is_allowed).collect();
    /// assert_eq!(allowed, [false, true, false]);
    /// assert!(limiter.decide(&heads[1]).await.unwrap().is_allowed());
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the reason if a request is rejected without a decision, as by [`decide`](Self::decide), or because more
    /// than 64 limits apply to all of them.
    pub async fn decide_all(&self, heads: &[RequestHead<'_>]) -> Result<Vec<Decision>, Reason> {
        decide(&self.current(), heads).await
    }

    /// Refunds an earlier charge as [`Limiter::refund`](crate::Limiter::refund) does.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, or if the receipt has charges of another limiter. With [`LiveLimits`], charges
    /// of limits that were removed are ignored instead.
    pub fn refund(&self, receipt: Receipt) -> StoreFuture<()> {
        self.current().engine.refund_own(receipt, self.live.is_some())
    }

    /// Refunds the costs of requests without their receipts, for callers that keep none. Returns the decisions that
    /// requests with a cost of 0 would get now.
    ///
    /// Returns the tokens that a [refund](Self::refund) of a charge at this instant would return: at most those that
    /// the key has used, and none of an earlier window. A window returns tokens of the current window, a bucket tokens
    /// that it has not refilled yet, a sliding log or window those of its latest charge or bucket, and a queue its last
    /// slot. So callers who refund more than they were charged free tokens of others with the same key. Prefer a
    /// receipt where there is one.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{FixedWindow, Limit, RequestHead, RequestLimiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let limiter = RequestLimiter::builder([Limit::new("daily", FixedWindow::per_day(10))]).cost(3).build();
    /// let request = Request::new(());
    /// let head = RequestHead::of(&request);
    /// let left = |decision: &tower_ratelimit::Decision| decision.outcomes()[0].remaining();
    ///
    /// assert_eq!(left(&limiter.decide(&head).await.unwrap()), 7);
    /// assert_eq!(left(&limiter.refund_costs(&[head]).await.unwrap()[0]), 10);
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the reason if a request would be rejected without a decision, or [`Reason::StoreFailed`] if the store
    /// fails, whatever the [policy](Builder::on_store_error) is. The store may have refunded the tokens nevertheless.
    /// Recorders see the rejection.
    pub async fn refund_costs(&self, heads: &[RequestHead<'_>]) -> Result<Vec<Decision>, Reason> {
        refund_costs(&self.current(), heads).await
    }

    /// Explains what would happen to a request now, and charges nothing. See [`explain`](crate::explain).
    pub async fn explain(&self, head: &RequestHead<'_>) -> Explanation {
        explain(&self.current(), head, Purpose::Preview).await
    }

    /// Builds a limiter from limits that `derive` accepts, now and when they are replaced.
    pub(super) fn derived(
        builder: Builder<impl AsMut<RequestOptions>>,
        derive: fn(&RequestLimits, &Limits) -> Result<RequestLimits, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let (engine, live, mut options) = builder.without_held_slots().into_engine()?;
        let RequestOptions { lists, cost } = mem::take(options.as_mut());
        let limits = RequestLimits::new(engine, lists, cost);
        let (limits, live) = match live {
            Some(live) => {
                let current = live.derive(&limits, derive)?;
                (limits, Some(current))
            }
            None => (derive(&limits, &limits.engine.limits)?, None),
        };
        Ok(Self { limits: Arc::new(limits), live })
    }

    pub(super) fn current(&self) -> Cow<'_, Arc<RequestLimits>> {
        Live::current_or(&self.live, &self.limits)
    }
}

impl fmt::Debug for RequestLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestLimiter").field(&self.limits.engine).finish()
    }
}

impl Builder<RequestOptions> {
    /// Builds the limiter.
    ///
    /// # Panics
    ///
    /// Panics if [`try_build`](Self::try_build) would return an error.
    #[must_use]
    #[track_caller]
    pub fn build(self) -> RequestLimiter {
        or_panic(self.try_build())
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if the [configuration is invalid](Self#errors), or if a limit depends on a response.
    pub fn try_build(self) -> Result<RequestLimiter, ConfigError> {
        RequestLimiter::derived(self, without_responses)
    }
}

/// Replaces the limits. None of them may depend on a response.
fn without_responses(requests: &RequestLimits, limits: &Limits) -> Result<RequestLimits, ConfigError> {
    limits.iter().try_for_each(Limit::check_needs_no_response)?;
    requests.with_limits(&limits.with_slots_at(None))
}
