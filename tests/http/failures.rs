//! Stores that decide later, and stores that fail.

use axum::Router;
use axum::body::Body;
use axum::routing::get as route;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use support::faulty_store::{FaultyStore, Mode};
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{Builder, FixedWindow, HttpOptions, Limit, OnStoreError, RateLimitLayer, key};

use crate::service::{Hello, get, with};
use crate::store::paused_store;
use support::answer::{Answer, ask};

/// Limits whose names and keys must not appear in responses.
fn secret(store: impl tower_ratelimit::Store) -> Builder<HttpOptions> {
    let limits = [
        Limit::new("secret-plan", FixedWindow::per_minute(2)).by(key::header("x-api-key")),
        Limit::new("all", FixedWindow::per_hour(100)),
    ];
    RateLimitLayer::builder(limits).store(store)
}

fn keyed() -> Request<()> {
    with(&[("x-api-key", "sk-ann")])
}

#[tokio::test]
async fn delayed_store_answers_give_the_same_responses() {
    let (slow, fast) = (
        secret(FaultyStore::over(paused_store(), Mode::Works)).build().layer(Hello::default()),
        secret(paused_store()).build().layer(Hello::default()),
    );
    for _ in 0..4 {
        let (late, early) = (ask(&slow, keyed()).await, ask(&fast, keyed()).await);
        assert_eq!(late.status, early.status);
        assert_eq!(late.body, early.body);
        assert_eq!(late.headers, early.headers);
    }
    assert!(ask(&slow, keyed()).await.is_refused());
}

fn reveals_nothing(answer: &Answer) {
    let reported = format!("{:?} {}", answer.headers, answer.body);
    for secret in ["secret", "sk-ann", "redis", "10.0.0.7", "x-api-key"] {
        assert!(!reported.contains(secret), "{reported}");
    }
}

#[tokio::test]
async fn a_failing_store_rejects_without_details() {
    for mode in [Mode::FailsAtOnce, Mode::Fails] {
        let inner = Hello::default();
        let answer = ask(&secret(FaultyStore::new(mode)).build().layer(inner.clone()), keyed()).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.body, "Temporarily unavailable: try again in a moment.\n");
        reveals_nothing(&answer);
        assert_eq!(inner.calls(), 0);

        let answer = ask(&secret(FaultyStore::new(mode)).problem_json().build().layer(inner), keyed()).await;
        let problem: Value = serde_json::from_str(&answer.body).unwrap();
        let expected = json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "detail": "Temporarily unavailable: try again in a moment.",
        });
        assert_eq!(problem, expected);
        reveals_nothing(&answer);
    }
}

#[tokio::test]
async fn a_failing_store_allows_if_configured() {
    for mode in [Mode::FailsAtOnce, Mode::Fails] {
        let layer = secret(FaultyStore::new(mode)).on_store_error(OnStoreError::Allow).build();
        for _ in 0..3 {
            let answer = ask(&layer.layer(Hello::default()), keyed()).await;
            assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "hello"));
            assert_eq!(answer.header("ratelimit"), None);
        }
        // A missing key is not an error of the store.
        assert_eq!(ask(&layer.layer(Hello::default()), get("/")).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_request_without_a_key_gets_no_details() {
    for layer in [secret(paused_store()).build(), secret(paused_store()).problem_json().build()] {
        let answer = ask(&layer.layer(Hello::default()), get("/")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        reveals_nothing(&answer);
    }
}

/// Routes with their own costs, on stores that fail.
#[tokio::test]
async fn a_cost_on_a_route_fails_as_the_router_does() {
    for (policy, status) in [(OnStoreError::Reject, 503), (OnStoreError::Allow, 200)] {
        let limits = secret(FaultyStore::new(Mode::Fails)).on_store_error(policy).build();
        let service = ServiceBuilder::new().layer(limits.clone()).layer(limits.cost(2)).service(Hello::default());
        let answer = ask(&service, keyed()).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("ratelimit"), None);
    }
}

/// After the store has recovered, it decides as before.
#[tokio::test]
async fn clones_and_routes_share_a_store_whatever_it_is() {
    let limits = RateLimitLayer::builder([Limit::new("two", FixedWindow::per_minute(2))])
        .store(FaultyStore::over(paused_store(), Mode::Works))
        .build();
    let app = Router::new()
        .route("/a", route(async || "a").route_layer(limits.clone()))
        .route("/b", route(async || "b").route_layer(limits.clone()));
    let refused = async |path: &str| ask(&app, Request::get(path).body(Body::empty()).unwrap()).await.is_refused();
    assert!(!refused("/a").await);
    assert!(!refused("/b").await);
    assert!(refused("/a").await);
    assert!(refused("/b").await);
}
