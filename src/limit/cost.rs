//! The cost of a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::Method;

use crate::error::{ConfigError, validation};
use crate::key::head::RequestHead;
use crate::select::when::report_near_miss;

/// The costs of all endpoints in one place: tokens by method and route.
///
/// A route is matched by its path in Axum's router (`/users/{id}`), including the prefixes of nested routers. If no
/// router has matched the request, its own path is compared, as with gRPC (`/package.Service/Method`). HEAD costs as
/// much as GET. Requests that match no entry cost 1, unless set by [`otherwise`](Self::otherwise).
///
/// ```
/// use http::Method;
/// use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer};
///
/// let costs = CostTable::new()
///     .route(Method::POST, "/users", 2)
///     .path("/reports/{id}", 10)
///     .otherwise(1);
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))]).costs(costs).build();
/// # let _ = limits;
/// ```
#[derive(Clone, Debug)]
pub struct CostTable {
    /// The costs of each path by method. `None` stands for all methods without a cost of their own.
    routes: HashMap<String, Vec<(Option<Method>, u64)>>,
    otherwise: u64,
    /// The number of requests that were compared with routes that resemble theirs.
    examined: Arc<AtomicUsize>,
}

impl CostTable {
    /// Creates an empty table, in which all requests cost 1.
    #[must_use]
    pub fn new() -> Self {
        Self { routes: HashMap::new(), otherwise: 1, examined: Arc::default() }
    }

    /// Sets the cost of `method` on `path`. Takes precedence over [`path`](Self::path), and replaces any previous cost.
    ///
    /// The path must start with a slash and have neither a query, a fragment nor spaces: the layer that the table is passed
    /// to rejects others, because no request could match them. The first path that resembles a request's route, but
    /// differs from it, is logged, as by [`when::route`](crate::when::route).
    #[must_use]
    pub fn route(self, method: Method, path: impl Into<String>, cost: u64) -> Self {
        self.with_cost(Some(method), path.into(), cost)
    }

    /// Sets the cost of `path` for all methods without a cost of their own. Replaces any previous cost.
    #[must_use]
    pub fn path(self, path: impl Into<String>, cost: u64) -> Self {
        self.with_cost(None, path.into(), cost)
    }

    fn with_cost(mut self, method: Option<Method>, path: String, cost: u64) -> Self {
        let costs = self.routes.entry(path).or_default();
        costs.retain(|(known, _)| *known != method);
        costs.push((method, cost));
        self
    }

    /// Sets the cost of requests that match no entry. Defaults to 1.
    #[must_use]
    pub fn otherwise(mut self, cost: u64) -> Self {
        self.otherwise = cost;
        self
    }

    fn of(&self, head: &RequestHead<'_>) -> u64 {
        let path = head.matched_path().unwrap_or_else(|| head.path());
        let Some(costs) = self.routes.get(path) else {
            report_near_miss(&self.examined, head, self.routes.keys().map(String::as_str));
            return self.otherwise;
        };
        let of = |method| costs.iter().find(|(known, _)| known.as_ref() == method).map(|(_, cost)| *cost);
        let of_get = || if *head.method == Method::HEAD { of(Some(&Method::GET)) } else { None };
        of(Some(head.method)).or_else(of_get).or_else(|| of(None)).unwrap_or(self.otherwise)
    }
}

impl Default for CostTable {
    fn default() -> Self {
        Self::new()
    }
}

/// A rule for the cost of a request.
#[derive(Clone)]
pub(crate) enum CostRule {
    Constant(u64),
    Table(Arc<CostTable>),
    Closure(Arc<dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync>),
}

impl CostRule {
    #[inline]
    pub(crate) fn of(&self, head: &RequestHead<'_>) -> u64 {
        match self {
            Self::Constant(cost) => *cost,
            Self::Table(costs) => costs.of(head),
            Self::Closure(cost) => cost(head),
        }
    }

    /// Returns an error that names an entry of the table that no request can match.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::Table(costs) => costs.routes.keys().try_for_each(|path| validation::path("cost table's path", path)),
            Self::Constant(_) | Self::Closure(_) => Ok(()),
        }
    }

    /// Returns the largest cost that is known without a request.
    pub(crate) fn largest(&self) -> Option<u64> {
        match self {
            Self::Constant(cost) => Some(*cost),
            Self::Table(costs) => costs.routes.values().flatten().map(|(_, cost)| *cost).chain([costs.otherwise]).max(),
            Self::Closure(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn tables_match_by_method_then_path_then_default() {
        let costs =
            CostTable::new().route(Method::GET, "/a", 2).route(Method::POST, "/a", 5).path("/b", 7).otherwise(3);
        let costs = costs.route(Method::PATCH, "/b", 9).route(Method::PATCH, "/b", 8);
        let cost = |method: Method, path: &str| {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            costs.of(&RequestHead::of(&request))
        };
        assert_eq!(cost(Method::GET, "/a"), 2);
        assert_eq!(cost(Method::HEAD, "/a"), 2);
        assert_eq!(cost(Method::GET, "/a?x=1"), 2);
        assert_eq!(cost(Method::POST, "/a"), 5);
        assert_eq!(cost(Method::PUT, "/a"), 3);
        assert_eq!(cost(Method::PUT, "/b"), 7);
        assert_eq!(cost(Method::PATCH, "/b"), 8);
        assert_eq!(CostRule::Table(Arc::new(costs.clone())).largest(), Some(8));
        assert_eq!(cost(Method::GET, "/c"), 3);
    }
}
