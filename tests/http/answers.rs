//! Rejections: their status, headers and body.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use support::faulty_store::{FaultyStore, Mode};
use tower::Layer;
use tower_http::cors::{Any, CorsLayer};
use tower_ratelimit::key::KeyError;
use tower_ratelimit::{
    Algorithm, Builder, FixedWindow, HeaderStyle, HttpOptions, LeakyBucket, Limit, RateLimitLayer, Reason, ResetFormat,
    SlidingLog, SlidingWindowCounter, TokenBucket, key,
};

use crate::service::{Hello, get};
use crate::store::{midnight, paused_store};
use support::answer::{Answer, ask};
use support::server::Server;

fn one(algorithm: impl Into<Algorithm>) -> Builder<HttpOptions> {
    RateLimitLayer::builder([Limit::new("one", algorithm)]).store(paused_store())
}

async fn rejection_of(layer: RateLimitLayer) -> Answer {
    let service = layer.layer(Hello::default());
    assert!(!ask(&service, get("/")).await.is_refused());
    let rejected = ask(&service, get("/")).await;
    assert!(!rejected.status.is_success());
    rejected
}

#[tokio::test]
async fn a_rejection_is_plain_text_that_is_not_cached() {
    let rejected = rejection_of(one(FixedWindow::per_minute(1)).build()).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.header("retry-after"), Some("60"));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(rejected.body, "Too many requests: try again in 1 minute.\n");
}

/// httprate#47, boundary#4094 and others: `Retry-After` was 0, or too early.
#[tokio::test]
async fn the_wait_is_whole_seconds_rounded_up() {
    let second = Duration::from_secs(1);
    for (period, seconds) in [
        (Duration::from_micros(1), "1"),
        (Duration::from_millis(1), "1"),
        (second, "1"),
        (second + Duration::from_micros(1), "2"),
        (Duration::from_millis(1_999), "2"),
        (Duration::from_secs(24 * 86_400), "2073600"),
    ] {
        let rejected = rejection_of(one(TokenBucket::new(1, 1, period)).build()).await;
        assert_eq!(rejected.header("retry-after"), Some(seconds), "{period:?}");
    }
    let rejected = rejection_of(one(TokenBucket::per_second(1)).build()).await;
    assert_eq!(rejected.body, "Too many requests: try again in 1 second.\n");
}

/// A request after the announced wait is allowed, and the wait is not a second too long.
#[tokio::test]
async fn waiting_as_announced_suffices() {
    let algorithms: [Algorithm; 5] = [
        FixedWindow::new(3, Duration::from_millis(7_300)).into(),
        SlidingLog::new(3, Duration::from_millis(7_300)).into(),
        SlidingWindowCounter::new(3, Duration::from_millis(7_300)).into(),
        TokenBucket::new(3, 2, Duration::from_millis(7_300)).into(),
        LeakyBucket::new(3, 2, Duration::from_millis(7_300)).into(),
    ];
    for algorithm in algorithms {
        let clock = midnight();
        let store = tower_ratelimit::MemoryStore::new().clock(clock.clone());
        let service =
            RateLimitLayer::builder([Limit::new("three", algorithm)]).store(store).build().layer(Hello::default());
        clock.advance(Duration::from_micros(1_234_567));
        let mut waits = 0;
        for _ in 0..20 {
            let answer = ask(&service, get("/")).await;
            if !answer.is_refused() {
                clock.advance(Duration::from_millis(111));
                continue;
            }
            waits += 1;
            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            let almost = Duration::from_secs(seconds - 1);
            clock.advance(almost);
            assert!(ask(&service, get("/")).await.is_refused(), "{algorithm:?} after {almost:?}");
            clock.advance(Duration::from_secs(1));
            assert!(!ask(&service, get("/")).await.is_refused(), "{algorithm:?} after {seconds} s");
        }
        assert!(waits > 3, "{algorithm:?} rejected {waits} times");
    }
}

#[tokio::test]
async fn a_problem_as_json() {
    let limits = [
        Limit::new("a \"quoted\" \\name\\", FixedWindow::per_minute(1)),
        Limit::new("daily", FixedWindow::per_day(10)),
        Limit::new("b", FixedWindow::per_minute(1)),
    ];
    let rejected = rejection_of(RateLimitLayer::builder(limits).store(paused_store()).problem_json().build()).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    assert_eq!(rejected.header("retry-after"), Some("60"));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    let problem: Value = serde_json::from_str(&rejected.body).unwrap();
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Too many requests: try again in 1 minute.",
        "violated-policies": ["a \"quoted\" \\name\\", "b"],
    });
    assert_eq!(problem, expected);
}

#[tokio::test]
async fn a_problem_with_the_request_as_json() {
    let limit = Limit::new("secret", FixedWindow::per_minute(1)).by(key::header("x-api-key"));
    let service = RateLimitLayer::builder([limit]).store(paused_store()).problem_json().build().layer(Hello::default());
    let rejected = ask(&service, get("/")).await;
    assert_eq!(rejected.header("retry-after"), None);
    let problem: Value = serde_json::from_str(&rejected.body).unwrap();
    let detail = "Missing client identifier.";
    assert_eq!(problem, json!({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": detail}));
}

#[tokio::test]
async fn a_closure_gets_the_exact_wait() {
    let wait = |builder: Builder<HttpOptions>| {
        builder.on_reject(|rejection| {
            let (exact, seconds) = (rejection.retry_after(), rejection.retry_after_seconds());
            (rejection.status(), format!("{exact:?}, in the header {seconds:?}"))
        })
    };
    let fraction = rejection_of(wait(one(TokenBucket::per_second(4).burst(1))).build()).await;
    assert_eq!(fraction.body, "Some(250ms), in the header Some(1)");
    let limit = || Limit::new("one", FixedWindow::per_minute(1));
    let never = RateLimitLayer::builder([limit().by(key::header("x-user"))]).store(paused_store());
    let failed = RateLimitLayer::builder([limit()]).store(FaultyStore::new(Mode::FailsAtOnce));
    for (builder, expected) in [(never, "None, in the header None"), (failed, "Some(1s), in the header Some(1)")] {
        let service = wait(builder).build().layer(Hello::default());
        assert_eq!(ask(&service, get("/")).await.body, expected);
    }
}

#[tokio::test]
async fn a_closure_writes_the_rejection() {
    let seen = Arc::new(Mutex::new(None));
    let layer = one(FixedWindow::per_minute(1))
        .on_reject({
            let seen = seen.clone();
            move |rejection| {
                let violated: Vec<String> = rejection.denied_by().map(|limit| limit.name.to_owned()).collect();
                let path = rejection.head.uri.path().to_owned();
                *seen.lock().unwrap() = Some((rejection.reason, violated, path, rejection.retry_after_seconds()));
                let mut response = Response::new(format!("<p>{}</p>", rejection.message()));
                *response.status_mut() = StatusCode::IM_A_TEAPOT;
                response
            }
        })
        .build();
    let rejected = rejection_of(layer).await;
    assert_eq!(rejected.status, StatusCode::IM_A_TEAPOT);
    assert_eq!(rejected.body, "<p>Too many requests: try again in 1 minute.</p>");
    assert_eq!(rejected.header("retry-after"), Some("60"));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    assert_eq!(rejected.header("content-type"), None);
    assert_eq!(rejected.remaining(), 0, "headers are sent nevertheless");
    let minute = Duration::from_secs(60);
    let expected = (Reason::Limited { retry_after: Some(minute) }, vec!["one".to_owned()], "/".to_owned(), Some(60));
    assert_eq!(*seen.lock().unwrap(), Some(expected));
}

#[tokio::test]
async fn headers_set_by_a_closure_are_not_repeated() {
    let layer = one(FixedWindow::per_minute(1))
        .headers([HeaderStyle::XRetryAfter])
        .on_reject(|_| {
            let response =
                Response::builder().status(429).header("retry-after", "7").header("cache-control", "no-cache");
            response.header("x-ratelimit-retry-after", "7").body(String::new()).unwrap()
        })
        .build();
    let rejected = rejection_of(layer).await;
    assert_eq!(rejected.header("retry-after"), Some("7"));
    assert_eq!(rejected.header("x-ratelimit-retry-after"), Some("7"));
    assert_eq!(rejected.header("cache-control"), Some("no-cache"));
    assert_eq!(rejected.body, "");
}

#[tokio::test]
async fn a_closure_formats_every_rejection() {
    let limit = Limit::new("one", FixedWindow::per_minute(1));
    let words = |rejection: &tower_ratelimit::Rejection<'_>| Response::new(format!("{:?}", rejection.reason));
    let body = async |limit: Limit| {
        let service =
            RateLimitLayer::builder([limit]).store(paused_store()).on_reject(words).build().layer(Hello::default());
        ask(&service, get("/")).await.body
    };
    assert_eq!(
        body(limit.clone().by(key::header("x-user"))).await,
        format!("{:?}", Reason::MissingKey(KeyError::NotSent))
    );
    assert_eq!(
        body(limit.clone().by(key::peer_ip())).await,
        format!("{:?}", Reason::MissingKey(KeyError::NotProvided))
    );
    let never = Reason::Limited { retry_after: None };
    assert_eq!(body(limit.cost_by(|_| 2)).await, format!("{never:?}"));
}

/// boundary#4159, labrinth#874: without CORS headers, a browser cannot read a rejection.
#[tokio::test]
async fn browsers_can_read_a_rejection_behind_cors() {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRetryAfter];
    let limits = one(FixedWindow::per_minute(1)).headers(styles).build();
    let cors = CorsLayer::new().allow_origin(Any).expose_headers(limits.exposed_headers());
    let server = Server::axum(Router::new().route("/", route(async || "hello")).layer(limits).layer(cors)).await;
    let ask = async |method: Method| {
        let request = Request::builder().method(method).uri(server.uri("/")).header("origin", "https://example.org");
        server.send(request.header("access-control-request-method", "GET").body(Full::default()).unwrap()).await
    };
    for _ in 0..3 {
        assert_eq!(ask(Method::OPTIONS).await.status, StatusCode::OK, "preflights are not counted");
    }
    assert!(!ask(Method::GET).await.is_refused());
    let rejected = ask(Method::GET).await;
    assert!(rejected.is_refused());
    assert_eq!(rejected.header("access-control-allow-origin"), Some("*"));
    let exposed = rejected.header("access-control-expose-headers").unwrap().to_lowercase();
    let exposed: Vec<&str> = exposed.split(',').map(str::trim).collect();
    let safe = ["cache-control", "content-length", "content-type"];
    let cors_own = ["vary", "access-control-allow-origin", "access-control-expose-headers", "date"];
    let unexposed = |name: &&str| !exposed.contains(name) && !safe.contains(name) && !cors_own.contains(name);
    let hidden: Vec<&str> = rejected.headers.keys().map(|name| name.as_str()).filter(unexposed).collect();
    assert_eq!(hidden, [] as [&str; 0]);
    assert_eq!(exposed.len(), 7);
}
