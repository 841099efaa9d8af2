//! Settlement: charging by the response.

use std::sync::Arc;

use super::definition::{ActualCostFn, Limit};
use crate::key::heads::ResponseHead;

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
    /// addition.
    ///
    /// A store that answers immediately settles before the response is forwarded, and its headers show the result.
    /// Other stores, such as Redis, settle in the background, without delaying the response; its headers show the state
    /// when the request was allowed. A [`LeakyBucketQueue`](crate::LeakyBucketQueue) can refund only its last slot.
    ///
    /// Replaces any previous `count_if` or [`settle_by`](Self::settle_by). The limits of a [`Limiter`](crate::Limiter)
    /// can't have either, because there are no responses.
    pub fn count_if(self, counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.settle_by(move |response| if counts(response) { None } else { Some(0) })
    }

    /// Computes the actual cost of a request from its response, in tokens. `None` keeps the charge.
    ///
    /// A lower cost refunds the difference, as far as it is still in force. A higher cost charges the difference, as
    /// far as there is capacity; [`Event::Shortfall`](crate::Event::Shortfall) reports the rest. Neither changes the
    /// response. [`count_if`](Self::count_if) describes when this happens, and what headers show. To settle later, for
    /// example at the end of a body, use a [`Permit`](crate::Permit).
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
        self
    }

    pub(crate) fn actual_cost(&self) -> Option<&ActualCostFn> {
        self.actual_cost.as_deref()
    }
}
