//! Penalties over HTTP, as clients and handlers see them.

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::{Request, StatusCode, Version};
use tower_ratelimit::{
    Builder, FixedWindow, HeaderStyle, HttpOptions, Limit, Penalty, Permit, ResetFormat, TokenBucket, key, when,
};

use support::answer::ask;
use support::event_log::EventLog;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};
use support::time::{DAY, HOUR, MINUTE, SECOND};

on_both_stores!(
    responses_state_how_long_a_lockout_lasts,
    a_size_of_another_period_has_strikes_and_lockouts_of_its_own,
    a_request_that_is_charged_in_steps_is_one_strike,
    a_denied_charge_of_a_permit_is_a_strike_and_a_settlement_is_not,
    a_refund_by_the_response_does_not_change_penalties,
    grpc_clients_are_told_to_retry_after_the_lockout,
    a_penalty_stays_with_its_limit_although_the_key_of_an_earlier_limit_is_known_later,
);

fn layer(fixture: &StoreFixture, limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, EventLog) {
    let events = EventLog::default();
    (fixture.builder(limits).observe(events.observer()), events)
}

/// Sends requests of Ann, and compares the status and the event of each.
async fn check(app: &Router, events: &EventLog, steps: &[(&str, u16, Option<&str>)]) {
    for (step, (path, status, event)) in steps.iter().enumerate() {
        let answer = visit(app, path, "ann").await;
        let event: Vec<&str> = event.iter().copied().collect();
        assert_eq!(
            (answer.status.as_u16(), events.take()),
            (*status, event.into_iter().map(str::to_owned).collect()),
            "{step}: {path}"
        );
    }
}

async fn responses_state_how_long_a_lockout_lasts(fixture: StoreFixture) {
    let penalty = Penalty::after(2, MINUTE).locked_out_for(90 * SECOND).doubling_up_to(DAY);
    let limit = Limit::new("burst", TokenBucket::new(1, 1, SECOND)).by(user_key()).penalty(penalty);
    let (limits, events) = layer(&fixture, [limit]);
    let limits = limits.headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)]).build();
    let app = Router::new().route("/", get(async || "hello")).layer(limits);
    check(&app, &events, &[("/", 200, None)]).await;
    assert_eq!(visit(&app, "/", "ann").await.header("retry-after"), Some("1"));
    let denied = visit(&app, "/", "ann").await;
    assert_eq!((denied.status, events.take()), (StatusCode::TOO_MANY_REQUESTS, vec!["burst 1 90s".to_owned()]));
    let headers = ["retry-after", "ratelimit", "x-ratelimit-reset", "cache-control"].map(|name| denied.header(name));
    assert_eq!(headers, [Some("90"), Some("\"burst\";r=0;t=90"), Some("180"), Some("no-store")]);
    assert_eq!(denied.body, "Too many requests: try again in 1 minute 30 seconds.\n");
    fixture.advance(89 * SECOND);
    assert_eq!(visit(&app, "/", "ann").await.header("retry-after"), Some("1"));
    fixture.advance(SECOND);
    check(&app, &events, &[("/", 200, None), ("/", 429, None), ("/", 429, Some("burst 2 180s"))]).await;
    assert_eq!(visit(&app, "/", "bob").await.status, 200, "another key has nothing to do with it");
}

async fn a_size_of_another_period_has_strikes_and_lockouts_of_its_own(fixture: StoreFixture) {
    let penalty = Penalty::after(2, MINUTE).locked_out_for(90 * SECOND);
    let limit = Limit::new("one", FixedWindow::new(1, DAY)).by(user_key()).penalty(penalty);
    let (limits, events) = layer(&fixture, [limit.size_when(when::path_prefix("/hourly"), FixedWindow::per_hour(1))]);
    let app = Router::new().route("/daily", get("day")).route("/hourly", get("hour")).layer(limits.build());
    let steps = [
        ("/daily", 200, None),
        ("/hourly", 200, None),
        ("/hourly", 429, None),
        ("/daily", 429, None),
        ("/hourly", 429, Some("one 1 90s")),
        ("/daily", 429, Some("one 1 90s")),
    ];
    check(&app, &events, &steps).await;
    assert_eq!(visit(&app, "/hourly", "ann").await.header("retry-after"), Some("3600"));
}

/// The layer of the router charges 1, and the route the difference. If that is denied, the total is decided.
async fn a_request_that_is_charged_in_steps_is_one_strike(fixture: StoreFixture) {
    let limit = Limit::new("daily", FixedWindow::new(5, DAY)).penalty(Penalty::after(3, DAY));
    let (limits, events) = layer(&fixture, [limit]);
    let limits = limits.build();
    let expensive = get(async || "expensive").route_layer(limits.cost(3));
    let app = Router::new().route("/", get(async || "")).route("/expensive", expensive).layer(limits);
    let steps = [
        ("/expensive", 200, None),
        ("/expensive", 429, None),
        ("/expensive", 429, None),
        // The charge of the router was refunded.
        ("/", 200, None),
        ("/expensive", 429, Some("daily 1 86400s")),
        ("/", 429, None),
    ];
    check(&app, &events, &steps).await;
}

async fn a_denied_charge_of_a_permit_is_a_strike_and_a_settlement_is_not(fixture: StoreFixture) {
    let limit = Limit::new("tokens", FixedWindow::new(10, DAY)).by(user_key());
    let (limits, events) = layer(&fixture, [limit.penalty(Penalty::after(2, DAY))]);
    let settle = get(async |permit: Permit| {
        let mut shortfall = 0;
        for _ in 0..4 {
            shortfall = permit.settle(100).await.unwrap().shortfall;
        }
        shortfall.to_string()
    });
    let charge = get(async |permit: Permit| permit.charge(100).await.unwrap().is_locked_out().to_string());
    let reset = get(async |permit: Permit| permit.reset().await.unwrap());
    let app = Router::new().route("/settle", settle).route("/charge", charge).route("/reset", reset);
    // Resets the key of a limit with a cost of 0.
    let app = app.layer(limits.permits().cost_by(|head| u64::from(head.uri.path() != "/reset")).build());
    assert_eq!(visit(&app, "/settle", "ann").await.body, "90");
    check(&app, &events, &[("/reset", 200, None)]).await;
    for (is_locked_out, event) in [("false", vec![]), ("true", vec!["tokens 1 86400s".to_owned()])] {
        assert_eq!((&*visit(&app, "/charge", "ann").await.body, events.take()), (is_locked_out, event));
    }
    check(&app, &events, &[("/charge", 429, None), ("/reset", 200, None), ("/charge", 200, None)]).await;
}

/// Only failed logins count. A refund by the response is neither a strike nor the end of a lockout.
async fn a_refund_by_the_response_does_not_change_penalties(fixture: StoreFixture) {
    let limit = Limit::new("logins", FixedWindow::new(2, DAY)).by(user_key());
    let limit = limit.count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let (limits, events) = layer(&fixture, [limit.penalty(Penalty::after(2, DAY))]);
    let app = Router::new()
        .route("/good", get(async || "hello"))
        .route("/bad", get(async || StatusCode::UNAUTHORIZED))
        .layer(limits.build());
    let steps =
        [("/bad", 401, None), ("/bad", 401, None), ("/bad", 429, None), ("/good", 429, Some("logins 1 86400s"))];
    check(&app, &events, &steps).await;
}

async fn grpc_clients_are_told_to_retry_after_the_lockout(fixture: StoreFixture) {
    let limit = Limit::new("one", TokenBucket::new(1, 1, SECOND)).penalty(Penalty::after(1, MINUTE));
    let app = Router::new().route("/", post(async || "hello")).layer(layer(&fixture, [limit]).0.build());
    let call = || {
        let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
        call.body(Body::empty()).unwrap()
    };
    assert_eq!(ask(&app, call()).await.header("grpc-status"), None);
    let denied = ask(&app, call()).await;
    let headers = ["grpc-status", "grpc-retry-pushback-ms"].map(|name| denied.header(name));
    assert_eq!(headers, [Some("8"), Some("60000")]);
}

async fn a_penalty_stays_with_its_limit_although_the_key_of_an_earlier_limit_is_known_later(fixture: StoreFixture) {
    let tenant = key::from_async_fn(|_| async {
        tokio::task::yield_now().await;
        Some("tenant")
    });
    let limits = [
        Limit::new("tenant", FixedWindow::new(3, DAY)).by(tenant),
        Limit::new("codes", FixedWindow::new(1, MINUTE)).by(user_key()).penalty(Penalty::after(1, HOUR)),
    ];
    let (limits, events) = layer(&fixture, limits);
    let app = Router::new().route("/", get(async || "hello")).layer(limits.build());
    check(&app, &events, &[("/", 200, None), ("/", 429, Some("codes 1 3600s")), ("/", 429, None)]).await;
    for (user, status) in [("bob", 200), ("eve", 200), ("joe", 429)] {
        let answer = visit(&app, "/", user).await;
        assert_eq!((answer.status.as_u16(), events.take()), (status, vec![]), "{user}: a denial by the tenant's limit");
    }
}
