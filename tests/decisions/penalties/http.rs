//! Penalties over HTTP, as clients and handlers see them.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use http::{Request, StatusCode, Version};
use tokio::sync::Semaphore;
use tower_ratelimit::{
    AcquireError, Builder, FixedWindow, HeaderStyle, HttpOptions, Limit, Limiter, Penalty, Permit, RateLimitLayer,
    ResetFormat, ResponseHead, SlidingLog, TokenBucket, key, when,
};

use crate::penalties::backend::{Backend, DAY, EventLog, MINUTE, SECOND, on_each_backend, reporter};
use support::answer::{Answer, ask};

fn layer(backend: &Backend, limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, EventLog) {
    let (reported, report) = reporter();
    (RateLimitLayer::builder(limits).store(backend.store.clone()).deadline(30 * SECOND).observe(report), reported)
}

fn request(path: &str) -> Request<Body> {
    Request::get(path).header("x-user", "ann").body(Body::empty()).unwrap()
}

async fn visit(app: &Router, path: &str) -> Answer {
    ask(app, request(path)).await
}

fn reported(reported: &EventLog) -> Vec<String> {
    std::mem::take(&mut *reported.lock().unwrap())
}

#[tokio::test]
async fn responses_state_how_long_a_lockout_lasts() {
    on_each_backend(async |backend| {
        let penalty = Penalty::after(2, MINUTE).locked_out_for(90 * SECOND).doubling_up_to(DAY);
        let limit = Limit::new("burst", TokenBucket::new(1, 1, SECOND)).by(key::header("x-user")).penalty(penalty);
        let (limits, events) = layer(backend, [limit]);
        let limits = limits.headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)]).build();
        let app = Router::new().route("/", get(async || "hello")).layer(limits);
        assert_eq!(visit(&app, "/").await.status, 200);
        assert_eq!(visit(&app, "/").await.header("retry-after"), Some("1"));
        let refused = visit(&app, "/").await;
        assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("90")));
        assert_eq!(refused.body, "Too many requests: try again in 1 minute 30 seconds.\n");
        assert_eq!(refused.header("ratelimit"), Some("\"burst\";r=0;t=90"), "{}", backend.name);
        assert_eq!(refused.header("x-ratelimit-reset"), Some("180"));
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        assert_eq!(reported(&events), ["burst 1 90s"]);
        backend.advance(89 * SECOND);
        assert_eq!(visit(&app, "/").await.header("retry-after"), Some("1"), "{}", backend.name);
        backend.advance(SECOND);
        assert_eq!(visit(&app, "/").await.status, 200, "{}", backend.name);
        assert!(reported(&events).is_empty());
        for _ in 0..2 {
            assert_eq!(visit(&app, "/").await.status, 429);
        }
        assert_eq!(reported(&events), ["burst 2 180s"], "{}", backend.name);
        let mut other = request("/");
        other.headers_mut().insert("x-user", "bob".parse().unwrap());
        assert_eq!(ask(&app, other).await.status, 200, "another key has nothing to do with it");
    })
    .await;
}

#[tokio::test]
async fn a_size_of_another_period_has_strikes_and_lockouts_of_its_own() {
    on_each_backend(async |backend| {
        let penalty = Penalty::after(2, MINUTE).locked_out_for(90 * SECOND);
        let limit = Limit::new("one", FixedWindow::new(1, DAY)).by(key::header("x-user")).penalty(penalty);
        let (limits, events) =
            layer(backend, [limit.size_when(when::path_prefix("/hourly"), FixedWindow::per_hour(1))]);
        let app = Router::new().route("/daily", get("day")).route("/hourly", get("hour")).layer(limits.build());
        let strike = async |path| assert_eq!(visit(&app, path).await.status, 429, "{path}, {}", backend.name);
        assert_eq!([visit(&app, "/daily").await.status, visit(&app, "/hourly").await.status], [200, 200]);
        strike("/hourly").await;
        strike("/daily").await;
        assert!(reported(&events).is_empty(), "{}", backend.name);
        strike("/hourly").await;
        assert_eq!(reported(&events), ["one 1 90s"], "{}", backend.name);
        assert_eq!(visit(&app, "/hourly").await.header("retry-after"), Some("3600"), "{}", backend.name);
        strike("/daily").await;
        assert_eq!(reported(&events), ["one 1 90s"], "{}", backend.name);
    })
    .await;
}

/// The layer of the router charges 1, and the route the difference. If that is denied, the total is decided.
#[tokio::test]
async fn a_request_that_is_charged_in_steps_is_one_strike() {
    on_each_backend(async |backend| {
        let limit = Limit::new("daily", FixedWindow::new(5, DAY)).penalty(Penalty::after(3, DAY));
        let (limits, events) = layer(backend, [limit]);
        let limits = limits.build();
        let expensive = get(async || "expensive").route_layer(limits.cost(3));
        let app = Router::new().route("/", get(async || "")).route("/expensive", expensive).layer(limits);
        assert_eq!(visit(&app, "/expensive").await.status, 200);
        for _ in 0..2 {
            assert_eq!(visit(&app, "/expensive").await.status, 429);
            assert!(reported(&events).is_empty(), "{}", backend.name);
        }
        assert_eq!(visit(&app, "/").await.status, 200, "what was charged came back");
        assert_eq!(visit(&app, "/expensive").await.status, 429);
        assert_eq!(reported(&events), ["daily 1 86400s"], "{}", backend.name);
        assert_eq!(visit(&app, "/").await.status, 429, "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn a_denied_charge_of_a_permit_is_a_strike_and_a_settlement_is_not() {
    on_each_backend(async |backend| {
        let limit = Limit::new("tokens", FixedWindow::new(10, DAY)).by(key::header("x-user"));
        let (limits, events) = layer(backend, [limit.penalty(Penalty::after(2, DAY))]);
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
        assert_eq!(visit(&app, "/settle").await.body, "90");
        assert!(reported(&events).is_empty(), "{}: settling is no strike", backend.name);
        assert_eq!(visit(&app, "/reset").await.status, 200);
        assert_eq!(visit(&app, "/charge").await.body, "false");
        assert!(reported(&events).is_empty());
        assert_eq!(visit(&app, "/charge").await.body, "true", "{}", backend.name);
        assert_eq!(reported(&events), ["tokens 1 86400s"]);
        assert_eq!(visit(&app, "/charge").await.status, 429);
        assert_eq!(visit(&app, "/reset").await.status, 200);
        assert_eq!(visit(&app, "/charge").await.status, 200, "{}", backend.name);
    })
    .await;
}

/// Only failed logins count. A refund by the response is neither a strike nor the end of a lockout.
#[tokio::test]
async fn a_refund_by_the_response_does_not_change_penalties() {
    on_each_backend(async |backend| {
        let limit = Limit::new("logins", FixedWindow::new(2, DAY)).by(key::header("x-user"));
        let limit = limit.count_if(|response| response.status == StatusCode::UNAUTHORIZED);
        let (limits, events) = layer(backend, [limit.penalty(Penalty::after(2, DAY))]);
        let app = Router::new()
            .route("/good", get(async || "hello"))
            .route("/bad", get(async || StatusCode::UNAUTHORIZED))
            .layer(limits.build());
        assert_eq!(visit(&app, "/bad").await.status, 401);
        assert_eq!(visit(&app, "/bad").await.status, 401);
        assert_eq!(visit(&app, "/bad").await.status, 429);
        assert!(reported(&events).is_empty());
        assert_eq!(visit(&app, "/good").await.status, 429);
        assert_eq!(reported(&events), ["logins 1 86400s"], "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn grpc_clients_are_told_to_retry_after_the_lockout() {
    on_each_backend(async |backend| {
        let limit = Limit::new("one", TokenBucket::new(1, 1, SECOND)).penalty(Penalty::after(1, MINUTE));
        let app = Router::new().route("/", post(async || "hello")).layer(layer(backend, [limit]).0.build());
        let call = || {
            let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
            call.body(Body::empty()).unwrap()
        };
        assert_eq!(ask(&app, call()).await.header("grpc-status"), None);
        let refused = ask(&app, call()).await;
        assert_eq!(refused.header("grpc-status"), Some("8"));
        assert_eq!(refused.header("grpc-retry-pushback-ms"), Some("60000"), "{}", backend.name);
    })
    .await;
}

/// The guide's recipe for logins, with a handler that waits for `gate`.
fn login_recipe(backend: &Backend, gate: Arc<Semaphore>) -> (Router, EventLog) {
    let (reported, report) = reporter();
    let lockout = Penalty::after(3, 60 * MINUTE).locked_out_for(5 * MINUTE).doubling_up_to(DAY);
    let failures = Limit::new("failures", TokenBucket::per_minute(1).burst(3)).penalty(lockout);
    let failures = Limiter::builder([failures]).store(backend.store.clone()).deadline(30 * SECOND).observe(report);
    let is_failure = |response: &ResponseHead<'_>| response.status == StatusCode::UNAUTHORIZED;
    let user = || key::header("x-user");
    let logins = layer(
        backend,
        [
            Limit::new("by-address", SlidingLog::per_hour(20)).by(user()).count_if(is_failure),
            Limit::new("by-account", SlidingLog::per_hour(5)).by(user()).count_if(is_failure),
        ],
    );
    let login = async move |State(failures): State<Limiter>, password: String| -> Result<StatusCode, AcquireError> {
        if !failures.peek("ann", 1).await?.is_allowed() {
            failures.try_acquire("ann", 1).await?;
        }
        let _turn = gate.acquire().await.unwrap();
        if password == "right" {
            return Ok(StatusCode::OK);
        }
        failures.try_acquire("ann", 1).await?;
        Ok(StatusCode::UNAUTHORIZED)
    };
    let app = Router::new().route("/login", post(login).route_layer(logins.0.build())).with_state(failures.build());
    (app, reported)
}

async fn log_in(app: Router, password: &'static str) -> StatusCode {
    ask(&app, Request::post("/login").header("x-user", "ann").body(Body::from(password)).unwrap()).await.status
}

#[tokio::test]
async fn valid_logins_at_once_lock_nobody_out() {
    on_each_backend(async |backend| {
        let gate = Arc::new(Semaphore::new(0));
        let (app, reported) = login_recipe(backend, gate.clone());
        let logins: Vec<_> = (0..50).map(|_| tokio::spawn(log_in(app.clone(), "right"))).collect();
        while logins.iter().filter(|login| login.is_finished()).count() < 45 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(50);
        let mut statuses = Vec::new();
        for login in logins {
            statuses.push(login.await.unwrap().as_u16());
        }
        statuses.sort_unstable();
        assert_eq!((statuses[..5].to_vec(), statuses[5..].to_vec()), (vec![200; 5], vec![429; 45]), "{}", backend.name);
        for _ in 0..30 {
            while log_in(app.clone(), "right").await != 200 {
                // A store that does not answer at once refunds in the background.
                tokio::task::yield_now().await;
            }
        }
        assert!(reported.lock().unwrap().is_empty(), "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn failed_logins_lock_their_client_out() {
    on_each_backend(async |backend| {
        let (app, reported) = login_recipe(backend, Arc::new(Semaphore::new(1)));
        for _ in 0..3 {
            assert_eq!(log_in(app.clone(), "wrong").await, 401, "{}", backend.name);
        }
        for password in ["wrong", "right", "wrong", "right"] {
            assert_eq!(log_in(app.clone(), password).await, 429, "{}", backend.name);
        }
        assert_eq!(*reported.lock().unwrap(), ["failures 1 300s"], "{}", backend.name);
        backend.advance(5 * MINUTE);
        assert_eq!(log_in(app, "right").await, 200, "{}", backend.name);
    })
    .await;
}
