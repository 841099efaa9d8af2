//! To read costs 1 and to write costs 2, from one bucket.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::get;
use tower_ratelimit::{CostTable, Limit, RateLimitLayer, Store, TokenBucket, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/users
curl -i -X POST http://HOST/users
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let users = Limit::new("users", TokenBucket::per_minute(60).burst(10)).by(key::peer_ip());
    let costs = CostTable::new().route(Method::POST, "/users", 2); // everything else costs 1
    let limits = RateLimitLayer::builder([users]).store(store).costs(costs).build();
    Router::new().route("/users", get("ann\n").post("created\n")).route_layer(limits)
}
