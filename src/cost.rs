//! What a request costs.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::error::{ConfigError, ConfigErrorKind};
use crate::request::RequestHead;

/// Costs by method and route, in tokens, for all endpoints in one place.
///
/// A route is told by the path that it was written with (`/users/{id}`), where Axum's router has
/// matched one, with the prefixes of the routers it is nested in; and by the request's path
/// otherwise, as for gRPC (`/package.Service/Method`). HEAD
/// costs what GET costs. What is not in the table costs 1, or what [`otherwise`](Self::otherwise)
/// says.
///
/// ```
/// use http::Method;
/// use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer};
///
/// let costs = CostTable::new()
///     .route(Method::POST, "/users", 2)
///     .path("/reports/{id}", 10)
///     .otherwise(1);
/// let limits = RateLimitLayer::new([Limit::new("all", FixedWindow::per_minute(100))]).costs(costs);
/// # let _ = limits;
/// ```
#[derive(Clone, Debug)]
pub struct CostTable {
    routes: HashMap<String, Costs>,
    otherwise: u64,
}

#[derive(Clone, Debug, Default)]
struct Costs {
    by_method: Vec<(Method, u64)>,
    any_method: Option<u64>,
}

impl CostTable {
    /// A table in which everything costs 1.
    #[must_use]
    pub fn new() -> Self {
        Self { routes: HashMap::new(), otherwise: 1 }
    }

    /// What `method` on `path` costs. Said twice, the last counts.
    #[must_use]
    pub fn route(mut self, method: Method, path: impl Into<String>, cost: u64) -> Self {
        let costs = &mut self.routes.entry(path.into()).or_default().by_method;
        costs.retain(|(known, _)| *known != method);
        costs.push((method, cost));
        self
    }

    /// What `path` costs, with any method that has no cost of its own.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>, cost: u64) -> Self {
        self.routes.entry(path.into()).or_default().any_method = Some(cost);
        self
    }

    /// What everything else costs.
    #[must_use]
    pub fn otherwise(mut self, cost: u64) -> Self {
        self.otherwise = cost;
        self
    }

    /// All costs in the table.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        let routes = self.routes.values();
        let costs = routes.flat_map(|costs| costs.by_method.iter().map(|(_, cost)| *cost).chain(costs.any_method));
        costs.chain([self.otherwise])
    }

    /// A path in the table that no request has.
    fn unreachable(&self) -> Option<&str> {
        self.routes.keys().map(String::as_str).find(|path| !path.starts_with('/'))
    }

    fn of(&self, head: &RequestHead<'_>) -> u64 {
        let path = head.matched_path().unwrap_or_else(|| head.uri.path());
        let Some(costs) = self.routes.get(path) else { return self.otherwise };
        let of = |method: &Method| costs.by_method.iter().find(|(known, _)| known == method).map(|(_, cost)| *cost);
        let get = || if *head.method == Method::HEAD { of(&Method::GET) } else { None };
        of(head.method).or_else(get).or(costs.any_method).unwrap_or(self.otherwise)
    }
}

impl Default for CostTable {
    fn default() -> Self {
        Self::new()
    }
}

/// How a cost is found.
#[derive(Clone)]
pub(crate) enum Cost {
    Constant(u64),
    Table(Arc<CostTable>),
    By(Arc<dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync>),
}

impl Cost {
    #[inline]
    pub(crate) fn of(&self, head: &RequestHead<'_>) -> u64 {
        match self {
            Self::Constant(cost) => *cost,
            Self::Table(costs) => costs.of(head),
            Self::By(cost) => cost(head),
        }
    }

    /// Refuses what could never be meant.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let path = match self {
            Self::Table(costs) => costs.unreachable(),
            Self::Constant(_) | Self::By(_) => None,
        };
        path.map_or(Ok(()), |path| {
            Err(ConfigErrorKind::PathWithoutSlash { what: "cost table's path", path: path.to_owned() }.into())
        })
    }

    /// The largest cost that is known before there is a request.
    pub(crate) fn largest(&self) -> Option<u64> {
        match self {
            Self::Constant(cost) => Some(*cost),
            Self::Table(costs) => costs.all().max(),
            Self::By(_) => None,
        }
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(cost) => cost.fmt(f),
            Self::Table(costs) => costs.fmt(f),
            Self::By(_) => f.write_str("by request"),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn the_table_knows_methods_paths_and_the_rest() {
        let costs =
            CostTable::new().route(Method::GET, "/a", 2).route(Method::POST, "/a", 5).path("/b", 7).otherwise(3);
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
        assert_eq!(cost(Method::GET, "/c"), 3);
    }
}
