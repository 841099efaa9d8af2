//! The routes of the server.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::routing::{MethodRouter, get};
use tower_ratelimit::{CostTable, FixedWindow, Store, TokenBucket};

use crate::limits::{layer, limit};
use crate::settings::Settings;
use crate::{algorithms, page};

/// Returns all routes, whose limits keep their state in `store`.
pub(crate) fn app(store: &Arc<dyn Store>) -> Router {
    Router::new()
        .merge(page::routes(help()))
        .route("/help", get(help()))
        .merge(algorithms::routes(store))
        .route("/user", user(store))
        .route("/friends", friends(store))
}

/// Reads at a cost of 1 and writes at a cost of 2, from one limit.
fn user(store: &Arc<dyn Store>) -> MethodRouter {
    let limits = vec![limit("user", FixedWindow::new(10, Duration::from_secs(10)))];
    let costs = CostTable::new().route(Method::POST, "/user", 2);
    get("read\n").post("created\n").route_layer(layer(store, limits).costs(costs).build())
}

/// Has two limits. A request that the first denies does not count towards the second.
fn friends(store: &Arc<dyn Store>) -> MethodRouter {
    let limits = vec![limit("second", TokenBucket::per_second(1)), limit("day", FixedWindow::per_day(150))];
    get("ok\n").route_layer(layer(store, limits).build())
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
             Requests are counted by the header `x-user`, or else by address.\n\
             A browser shows all algorithms side by side at /.\n";
    help
}
