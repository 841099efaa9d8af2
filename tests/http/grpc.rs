//! Refusals of gRPC requests, told by their content type.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::Layer;
use tower_ratelimit::{FixedWindow, Limit, RateLimit, RateLimitLayer, TokenBucket, key};

use crate::answer::{Answer, ask};
use crate::service::{Hello, from};
use crate::store::{Broken, still};

fn call(content_type: &str) -> Request<()> {
    Request::post("/package.Service/Method").header("content-type", content_type).body(()).unwrap()
}

fn limited(limit: Limit) -> RateLimit<Hello> {
    RateLimitLayer::new([limit]).store(still()).layer(Hello::default())
}

async fn refusal(limit: Limit) -> Answer {
    let service = limited(limit);
    assert!(!ask(&service, call("application/grpc")).await.is_refused());
    ask(&service, call("application/grpc")).await
}

fn status(answer: &Answer) -> (Option<&str>, Option<&str>) {
    // Trailers-only: whatever happened, HTTP is fine, and there is nothing behind the headers.
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body, "");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("retry-after"), None);
    (answer.header("grpc-status"), answer.header("grpc-message"))
}

fn once_every(period: Duration) -> Limit {
    Limit::new("one", TokenBucket::new(1, 1, period))
}

#[tokio::test]
async fn a_refusal_is_trailers_only() {
    let refused = refusal(Limit::new("one", FixedWindow::per_minute(1))).await;
    assert_eq!(status(&refused), (Some("8"), Some("Too many requests: try again in 60 seconds.")));
    assert_eq!(refused.header("content-type"), Some("application/grpc"));
    assert_eq!(refused.header("grpc-retry-pushback-ms"), Some("60000"));
    assert_eq!(refused.remaining(), 0);
}

#[tokio::test]
async fn the_pushback_is_milliseconds_rounded_up() {
    for (period, pushback) in [
        (Duration::from_micros(1), "1"),
        (Duration::from_micros(1_000), "1"),
        (Duration::from_micros(1_001), "2"),
        (Duration::from_micros(1_500_000), "1500"),
        // The most that a client can be told, and one more.
        (Duration::from_millis(i32::MAX as u64), "2147483647"),
        (Duration::from_millis(i32::MAX as u64 + 1), "2147483647"),
        (Duration::from_secs(366 * 86_400), "2147483647"),
    ] {
        let refused = refusal(once_every(period)).await;
        assert_eq!(refused.header("grpc-retry-pushback-ms"), Some(pushback), "{period:?}");
    }
}

#[tokio::test]
async fn where_no_wait_can_help_clients_do_not_retry() {
    let service = limited(Limit::new("one", FixedWindow::per_minute(1)).cost_by(|_| 2));
    let refused = ask(&service, call("application/grpc")).await;
    assert_eq!(status(&refused).0, Some("8"));
    assert_eq!(refused.header("grpc-retry-pushback-ms"), Some("-1"));
}

#[tokio::test]
async fn every_kind_of_grpc_is_answered_as_it_asked() {
    let service = limited(Limit::new("none", FixedWindow::per_minute(1)).cost_by(|_| 2));
    for content_type in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc+json",
        "application/grpc;charset=utf-8",
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
    ] {
        let refused = ask(&service, call(content_type)).await;
        assert_eq!(status(&refused).0, Some("8"), "{content_type}");
        assert_eq!(refused.header("content-type"), Some(content_type));
    }
    for content_type in ["application/grpcx", "application/json", "text/plain; application/grpc", "grpc"] {
        let refused = ask(&service, call(content_type)).await;
        assert!(refused.is_refused(), "{content_type}");
        assert_eq!(refused.header("grpc-status"), None, "{content_type}");
    }
}

#[tokio::test]
async fn other_refusals_have_other_codes() {
    let limit = || Limit::new("secret", FixedWindow::per_minute(1));
    let answer = ask(&limited(limit().by(key::header("x-user"))), call("application/grpc")).await;
    assert_eq!(status(&answer), (Some("3"), Some("The request does not say whom to count it for.")));
    assert_eq!(answer.header("grpc-retry-pushback-ms"), None);
    let answer = ask(&limited(limit().by(key::peer_ip())), call("application/grpc")).await;
    assert_eq!(status(&answer), (Some("13"), Some("The server can't tell whom to count the request for.")));
    let service = RateLimitLayer::new([limit()]).store(Broken::AtOnce).layer(Hello::default());
    let answer = ask(&service, call("application/grpc")).await;
    assert_eq!(status(&answer), (Some("14"), Some("Too busy to take the request: try again in a moment.")));
    // As Retry-After says over HTTP.
    assert_eq!(answer.header("grpc-retry-pushback-ms"), Some("1000"));
}

/// A closure words refusals for people; gRPC's clients would not understand them.
#[tokio::test]
async fn no_closure_words_them() {
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip());
    let layer = RateLimitLayer::new([limit]).store(still()).on_reject(|_| Response::new("<p>No.</p>"));
    let service = layer.layer(Hello::default());
    let ask_as = async |content_type: &'static str| {
        let mut request = from("192.0.2.1");
        request.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
        ask(&service, request).await
    };
    assert_eq!(ask_as("application/grpc").await.body, "hello");
    assert_eq!(status(&ask_as("application/grpc").await).0, Some("8"));
    assert_eq!(ask_as("text/html").await.body, "<p>No.</p>");
}
