//! Rejections: their status, headers and body.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use support::faulty_store::{FaultyStore, Mode};
use tower_http::cors::{Any, CorsLayer};
use tower_ratelimit::key::KeyError;
use tower_ratelimit::{
    Algorithm, Builder, FixedWindow, HeaderStyle, HttpOptions, LeakyBucket, Limit, Reason, Rejection, ResetFormat,
    SlidingLog, SlidingWindowCounter, TokenBucket, key,
};

use crate::service::{builder, clocked, get, one, per_day, per_minute, serve};
use support::answer::{Answer, ask};
use support::server::Server;

/// Returns the response to the second request.
async fn rejection_of(builder: Builder<HttpOptions>) -> Answer {
    let service = serve(builder);
    assert!(!ask(&service, get("/")).await.is_denied());
    ask(&service, get("/")).await
}

/// Checks the values of headers.
#[track_caller]
fn has_headers(answer: &Answer, expected: &[(&str, Option<&str>)]) {
    let found: Vec<_> = expected.iter().map(|(name, _)| (*name, answer.header(name))).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_rejection_is_plain_text_that_is_not_cached() {
    let rejected = rejection_of(builder(one())).await;
    assert_eq!(rejected.status, 429);
    let expected = [
        ("retry-after", Some("60")),
        ("cache-control", Some("no-store")),
        ("content-type", Some("text/plain; charset=utf-8")),
    ];
    has_headers(&rejected, &expected);
    assert_eq!(rejected.body, "Too many requests: try again in 1 minute.\n");
}

/// A request after the announced wait is allowed, and the wait is not a second too long. In throttle-kit
/// tower_layer.rs:269, it was always 1. qdrant#5917, kgateway#4316: the whole window instead of the rest of it.
#[tokio::test]
async fn waiting_as_announced_suffices() {
    let period = Duration::from_millis(7_300);
    let algorithms: [Algorithm; 5] = [
        FixedWindow::new(3, period).into(),
        SlidingLog::new(3, period).into(),
        SlidingWindowCounter::new(3, period).into(),
        TokenBucket::new(3, 2, period).into(),
        LeakyBucket::new(3, 2, period).into(),
    ];
    for algorithm in algorithms {
        let (builder, clock) = clocked(Limit::new("three", algorithm));
        let service = serve(builder);
        clock.advance(Duration::from_micros(1_234_567));
        let mut waits = 0;
        for _ in 0..20 {
            let answer = ask(&service, get("/")).await;
            if !answer.is_denied() {
                clock.advance(Duration::from_millis(111));
                continue;
            }
            waits += 1;
            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            for (wait, is_denied) in [(seconds - 1, true), (1, false)] {
                clock.advance(Duration::from_secs(wait));
                assert_eq!(
                    ask(&service, get("/")).await.is_denied(),
                    is_denied,
                    "{algorithm:?}, {wait} of {seconds} s"
                );
            }
        }
        assert!(waits > 3, "{algorithm:?} rejected {waits} times");
    }
}

#[tokio::test]
async fn a_problem_as_json() {
    let limits = [per_minute("a \"quoted\" \\name\\", 1), per_day("daily", 10), per_minute("b", 1)];
    let rejected = rejection_of(builder(limits).problem_json()).await;
    assert_eq!(rejected.status, 429);
    let expected = [
        ("content-type", Some("application/problem+json")),
        ("retry-after", Some("60")),
        ("cache-control", Some("no-store")),
    ];
    has_headers(&rejected, &expected);
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Too many requests: try again in 1 minute.",
        "violated-policies": ["a \"quoted\" \\name\\", "b"],
    });
    assert_eq!(serde_json::from_str::<Value>(&rejected.body).unwrap(), expected);
}

#[tokio::test]
async fn a_problem_with_the_request_as_json() {
    let rejected = ask(&serve(builder(one().by(key::header("x-api-key"))).problem_json()), get("/")).await;
    assert_eq!(rejected.header("retry-after"), None);
    let problem: Value = serde_json::from_str(&rejected.body).unwrap();
    let detail = "Missing client identifier.";
    assert_eq!(problem, json!({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": detail}));
}

#[tokio::test]
async fn a_closure_formats_every_rejection_and_gets_the_exact_wait() {
    let reject = |rejection: &Rejection<'_>| {
        let waits = (rejection.retry_after(), rejection.retry_after_seconds());
        let (reason, message) = (rejection.reason, rejection.message());
        (rejection.status(), format!("{reason:?} {waits:?} {message}"))
    };
    let text = |reason: Reason, rest: &str| format!("{reason:?} {rest}");
    let quick = Limit::new("one", TokenBucket::per_second(4).burst(1));
    let exact = Duration::from_millis(250);
    let rejected = rejection_of(builder(quick).on_reject(reject)).await;
    let expected = text(
        Reason::Limited { retry_after: Some(exact) },
        "(Some(250ms), Some(1)) Too many requests: try again in 1 second.",
    );
    assert_eq!(rejected.body, expected);
    for (builder, reason, rest) in [
        (
            builder(one().by(key::header("x-user"))),
            Reason::MissingKey(KeyError::NotSent),
            "(None, None) Missing client identifier.",
        ),
        (
            builder(one().by(key::peer_ip())),
            Reason::MissingKey(KeyError::NotProvided),
            "(None, None) Client address unavailable.",
        ),
        (
            builder(one().cost_by(|_| 2)),
            Reason::Limited { retry_after: None },
            "(None, None) Too much for one request: it costs more than its limit allows.",
        ),
        (
            builder(one()).store(FaultyStore::new(Mode::FailsAtOnce)),
            Reason::StoreFailed,
            "(Some(1s), Some(1)) Temporarily unavailable: try again in a moment.",
        ),
    ] {
        assert_eq!(ask(&serve(builder.on_reject(reject)), get("/")).await.body, text(reason, rest));
    }
}

#[tokio::test]
async fn a_closure_writes_the_rejection() {
    let seen = Arc::new(Mutex::new(None));
    let noted = seen.clone();
    let rejected = rejection_of(builder(one()).on_reject(move |rejection| {
        let violated: Vec<String> = rejection.denied_by().map(|limit| limit.name.to_owned()).collect();
        *noted.lock().unwrap() = Some((violated, rejection.head.uri.path().to_owned()));
        let mut response = Response::new("<p>No.</p>".to_owned());
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    }))
    .await;
    assert_eq!((rejected.status, rejected.body.as_str()), (StatusCode::IM_A_TEAPOT, "<p>No.</p>"));
    let expected = [("retry-after", Some("60")), ("cache-control", Some("no-store")), ("content-type", None)];
    has_headers(&rejected, &expected);
    assert_eq!(rejected.remaining(), 0, "headers are sent nevertheless");
    assert_eq!(*seen.lock().unwrap(), Some((vec!["one".to_owned()], "/".to_owned())));
}

#[tokio::test]
async fn headers_set_by_a_closure_are_not_repeated() {
    let builder = builder(one()).headers(HeaderStyle::XRetryAfter).on_reject(|_| {
        let response = Response::builder().status(429).header("retry-after", "7").header("cache-control", "no-cache");
        response.header("x-ratelimit-retry-after", "7").body(String::new()).unwrap()
    });
    let expected =
        [("retry-after", Some("7")), ("x-ratelimit-retry-after", Some("7")), ("cache-control", Some("no-cache"))];
    let rejected = rejection_of(builder).await;
    has_headers(&rejected, &expected);
    assert_eq!(rejected.body, "");
}

/// boundary#4159, labrinth#874: without CORS headers, a browser cannot read a rejection.
#[tokio::test]
async fn browsers_can_read_a_rejection_behind_cors() {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRetryAfter];
    let limits = builder(one()).headers(styles).build();
    let cors = CorsLayer::new().allow_origin(Any).expose_headers(limits.exposed_headers());
    let server = Server::axum(Router::new().route("/", route(async || "hello")).layer(limits).layer(cors)).await;
    let ask = async |method: Method| {
        let request = Request::builder().method(method).uri(server.uri("/")).header("origin", "https://example.org");
        server.send(request.header("access-control-request-method", "GET").body(Full::default()).unwrap()).await
    };
    for _ in 0..3 {
        assert_eq!(ask(Method::OPTIONS).await.status, 200, "preflights are not counted");
    }
    assert!(!ask(Method::GET).await.is_denied());
    let rejected = ask(Method::GET).await;
    assert!(rejected.is_denied());
    assert_eq!(rejected.header("access-control-allow-origin"), Some("*"));
    let exposed = rejected.header("access-control-expose-headers").unwrap().to_lowercase();
    let exposed: Vec<&str> = exposed.split(',').map(str::trim).collect();
    let safe = ["cache-control", "content-length", "content-type"];
    let cors_own = ["vary", "access-control-allow-origin", "access-control-expose-headers", "date"];
    let readable = [&exposed[..], &safe, &cors_own].concat();
    let hidden: Vec<&str> =
        rejected.headers.keys().map(|name| name.as_str()).filter(|n| !readable.contains(n)).collect();
    assert_eq!((hidden, exposed.len()), (Vec::new(), 7));
}
