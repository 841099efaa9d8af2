//! Rules that change while they are gone by: through Axum, in memory and on Redis the same tests.

mod errors;
mod files;
mod fleet;
mod limits;
mod load;
mod many;
mod plain;
mod quotas;
mod routes;

use std::time::Duration;

use axum::Router;
use axum::routing::{Route, get};
use support::answer::Answer;
use support::shop::Shop;
use tower::Layer;
use tower_ratelimit::{Builder, CircuitBreaker, HttpOptions, LiveLimits, RateLimit, RateLimitLayer};

/// A layer by these rules on the shop's store, for which it waits however long it takes.
fn by(rules: &LiveLimits, shop: &Shop) -> Builder<HttpOptions> {
    RateLimitLayer::live_builder(rules)
        .store(shop.store.clone())
        .deadline(Duration::from_secs(30))
        .circuit_breaker(CircuitBreaker::off())
}

/// A service that answers `GET /`.
fn app<L>(limits: L) -> Router
where
    L: Layer<Route, Service = RateLimit<Route>> + Clone + Send + Sync + 'static,
{
    Router::new().route("/", get(|| async { "hello" })).layer(limits)
}

/// The names of the limits that an answer tells of, and what is left of each.
fn left(answer: &Answer) -> Vec<(String, i64)> {
    let standings = answer.standings();
    standings.iter().map(|standing| (standing.name.clone(), standing.get("r").expect("what is left"))).collect()
}

/// What `left` returns.
fn are(left: &[(&str, i64)]) -> Vec<(String, i64)> {
    left.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect()
}
