//! Limits that only apply to some requests.

use axum::Router;
use axum::body::Body;
use axum::routing::{any, get};
use http::{Method, Request};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{Limit, Limiter};

use crate::service::{layer, per_day};
use support::answer::{ask, statuses};

fn request(method: &str, path: &str, plan: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).header("x-plan", plan).body(Body::empty()).unwrap()
}

fn app(limits: impl IntoIterator<Item = Limit>) -> Router {
    Router::new().route("/users/{id}", any(async || "user")).route("/other", get(async || "other")).layer(layer(limits))
}

#[tokio::test]
async fn a_limit_applies_where_its_condition_holds() {
    let condition =
        when::route("/users/{id}").and(when::method(Method::POST)).and(when::not(when::header("x-plan", "pro")));
    let app = app([per_day("posts", 2).when(condition)]);
    // A request without limits has no policy header.
    let (one, two) = (Some("\"posts\";r=1;t=86400"), Some("\"posts\";r=0;t=86400"));
    for (method, path, plan, status, standing) in [
        ("POST", "/users/1", "free", 200, one),
        ("GET", "/users/1", "free", 200, None),
        ("POST", "/users/1", "pro", 200, None),
        ("POST", "/other", "free", 405, None),
        ("POST", "/users/2", "free", 200, two),
        ("POST", "/users/1", "free", 429, two),
        ("GET", "/users/1", "free", 200, None),
    ] {
        let answer = ask(&app, request(method, path, plan)).await;
        let found = (answer.status.as_u16(), answer.header("ratelimit"));
        assert_eq!(found, (status, standing), "{method} {path} {plan}");
        assert_eq!(answer.header("ratelimit-policy").is_some(), standing.is_some());
    }
}

#[tokio::test]
async fn a_route_is_compared_as_it_is_written_in_the_router() {
    let app = app([per_day("user", 2).when(when::route("/users/1"))]);
    assert_eq!(ask(&app, request("GET", "/users/1", "")).await.header("ratelimit"), None);
}

#[tokio::test]
async fn limits_that_do_not_apply_are_left_out() {
    let app = app([per_day("all", 3), per_day("reads", 1).when(when::from_fn(|head| head.method == Method::GET))]);
    // The denied request was charged to neither limit.
    let requests = ["GET", "GET", "PUT", "PUT", "PUT"].map(|method| request(method, "/users/1", ""));
    assert_eq!(statuses(&app, requests).await, [200, 429, 200, 200, 429]);
}

/// Neither the key nor the cost is evaluated if the condition does not hold, so a missing key rejects no request.
#[tokio::test]
async fn a_missing_key_of_a_limit_that_does_not_apply_is_ignored() {
    let key = tower_ratelimit::key::header("x-api-key");
    let app = app([per_day("keyed", 3).by(key).when(when::path_prefix("/users"))]);
    assert_eq!(statuses(&app, ["/other", "/users/1"].map(|path| request("GET", path, ""))).await, [200, 400]);
}

#[test]
fn a_limiter_without_requests_rejects_conditions() {
    let limit = per_day("posts", 2).when(when::method(Method::POST));
    let error = Limiter::builder(limit).try_build().unwrap_err().to_string();
    assert!(error.contains("the limit \"posts\" takes its condition from a request"), "{error}");
}
