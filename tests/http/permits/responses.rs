//! Limits that depend on responses.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::get;
use http::StatusCode;
use tower_ratelimit::{Event, LeakyBucket, Limit, Limiter, TokenBucket};

use crate::service::per_day;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

on_both_stores!(
    only_failed_logins_count,
    concurrent_failed_logins_do_not_exceed_the_limit,
    the_whole_cost_of_a_route_is_refunded,
    only_limits_with_count_if_are_refunded,
    the_cost_of_a_response_is_settled,
    headers_include_settlements_that_are_complete,
);

/// Returns a limit of five failures per day.
fn failures() -> Limit {
    let five = per_day("failed-logins", 5).by(user_key());
    five.count_if(|response| response.status == StatusCode::UNAUTHORIZED)
}

/// Returns a router with `/login/right` and `/login/wrong`.
fn login(limits: &tower_ratelimit::RateLimitLayer) -> Router {
    let answer = |Path(password): Path<String>| async move {
        tokio::task::yield_now().await;
        if password == "right" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    };
    Router::new().route("/login/{password}", get(answer)).layer(limits.clone())
}

async fn only_failed_logins_count(fixture: StoreFixture) {
    let app = login(&fixture.builder([failures()]).build());
    for _ in 0..10 {
        assert_eq!(visit(&app, "/login/right", "ann").await.status, 200);
        fixture.wait_for_remaining(&failures(), "ann", 5).await;
    }
    for left in (0..5).rev() {
        let answer = visit(&app, "/login/wrong", "ann").await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::UNAUTHORIZED, left));
        if left > 0 {
            assert_eq!(visit(&app, "/login/right", "ann").await.status, 200);
            fixture.wait_for_remaining(&failures(), "ann", left).await;
        }
    }
    for password in ["/login/wrong", "/login/right", "/login/wrong"] {
        assert!(visit(&app, password, "ann").await.is_denied());
    }
    assert_eq!(visit(&app, "/login/wrong", "bob").await.status, 401);
}

async fn concurrent_failed_logins_do_not_exceed_the_limit(fixture: StoreFixture) {
    let app = login(&fixture.builder([failures()]).build());
    let attempts: Vec<_> = (0..60)
        .map(|number| {
            let app = app.clone();
            let path = if number % 3 == 0 { "/login/right" } else { "/login/wrong" };
            tokio::spawn(async move { visit(&app, path, "ann").await.status })
        })
        .collect();
    let mut failed = 0;
    for attempt in attempts {
        failed += i64::from(attempt.await.expect("the server responds") == StatusCode::UNAUTHORIZED);
    }
    assert!(failed <= 5, "{failed} have failed");
    fixture.wait_for_remaining(&failures(), "ann", 5 - failed).await;
    // Only the remaining logins may still fail.
    for _ in 0..10 {
        failed += i64::from(visit(&app, "/login/wrong", "ann").await.status == StatusCode::UNAUTHORIZED);
    }
    assert_eq!(failed, 5);
}

async fn the_whole_cost_of_a_route_is_refunded(fixture: StoreFixture) {
    let errors = per_day("errors", 100).by(user_key());
    let errors = errors.count_if(|response| response.status.is_client_error());
    let limits = fixture.builder([errors.clone()]).build();
    let app = Router::new()
        .route("/good", get(async || "good").route_layer(limits.cost(10)))
        .route("/bad", get(async || StatusCode::IM_A_TEAPOT).route_layer(limits.cost(10)))
        .layer(limits);
    for (path, status, left) in [("/good", 200, 100), ("/bad", 418, 90), ("/nowhere", 404, 89)] {
        assert_eq!(visit(&app, path, "ann").await.status, status);
        fixture.wait_for_remaining(&errors, "ann", left).await;
    }
}

async fn only_limits_with_count_if_are_refunded(fixture: StoreFixture) {
    let all = Limit::new("all", TokenBucket::per_day(20)).by(user_key());
    let app = login(&fixture.builder([all.clone(), failures()]).build());
    for left in [19, 18, 17] {
        visit(&app, "/login/right", "ann").await;
        fixture.wait_for_remaining(&failures(), "ann", 5).await;
        assert_eq!(fixture.remaining(&all, "ann").await, left);
    }
}

async fn the_cost_of_a_response_is_settled(fixture: StoreFixture) {
    let tokens = Limit::new("tokens", LeakyBucket::per_day(1_000)).by(user_key());
    let settled = tokens.clone().cost(100).settle_by(|response| response.header("x-used")?.parse().ok());
    let shortfall = Arc::new(Mutex::new(Vec::new()));
    let noted = shortfall.clone();
    let limits = fixture
        .builder([settled])
        .observe(move |event| {
            if let Event::Shortfall { limit, tokens, .. } = event {
                noted.lock().expect("no thread has panicked").push((limit.to_string(), *tokens));
            }
        })
        .build();
    let complete = |Path(used): Path<String>| async move { [("x-used", used)].into_response() };
    let app = Router::new().route("/{used}", get(complete)).layer(limits);
    // Less than was reserved, more, the same, and more than remains.
    for (path, left) in [("/30", 970), ("/470", 500), ("/unknown", 400), ("/0", 400), ("/100", 300), ("/900", 0)] {
        assert_eq!(visit(&app, path, "ann").await.status, 200, "{path}");
        fixture.wait_for_remaining(&tokens, "ann", left).await;
    }
    let reported = || shortfall.lock().expect("no thread has panicked").clone();
    for _ in 0..2_000 {
        if reported().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    assert_eq!(reported(), [("tokens".to_owned(), 600)]);
    assert!(visit(&app, "/1", "ann").await.is_denied());
}

async fn headers_include_settlements_that_are_complete(fixture: StoreFixture) {
    let app = login(&fixture.builder([failures()]).build());
    let answer = visit(&app, "/login/right", "ann").await;
    assert_eq!(answer.remaining(), if fixture.is_memory { 5 } else { 4 });
    fixture.wait_for_remaining(&failures(), "ann", 5).await;
    assert_eq!(visit(&app, "/login/wrong", "ann").await.remaining(), 4);
}

#[test]
fn a_limiter_sees_no_response() {
    let error = Limiter::builder([per_day("logins", 5).count_if(|_| true)]).try_build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the limit \"logins\" takes its actual cost from a request, but a `Limiter` has none: decide it \
         where you call `acquire`, or use a `RateLimitLayer`"
    );
}
