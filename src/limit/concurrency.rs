//! Limits of the requests in flight, and their options.

#[cfg(feature = "tracing")]
use std::sync::Once;
use std::time::Duration;

use super::cost::CostRule;
use super::definition::Limit;
use crate::algorithm::{Algorithm, Concurrency};
use crate::error::ConfigError;

impl Limit {
    /// Creates a limit of the requests in flight: short for [`Limit::new`] with a [`Concurrency`].
    ///
    /// A request takes one slot, whatever its cost is, in the same decision as the tokens of other limits: a denied
    /// request takes neither. It returns the slot when the body of its response has ended, failed or was dropped, or when
    /// it fails or is cancelled before. A response without a body returns it with its head. A connection that is upgraded
    /// outlives its response: its handler keeps [`Permit::hold`](crate::Permit::hold).
    ///
    /// A denial is repeated after one second, because nobody knows when a slot is free. Without a request, use
    /// [`Limiter::hold`](crate::Limiter::hold).
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower_ratelimit::{Limit, RateLimitLayer, TokenBucket, key};
    ///
    /// let limits = RateLimitLayer::new([
    ///     Limit::new("requests", TokenBucket::per_minute(60)).by(key::header("x-api-key")),
    ///     Limit::concurrent("streams", 4).by(key::header("x-api-key")),
    /// ]);
    /// let app: Router = Router::new().route("/", get("hello")).layer(limits);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `name` is invalid, or `slots` is 0. See [`try_new`](Self::try_new) and
    /// [`Concurrency::try_limit`](crate::Concurrency::try_limit).
    #[doc(alias = "bulkhead")]
    #[doc(alias = "in flight")]
    #[track_caller]
    pub fn concurrent(name: impl Into<String>, slots: u32) -> Self {
        Self::new(name, Concurrency::limit(slots))
    }

    /// Sets the longest time for which a request holds a slot: then, the slot is free although the request is still in
    /// flight. For slow downloads that must not use up all slots. Defaults to no limit.
    ///
    /// It ends with the Tokio runtime on which the slot was taken, which needs timers: then, the request holds its slot to
    /// its end.
    ///
    /// It is a [mistake](crate::Builder#errors) if the limit is no [`Concurrency`].
    pub fn longest_hold(self, longest: Duration) -> Self {
        Self { longest_hold: Some(longest), ..self }
    }

    /// Returns the slots of requests with the heads of their responses, even if a handler keeps
    /// [`Permit::hold`](crate::Permit::hold). By default, requests return them with the ends of their bodies.
    ///
    /// It is a [mistake](crate::Builder#errors) if the limit is no [`Concurrency`].
    pub fn until_head(self) -> Self {
        Self { is_until_head: true, ..self }
    }

    /// Returns whether a request may hold a slot until the end of its response's body.
    pub(crate) fn holds_until_end(&self) -> bool {
        self.algorithm.is_concurrency && !self.is_until_head
    }

    /// Returns an error if a concurrency limit has options of other limits, or the reverse.
    pub(super) fn check_slots(&self) -> Result<(), ConfigError> {
        let is_concurrency = self.algorithm.is_concurrency;
        let takes_one = matches!(self.cost, Some(CostRule::Constant(1)));
        let wrong = [
            (is_concurrency && !takes_one, "a cost", "takes one slot for each request"),
            (is_concurrency && self.is_settled(), "an actual cost", "takes one slot for each request"),
            (is_concurrency && self.debt.is_some(), "a debt", "takes one slot for each request"),
            (is_concurrency && self.is_quota, "quota mode", "returns its slots"),
            (!is_concurrency && self.longest_hold.is_some(), "a longest hold", "has no slots"),
            (!is_concurrency && self.is_until_head, "`until_head`", "has no slots"),
        ];
        let Some((_, what, because)) = wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) else { return Ok(()) };
        Err(ConfigError::new(format!("the limit {:?} has {what}, but {because}: leave it out", self.name)))
    }

    /// Returns whether another size is one of slots if this limit is. If not, logs that once.
    pub(super) fn has_kind_of(&self, size: &Algorithm) -> bool {
        let is_same = size.is_concurrency == self.algorithm.is_concurrency;
        #[cfg(feature = "tracing")]
        if !is_same {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| {
                tracing::warn!(
                    limit = &*self.name,
                    "a size of a limit was ignored, because one of them counts requests in flight and the other one does \
                     not: use two limits with conditions",
                );
            });
        }
        is_same
    }
}
