//! Requests in flight during a replacement keep the limits with which they were decided.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use tower_ratelimit::{FixedWindow, Limit, LiveLimits, Permit, key};

use crate::live::{are, by, left};
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

fn old() -> Limit {
    Limit::new("old", FixedWindow::per_day(100)).by(user_key())
}

/// At another position, too: first.
fn new() -> Vec<Limit> {
    vec![Limit::new("new", FixedWindow::per_day(50)).by(key::header("x-user")), old().shadow()]
}

async fn replace(State(rules): State<LiveLimits>, request: Request, next: Next) -> Response {
    rules.replace(new()).expect("the limits are valid");
    next.run(request).await
}

async fn a_route_charges_the_difference_to_the_limits_of_the_router(fixture: StoreFixture) {
    let rules = LiveLimits::new([old()]);
    let limits = by(&rules, &fixture).build();
    let app = Router::new()
        .route("/", get(|| async {}))
        .route("/big", get(|| async {}).route_layer(limits.cost(10)))
        .layer(from_fn_with_state(rules.clone(), replace))
        .layer(limits);
    assert_eq!(left(&visit(&app, "/big", "ann").await), are(&[("old", 90)]));
    assert_eq!(fixture.remaining(&Limit::new("new", FixedWindow::per_day(50)), "ann").await, 50);
    // The next request is charged once on each route.
    let next = visit(&app, "/big", "ann").await;
    assert_eq!(left(&next), are(&[("new", 40)]));
    assert_eq!(fixture.remaining(&old(), "ann").await, 80);
}

async fn a_denying_route_refunds_the_limits_of_the_router(fixture: StoreFixture) {
    let rules = LiveLimits::new([old()]);
    let limits = by(&rules, &fixture).build();
    let app = Router::new()
        .route("/big", get(|| async {}).route_layer(limits.cost(50)))
        .route("/", get(|| async {}).route_layer(limits.cost(60)))
        .layer(from_fn_with_state(
            rules.clone(),
            async |State(rules): State<LiveLimits>, request: Request, next: Next| {
                // The new limits have capacity.
                rules
                    .replace([Limit::new("old", FixedWindow::per_day(1_000)).by(user_key())])
                    .expect("the limits are valid");
                next.run(request).await
            },
        ))
        .layer(limits);
    rules.replace([old()]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("old", 40)]));
    rules.replace([old()]).unwrap();
    let denied = visit(&app, "/big", "ann").await;
    assert!(denied.is_denied());
    assert_eq!(left(&denied), are(&[("old", 40)]));
    fixture.wait_for_remaining(&old(), "ann", 40).await;
}

/// As without replacements: a layer that is passed twice at the same cost charges twice.
async fn a_layer_that_is_passed_twice_charges_twice(fixture: StoreFixture) {
    let rules = LiveLimits::new([old()]);
    let limits = by(&rules, &fixture).build();
    let other = limits.cost(3);
    let app = Router::new()
        .route("/", get(|| async {}).route_layer(limits.clone()))
        .route("/other", get(|| async {}).route_layer(other))
        .layer(limits);
    // With a route cost, requests have a ledger.
    assert_eq!(left(&visit(&app, "/other", "ann").await), are(&[("old", 97)]));
    for remaining in [95, 93] {
        assert_eq!(visit(&app, "/", "ann").await.status, StatusCode::OK);
        assert_eq!(fixture.remaining(&old(), "ann").await, remaining);
        rules.replace([old()]).unwrap();
    }
}

/// The handler replaces the limits before it uses its permit.
async fn a_permit_applies_the_limits_of_its_request(fixture: StoreFixture) {
    async fn settle(State(rules): State<LiveLimits>, permit: Permit) -> Result<String, StatusCode> {
        let fails = |_| StatusCode::SERVICE_UNAVAILABLE;
        rules.replace(new()).expect("the limits are valid");
        assert!(permit.charge(7).await.map_err(fails)?.is_allowed());
        let settled = permit.settle(5).await.map_err(fails)?;
        assert_eq!(settled.decision.outcomes().len(), 1);
        let names: Vec<&str> = permit.limits().iter().map(Limit::name).collect();
        assert!(permit.limit("new").is_none());
        Ok(names.join(" "))
    }
    async fn refund(State(rules): State<LiveLimits>, permit: Permit) -> Result<(), StatusCode> {
        rules.replace(new()).expect("the limits are valid");
        permit.refund().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
    }
    let rules = LiveLimits::new([old()]);
    let app = Router::new().route("/settle", get(settle)).route("/refund", get(refund)).with_state(rules.clone());
    let app = app.layer(by(&rules, &fixture).permits().build());
    let answer = visit(&app, "/settle", "ann").await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "old"));
    assert_eq!(left(&answer), are(&[("old", 95)]));
    assert_eq!(fixture.remaining(&old(), "ann").await, 95);
    rules.replace([old()]).unwrap();
    visit(&app, "/refund", "ann").await;
    fixture.wait_for_remaining(&old(), "ann", 95).await;
    assert_eq!(fixture.remaining(&Limit::new("new", FixedWindow::per_day(50)), "ann").await, 50);
}

async fn a_response_is_counted_by_the_limits_of_its_request(fixture: StoreFixture) {
    let counted = old().count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let rules = LiveLimits::new([counted]);
    let app = Router::new().route("/", get(|| async {}));
    let app = app.layer(from_fn_with_state(rules.clone(), replace)).layer(by(&rules, &fixture).build());
    visit(&app, "/", "ann").await;
    fixture.wait_for_remaining(&old(), "ann", 100).await;
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("new", 49)]));
}

on_both_stores!(
    a_layer_that_is_passed_twice_charges_twice,
    a_route_charges_the_difference_to_the_limits_of_the_router,
    a_denying_route_refunds_the_limits_of_the_router,
    a_permit_applies_the_limits_of_its_request,
    a_response_is_counted_by_the_limits_of_its_request,
);
