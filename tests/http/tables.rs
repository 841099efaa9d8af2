//! Tables with the costs of all endpoints.

use axum::Router;
use axum::routing::{any, get};
use http::Method;
use tower::Layer;
use tower_ratelimit::{CostTable, RateLimitLayer};

use crate::service::{Hello, layer, panic_message, per_minute, request, visit};
use support::answer::ask;

fn hundred() -> RateLimitLayer {
    layer(per_minute("hundred", 100))
}

fn costs() -> CostTable {
    CostTable::new()
        .route(Method::GET, "/users/{id}", 2)
        .route(Method::POST, "/users/{id}", 99)
        .route(Method::POST, "/users/{id}", 5)
        .path("/reports/{*name}", 10)
        .route(Method::GET, "/reports/{*name}", 7)
        .path("/free", 0)
        .path("/package.Service/Method", 11)
        .otherwise(3)
}

#[tokio::test]
async fn by_method_and_matched_route() {
    let user = Router::new().route("/{id}", any(async || "user"));
    let app = Router::new()
        .nest("/users", user)
        .route("/reports/{*name}", any(async || "report"))
        .route("/free", any(async || "free"))
        .route("/other", any(async || "other"))
        .layer(hundred().costs(costs()));
    let mut left = 100;
    for (line, cost) in [
        ("GET /users/1", 2),
        ("HEAD /users/2", 2),
        ("POST /users/3?x=1", 5),
        ("DELETE /users/4", 3),
        ("GET /reports/a/b", 7),
        ("HEAD /reports/a/b", 7),
        ("PUT /reports/a", 10),
        ("GET /free", 0),
        ("GET /other", 3),
        ("GET /nowhere", 3),
        // No other spelling of a route is cheaper than a path without a route.
        ("PUT /reports//a", 10),
        ("PUT /Reports/a", 3),
    ] {
        left -= cost;
        assert_eq!(visit(&app, line).await.remaining(), left, "{line}");
    }
}

#[tokio::test]
async fn by_path_where_there_is_no_router() {
    let service = hundred().costs(costs()).layer(Hello::default());
    let mut left = 100;
    for (line, cost) in [
        ("POST /package.Service/Method", 11),
        ("POST /package.Service/Other", 3),
        ("POST /package.Service/Method?x=1", 11),
        ("GET /users/1", 3),
        ("GET /free", 0),
    ] {
        left -= cost;
        assert_eq!(ask(&service, request(line)).await.remaining(), left, "{line}");
    }
}

/// A cost on the route overrides the table on the router.
#[tokio::test]
async fn a_route_overrides_the_table() {
    async fn free() {}
    let limits = hundred();
    let app = Router::new()
        .route("/free", get(free).route_layer(limits.cost(20)))
        .route("/reports/{*name}", any(async || "report"))
        .layer(limits.costs(costs()));
    assert_eq!(visit(&app, "GET /free").await.remaining(), 80);
    assert_eq!(visit(&app, "GET /reports/a").await.remaining(), 73);
}

/// Returns the message with which a layer rejects a table.
fn rejected(costs: CostTable) -> String {
    panic_message(|| hundred().costs(costs))
}

#[test]
fn every_cost_in_the_table_fits_the_limits() {
    let text = "a cost of 101 can never pass the limit \"hundred\", which holds 100: lower the cost, raise the limit, or \
                give the limit a cost of its own with `Limit::cost`";
    assert_eq!(rejected(costs().path("/a", 101)), text);
    assert_eq!(rejected(costs().route(Method::GET, "/a", 101)), text);
    assert_eq!(rejected(costs().otherwise(101)), text);
    // The last of two equal entries applies.
    let _ = hundred().costs(costs().path("/a", 101).path("/a", 100));
}

#[test]
fn a_path_that_no_request_has_is_an_error() {
    let text = "the cost table's path \"/search?q=x\" matches nothing, because \"?\" is not in the paths of \
                requests: write \"/search\", or read the query in a closure";
    assert_eq!(rejected(CostTable::new().path("/reports", 1).path("/search?q=x", 2)), text);
    let fragment = rejected(CostTable::new().route(Method::GET, "/{id}/#top", 2));
    assert!(fragment.contains("\"/{id}/#top\" matches nothing") && fragment.contains("write \"/{id}/\""), "{fragment}");
    assert!(rejected(CostTable::new().path("/users /", 2)).contains("because \" \" is not in the paths of requests"));
    // A parameter of another router, as an expression.
    let _ = hundred().costs(CostTable::new().path("/{id:[0-9]{1,3}?}", 2));
}

#[test]
fn a_path_without_a_leading_slash_is_an_error() {
    let text = "the cost table's path \"users\" matches nothing: start it with a slash, \"/users\"";
    let table = CostTable::new().path("/reports", 1).route(Method::GET, "users", 2);
    assert_eq!(rejected(table), text);
}
