//! Limits that only apply to some requests.

use axum::Router;
use axum::body::Body;
use axum::routing::{any, get};
use http::{Method, Request};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{FixedWindow, Limit, Limiter, RateLimitLayer};

use crate::store::paused_store;
use support::answer::ask;

fn request(method: &str, path: &str, plan: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).header("x-plan", plan).body(Body::empty()).unwrap()
}

fn app(limits: impl IntoIterator<Item = Limit>) -> Router {
    Router::new()
        .route("/users/{id}", any(async || "user"))
        .route("/other", get(async || "other"))
        .layer(RateLimitLayer::builder(limits).store(paused_store()).build())
}

#[tokio::test]
async fn a_limit_applies_where_its_condition_holds() {
    let condition =
        when::route("/users/{id}").and(when::method(Method::POST)).and(when::not(when::header("x-plan", "pro")));
    let app = app([Limit::new("posts", FixedWindow::per_day(2)).when(condition)]);
    for (method, path, plan, reported) in [
        ("POST", "/users/1", "free", Some("\"posts\";r=1")),
        ("GET", "/users/1", "free", None),
        ("POST", "/users/1", "pro", None),
        ("POST", "/other", "free", None),
        ("POST", "/users/2", "free", Some("\"posts\";r=0")),
    ] {
        let answer = ask(&app, request(method, path, plan)).await;
        let header = answer.header("ratelimit").map(|header| header.split(";t=").next().unwrap().to_owned());
        assert_eq!(header.as_deref(), reported, "{method} {path} {plan}");
        assert_eq!(
            answer.header("ratelimit-policy").is_some(),
            reported.is_some(),
            "a request without limits has no policy header"
        );
    }
    assert_eq!(ask(&app, request("POST", "/users/1", "free")).await.status, 429);
    assert_eq!(ask(&app, request("GET", "/users/1", "free")).await.status, 200);
}

#[tokio::test]
async fn a_route_is_compared_as_it_is_written_in_the_router() {
    let app = app([Limit::new("user", FixedWindow::per_day(2)).when(when::route("/users/1"))]);
    assert_eq!(ask(&app, request("GET", "/users/1", "")).await.header("ratelimit"), None);
}

#[tokio::test]
async fn limits_that_do_not_apply_are_left_out() {
    let app = app([
        Limit::new("all", FixedWindow::per_day(3)),
        Limit::new("reads", FixedWindow::per_day(1)).when(when::from_fn(|head| head.method == Method::GET)),
    ]);
    assert_eq!(ask(&app, request("GET", "/users/1", "")).await.status, 200);
    assert_eq!(ask(&app, request("GET", "/users/1", "")).await.status, 429);
    assert_eq!(ask(&app, request("PUT", "/users/1", "")).await.status, 200);
    assert_eq!(
        ask(&app, request("PUT", "/users/1", "")).await.status,
        200,
        "the denied request was charged to neither limit"
    );
    assert_eq!(ask(&app, request("PUT", "/users/1", "")).await.status, 429);
}

/// Neither the key nor the cost is evaluated if the condition does not hold, so a missing key rejects no request.
#[tokio::test]
async fn a_missing_key_of_a_limit_that_does_not_apply_is_ignored() {
    let key = tower_ratelimit::key::header("x-api-key");
    let app = app([Limit::new("keyed", FixedWindow::per_day(3)).by(key).when(when::path_prefix("/users"))]);
    assert_eq!(ask(&app, request("GET", "/other", "")).await.status, 200);
    assert_eq!(ask(&app, request("GET", "/users/1", "")).await.status, 400);
}

#[test]
fn a_limiter_without_requests_rejects_conditions() {
    let limit = Limit::new("posts", FixedWindow::per_day(2)).when(when::method(Method::POST));
    let error = Limiter::builder([limit]).try_build().unwrap_err().to_string();
    assert!(error.contains("the limit \"posts\" takes its condition from a request"), "{error}");
}
