//! The lists and costs of requests.

use std::fmt;
use std::sync::Arc;

use super::lists::Lists;
use crate::key::head::RequestHead;
use crate::limit::{CostRule, CostTable};
use crate::limiter::Builder;
use crate::select::{Condition, ListAction, ListKind};

/// The options that a [`RequestLimiter`](crate::RequestLimiter) and a [`RateLimitLayer`](crate::RateLimitLayer) have.
#[derive(Clone)]
pub struct RequestOptions {
    pub(crate) lists: Lists,
    pub(crate) cost: CostRule,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self { lists: Lists::default(), cost: CostRule::Constant(1) }
    }
}

impl fmt::Debug for RequestOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestOptions").finish_non_exhaustive()
    }
}

impl AsMut<Self> for RequestOptions {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// Lists and costs of requests.
impl<T: AsMut<RequestOptions>> Builder<T> {
    /// Exempts the requests for which a condition holds: an [`AddressList`](crate::AddressList), a
    /// [`KeyList`](crate::KeyList), or any condition of [`when`](crate::when). Adds to earlier calls.
    ///
    /// Exempt requests are forwarded before keys are extracted or the store is called. They are not charged, and their
    /// responses have no headers about limits. A list of addresses that covers all of IPv4, or all public addresses
    /// of IPv6, is logged as a warning.
    ///
    /// [`always_reject`](Self::always_reject) takes precedence. To exclude exempt requests from it, negate the
    /// condition: `always_reject(blocked.and(when::not(offices)))`.
    ///
    /// ```
    /// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key, when};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .never_limit(AddressList::new(key::peer_ip(), ["10.0.0.0/8"]))
    ///     .never_limit(when::route("/health"))
    ///     .build();
    /// # let _ = limits;
    /// ```
    #[doc(alias = "allowlist")]
    #[doc(alias = "exempt")]
    #[doc(alias = "whitelist")]
    pub fn never_limit(mut self, condition: impl Condition) -> Self {
        #[cfg(feature = "tracing")]
        if condition.covers_family() {
            tracing::warn!("`never_limit` exempts all requests of an address family: list smaller networks");
        }
        self.options.as_mut().lists.add(ListKind::Exempts, condition);
        self
    }

    /// Rejects the requests for which a condition holds with 403, or `PERMISSION_DENIED` for gRPC. Adds to earlier
    /// calls.
    ///
    /// They are rejected before keys are extracted or the store is called, with
    /// [`Reason::Listed`](crate::Reason::Listed) and without headers about limits, and recorders receive
    /// [`Event::ListMatched`](crate::Event::ListMatched). [Shadow mode](Self::shadow) has no effect on lists. If several
    /// conditions hold, the first one determines the response.
    ///
    /// ```
    /// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// let blocked = AddressList::new(key::peer_ip(), ["198.51.100.0/24"]);
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .always_reject(blocked.clone())
    ///     .build();
    /// # let _ = limits;
    /// ```
    #[doc(alias = "blacklist")]
    #[doc(alias = "denylist")]
    pub fn always_reject(self, condition: impl Condition) -> Self {
        self.always_reject_with(ListAction::Forbidden, condition)
    }

    /// Rejects requests as [`always_reject`](Self::always_reject) does, with another response; or only reports them, to
    /// try a list out.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, KeyList, Limit, ListAction, RateLimitLayer, key};
    ///
    /// let overdue = KeyList::new(key::header("x-api-key"), ["3f6c0a"]);
    /// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
    ///     .always_reject_with(ListAction::TooManyRequests, overdue)
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn always_reject_with(mut self, action: ListAction, condition: impl Condition) -> Self {
        self.options.as_mut().lists.add(ListKind::Rejects(action), condition);
        self
    }

    /// Sets the cost of a request in tokens. Defaults to 1.
    ///
    /// Limits with a [cost](crate::Limit::cost) of their own ignore it. For a single route, use
    /// [`RateLimitLayer::cost`](crate::RateLimitLayer::cost).
    pub fn cost(mut self, cost: u64) -> Self {
        self.options.as_mut().cost = CostRule::Constant(cost);
        self
    }

    /// Sets the cost of a request by its method and route.
    ///
    /// ```
    /// use http::Method;
    /// use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer};
    ///
    /// let costs = CostTable::new().route(Method::POST, "/users", 2).path("/reports/{id}", 10);
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))]).costs(costs).build();
    /// # let _ = limits;
    /// ```
    pub fn costs(mut self, costs: CostTable) -> Self {
        self.options.as_mut().cost = CostRule::Table(Arc::new(costs));
        self
    }

    /// Sets a closure that returns the cost of a request. A cost of 0 takes nothing. A cost over a limit's capacity is
    /// denied.
    pub fn cost_by(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.options.as_mut().cost = CostRule::Closure(Arc::new(cost));
        self
    }
}
