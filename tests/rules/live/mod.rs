//! Limits that are replaced while requests are served. Most tests run in memory and on Redis.

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
use support::store_fixture::StoreFixture;
use tower::Layer;
use tower_ratelimit::{Builder, CircuitBreaker, HttpOptions, LiveLimits, RateLimit, RateLimitLayer};

/// Builds a layer with these limits on the store of a fixture, without a short deadline.
fn by(rules: &LiveLimits, fixture: &StoreFixture) -> Builder<HttpOptions> {
    RateLimitLayer::live_builder(rules)
        .store(fixture.store.clone())
        .deadline(Duration::from_secs(30))
        .circuit_breaker(CircuitBreaker::off())
}

/// A service that responds to `GET /`.
fn app<L>(limits: L) -> Router
where
    L: Layer<Route, Service = RateLimit<Route>> + Clone + Send + Sync + 'static,
{
    Router::new().route("/", get(|| async { "hello" })).layer(limits)
}

/// Returns the names of the limits in the headers of a response, with the remaining tokens of each.
fn left(answer: &Answer) -> Vec<(String, i64)> {
    let standings = answer.standings();
    standings.iter().map(|standing| (standing.name.clone(), standing.get("r").expect("the remaining tokens"))).collect()
}

/// Returns the expected result of [`left`].
fn are(left: &[(&str, i64)]) -> Vec<(String, i64)> {
    left.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect()
}
