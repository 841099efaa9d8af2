//! Stores that decide later, and stores that fail.

use axum::Router;
use axum::routing::get as route;
use http::Request;
use serde_json::{Value, json};
use support::faulty_store::{FaultyStore, Mode};
use tower::Layer;
use tower_ratelimit::{Builder, HttpOptions, OnStoreError, RateLimitLayer, key};

use crate::service::{Hello, builder, get, per_hour, per_minute, request, serve, with};
use crate::store::paused_store;
use support::answer::{Answer, ask, statuses};

/// Limits whose names and keys must not appear in responses.
fn secret(store: impl tower_ratelimit::Store) -> Builder<HttpOptions> {
    let limits = [per_minute("secret-plan", 2).by(key::header("x-api-key")), per_hour("all", 100)];
    RateLimitLayer::builder(limits).store(store)
}

fn keyed() -> Request<()> {
    with(&[("x-api-key", "sk-ann")])
}

#[tokio::test]
async fn delayed_store_answers_give_the_same_responses() {
    let slow = serve(secret(FaultyStore::over(paused_store(), Mode::Works)));
    let fast = serve(secret(paused_store()));
    for is_denied in [false, false, true, true] {
        let (late, early) = (ask(&slow, keyed()).await, ask(&fast, keyed()).await);
        assert_eq!((late.status, late.body, late.headers), (early.status, early.body, early.headers));
        assert_eq!(late.status == 429, is_denied);
    }
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
        let answer = ask(&serve(secret(FaultyStore::new(mode))), keyed()).await;
        assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.body, "Temporarily unavailable: try again in a moment.\n");
        reveals_nothing(&answer);

        let answer = ask(&serve(secret(FaultyStore::new(mode)).problem_json()), keyed()).await;
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
        let service = serve(secret(FaultyStore::new(mode)).on_store_error(OnStoreError::Allow));
        for _ in 0..3 {
            let answer = ask(&service, keyed()).await;
            assert_eq!((answer.body.as_str(), answer.header("ratelimit")), ("hello", None));
        }
        // A missing key is not an error of the store.
        assert_eq!(ask(&service, get("/")).await.status, 400);
    }
}

#[tokio::test]
async fn a_request_without_a_key_gets_no_details() {
    for builder in [secret(paused_store()), secret(paused_store()).problem_json()] {
        let answer = ask(&serve(builder), get("/")).await;
        assert_eq!(answer.status, 400);
        reveals_nothing(&answer);
    }
}

/// Routes with their own costs, on stores that fail.
#[tokio::test]
async fn a_cost_on_a_route_fails_as_the_router_does() {
    for (policy, status) in [(OnStoreError::Reject, 503), (OnStoreError::Allow, 200)] {
        let limits = secret(FaultyStore::new(Mode::Fails)).on_store_error(policy).build();
        let answer = ask(&limits.layer(limits.cost(2).layer(Hello::default())), keyed()).await;
        assert_eq!((answer.status.as_u16(), answer.header("ratelimit")), (status, None));
    }
}

/// After the store has recovered, it decides as before.
#[tokio::test]
async fn clones_and_routes_share_a_store_whatever_it_is() {
    let limits = builder(per_minute("two", 2)).store(FaultyStore::over(paused_store(), Mode::Works)).build();
    let app = Router::new()
        .route("/a", route(async || "a").route_layer(limits.clone()))
        .route("/b", route(async || "b").route_layer(limits));
    assert_eq!(statuses(&app, ["GET /a", "GET /b", "GET /a", "GET /b"].map(request)).await, [200, 200, 429, 429]);
}
