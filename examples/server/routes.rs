//! The routes of the server.

use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::{MethodRouter, any, get};
use tower_ratelimit::{CostTable, FixedWindow, RateLimitLayer, TokenBucket};

use crate::explain::explain;
use crate::limits::{Backend, layer, limit};
use crate::settings::Settings;
use crate::{algorithms, page};

/// Returns all routes.
pub(crate) fn app(backend: &Backend, metrics: MethodRouter) -> Router {
    let (user, friends) = (user(backend), friends(backend));
    let (algorithms, explain_algorithms) = algorithms::routes(backend);
    let explanations = explain_algorithms.route("/user", explained(&user)).route("/friends", explained(&friends));
    Router::new()
        .merge(page::routes(help()))
        .route("/help", get(help()))
        .merge(algorithms)
        .route("/user", get("read\n").post("created\n").route_layer(user))
        .route("/friends", get("ok\n").route_layer(friends))
        .nest("/explain", explanations)
        .route("/metrics", metrics)
}

/// Reads at a cost of 1 and writes at a cost of 2, from one limit.
fn user(backend: &Backend) -> RateLimitLayer {
    let limits = vec![limit("user", FixedWindow::new(10, Duration::from_secs(10)))];
    let costs = CostTable::new().route(Method::POST, "/user", 2);
    layer(backend, limits).costs(costs).build()
}

/// Has two limits. A request that the first denies does not count towards the second.
fn friends(backend: &Backend) -> RateLimitLayer {
    let limits = vec![limit("second", TokenBucket::per_second(1)), limit("day", FixedWindow::per_day(150))];
    layer(backend, limits).build()
}

/// Returns a route that explains what a layer would do with each request.
fn explained(layer: &RateLimitLayer) -> MethodRouter {
    let layer = layer.clone();
    any(move |request| explain(layer, request))
}

fn help() -> String {
    let mut help = String::from("Each algorithm, by default 10 requests per 10 seconds:\n");
    for (name, parameters) in Settings::ALGORITHMS {
        help += &format!("  GET /{name}?{}\n", parameters.join("&"));
    }
    help += "The queue delays requests rather than denying them: one proceeds each second, and 5 may wait.\n\
             Add `cost=N` to charge N tokens. DELETE forgets your requests.\n\
             \n\
             10 tokens per 10 seconds:\n  GET /user costs 1, POST /user costs 2\n\
             One per second and 150 per day:\n  GET /friends\n\
             \n\
             What a request to any of these would get, without charging it:\n  GET /explain/user, POST /explain/user, \
             GET /explain/token-bucket?cost=3\n\
             \n\
             Metrics for Prometheus:\n  GET /metrics\n\
             \n\
             Requests are counted by the header `x-user`, or else by address.\n\
             A browser shows all algorithms side by side at /.\n";
    help
}
