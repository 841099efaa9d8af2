//! Rejections of gRPC requests, which are detected by their content type.

use std::time::Duration;
use support::faulty_store::{FaultyStore, Mode};

use http::{Method, Request, StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tonic_web::{GrpcWebClientLayer, GrpcWebLayer};
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{FixedWindow, Limit, RateLimit, RateLimitLayer, TokenBucket, key};

use crate::service::{Hello, from};
use crate::store::paused_store;
use support::answer::{Answer, ask};
use support::server::Server;

fn call(content_type: &str) -> Request<()> {
    request(Method::POST, Version::HTTP_2, content_type)
}

fn request(method: Method, version: Version, content_type: &str) -> Request<()> {
    let request = Request::builder().method(method).version(version).uri("/package.Service/Method");
    request.header("content-type", content_type).body(()).unwrap()
}

fn limited(limit: Limit) -> RateLimit<Hello> {
    RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default())
}

async fn refusal(limit: Limit) -> Answer {
    let service = limited(limit);
    assert!(!ask(&service, call("application/grpc")).await.is_refused());
    ask(&service, call("application/grpc")).await
}

fn status(answer: &Answer) -> (Option<&str>, Option<&str>) {
    // Trailers-only responses have the HTTP status 200 and no body.
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body, "");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("retry-after"), None);
    (answer.header("grpc-status"), answer.header("grpc-message"))
}

/// Decodes a rejection as Tonic's clients do.
fn tonic_status(answer: &Answer) -> tonic::Status {
    tonic::Status::from_header_map(&answer.headers).expect("there is a status among the headers")
}

fn once_every(period: Duration) -> Limit {
    Limit::new("one", TokenBucket::new(1, 1, period))
}

#[tokio::test]
async fn a_grpc_rejection_is_trailers_only() {
    let refused = refusal(Limit::new("one", FixedWindow::per_minute(1))).await;
    assert_eq!(status(&refused), (Some("8"), Some("Too many requests: try again in 1 minute.")));
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
        // The longest pushback that the header can express, and one ms more.
        (Duration::from_millis(i32::MAX as u64), "2147483647"),
        (Duration::from_millis(i32::MAX as u64 + 1), "2147483647"),
        (Duration::from_secs(366 * 86_400), "2147483647"),
    ] {
        let layer = RateLimitLayer::builder([once_every(period)]).store(paused_store()).max_retry_after(Duration::MAX);
        let service = layer.build().layer(Hello::default());
        assert!(!ask(&service, call("application/grpc")).await.is_refused());
        let refused = ask(&service, call("application/grpc")).await;
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
async fn the_content_type_of_a_rejection_is_one_of_a_fixed_list() {
    let service = limited(Limit::new("none", FixedWindow::per_minute(1)).cost_by(|_| 2));
    for (asked, answered) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc+proto"),
        ("application/grpc+json", "application/grpc+json"),
        ("Application/gRPC", "application/grpc"),
        ("application/grpc; charset=utf-8", "application/grpc"),
        ("application/grpc+thrift", "application/grpc"),
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web+json", "application/grpc-web+json"),
        ("application/grpc-web-text", "application/grpc-web-text"),
        ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
        ("application/grpc-web-text+thrift;a=b", "application/grpc-web-text"),
    ] {
        let rejected = ask(&service, call(asked)).await;
        assert_eq!(status(&rejected).0, Some("8"), "{asked}");
        assert_eq!(rejected.header("content-type"), Some(answered), "{asked}");
    }
    for content_type in [
        "application/grpcx",
        "application/grpc-",
        "application/grpc-webby",
        "application/grpc+",
        "application/grpc+<script>",
        "application/grpc,text/html",
        "application/json",
        "text/plain; application/grpc",
        "grpc",
        "",
    ] {
        let rejected = ask(&service, call(content_type)).await;
        assert!(rejected.is_refused(), "{content_type}");
        assert_eq!(rejected.header("grpc-status"), None, "{content_type}");
        assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    let mut twice = call("application/grpc");
    twice.headers_mut().append("content-type", http::HeaderValue::from_static("text/html"));
    assert!(ask(&service, twice).await.is_refused());
}

/// Otherwise, a client could turn its rejection into a 200 by a header.
#[tokio::test]
async fn only_genuine_grpc_requests_are_rejected_with_200() {
    let limits = RateLimitLayer::builder([Limit::new("none", FixedWindow::per_minute(1)).cost_by(|_| 2)])
        .store(paused_store())
        .build();
    let refused = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_minute(1))])
        .store(paused_store())
        .always_reject(tower_ratelimit::when::path_prefix("/package.Service"))
        .build();
    for (layer, rejected) in [(limits, StatusCode::TOO_MANY_REQUESTS), (refused, StatusCode::FORBIDDEN)] {
        let service = layer.layer(Hello::default());
        for (method, version, content_type, expected) in [
            (Method::GET, Version::HTTP_11, "application/grpc", rejected),
            (Method::POST, Version::HTTP_11, "application/grpc", rejected),
            (Method::POST, Version::HTTP_10, "application/grpc+proto", rejected),
            (Method::GET, Version::HTTP_2, "application/grpc", rejected),
            (Method::PUT, Version::HTTP_2, "application/grpc", rejected),
            (Method::GET, Version::HTTP_11, "application/grpc-web", rejected),
            (Method::OPTIONS, Version::HTTP_2, "application/grpc-web", rejected),
            (Method::POST, Version::HTTP_2, "application/grpc", StatusCode::OK),
            (Method::POST, Version::HTTP_3, "application/grpc", StatusCode::OK),
            (Method::POST, Version::HTTP_11, "application/grpc-web+proto", StatusCode::OK),
            (Method::POST, Version::HTTP_2, "application/grpc-web-text", StatusCode::OK),
        ] {
            let case = format!("{method} {version:?} {content_type}");
            let answer = ask(&service, request(method, version, content_type)).await;
            assert_eq!(answer.status, expected, "{case}");
            assert_eq!(answer.header("grpc-status").is_some(), expected == StatusCode::OK, "{case}");
        }
    }
}

#[tokio::test]
async fn details_tell_when_to_retry_and_which_limits_are_exceeded() {
    let micros = Duration::from_micros;
    for wait in [micros(1), micros(999_999), micros(1_500_001), Duration::from_secs(24 * 86_400)] {
        let limits = [
            Limit::new("a \"quoted\" \\name", TokenBucket::new(1, 1, wait)).by(key::header("x-api-key")),
            Limit::new("daily", FixedWindow::per_day(10)).by(key::header("x-api-key")),
            Limit::new("trial", FixedWindow::per_day(1)).shadow(),
            Limit::new("short", TokenBucket::new(1, 1, micros(1))).by(key::header("x-api-key")),
        ];
        let service = RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default());
        let with_key = || {
            let mut call = call("application/grpc");
            call.headers_mut().insert("x-api-key", http::HeaderValue::from_static("s3cr3t"));
            call
        };
        ask(&service, with_key()).await;
        let status = tonic_status(&ask(&service, with_key()).await);
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let details = status.check_error_details().expect("the details can be decoded");
        assert_eq!(details.retry_info().and_then(|info| info.retry_delay), Some(wait));
        let violations = &details.quota_failure().expect("limits are exceeded").violations;
        let violations: Vec<_> =
            violations.iter().map(|violation| (violation.subject.as_str(), violation.description.as_str())).collect();
        let expected = [
            ("limit:a \"quoted\" \\name", "Limit \"a \"quoted\" \\name\" exceeded."),
            ("limit:short", "Limit \"short\" exceeded."),
        ];
        assert_eq!(violations, expected);
        assert!(!format!("{details:?}").contains("s3cr3t"));
    }
}

/// The decoded `google.rpc.Status` must agree with the headers.
#[tokio::test]
async fn details_repeat_the_code_and_the_message() {
    use tonic_types::pb;
    let service = limited(Limit::new("one", FixedWindow::per_minute(1)));
    ask(&service, call("application/grpc")).await;
    let rejected = ask(&service, call("application/grpc")).await;
    let details = tonic_status(&rejected).details().to_vec();
    let status = <pb::Status as prost::Message>::decode(&*details).expect("it is a google.rpc.Status");
    assert_eq!((status.code, status.message.as_str()), (8, "Too many requests: try again in 1 minute."));
    assert_eq!(status.details.len(), 2);
}

#[tokio::test]
async fn details_are_left_out_where_there_is_nothing_to_add() {
    // If no wait can help, only the limit is named.
    let service = limited(Limit::new("one", FixedWindow::per_minute(1)).cost_by(|_| 2));
    let details = tonic_status(&ask(&service, call("application/grpc")).await).get_error_details();
    assert!(details.retry_info().is_none());
    assert_eq!(details.quota_failure().map(|failure| failure.violations.len()), Some(1));
    // If the store fails, no limit is exceeded.
    let limit = || Limit::new("one", FixedWindow::per_minute(1));
    let service =
        RateLimitLayer::builder([limit()]).store(FaultyStore::new(Mode::FailsAtOnce)).build().layer(Hello::default());
    let details = tonic_status(&ask(&service, call("application/grpc")).await).get_error_details();
    assert_eq!(details.retry_info().and_then(|info| info.retry_delay), Some(Duration::from_secs(1)));
    assert!(details.quota_failure().is_none());
    let rejected = ask(&limited(limit().by(key::header("x-user"))), call("application/grpc")).await;
    assert_eq!(rejected.header("grpc-status-details-bin"), None);
}

/// Clients limit the size of all headers, usually to 8 KiB.
#[tokio::test]
async fn details_of_many_limits_stay_short() {
    let names: Vec<String> = (0..64).map(|index| format!("{index:064}")).collect();
    let limits = names.iter().map(|name| Limit::new(name, FixedWindow::per_minute(1)));
    let service = RateLimitLayer::builder(limits).store(paused_store()).headers([]).build().layer(Hello::default());
    ask(&service, call("application/grpc")).await;
    let rejected = ask(&service, call("application/grpc")).await;
    let details = rejected.header("grpc-status-details-bin").expect("there are details");
    assert!(details.len() < 4_096, "{} bytes", details.len());
    assert_eq!(tonic_status(&rejected).get_error_details().quota_failure().map(|it| it.violations.len()), Some(16));
}

/// Services without gRPC must never reject with 200.
#[tokio::test]
async fn without_grpc_rejections_every_rejection_has_an_http_status() {
    let limit = || Limit::new("one", FixedWindow::per_minute(1)).cost_by(|_| 2);
    let builder = RateLimitLayer::builder([limit()]).store(paused_store()).grpc_rejections(false);
    let layer = builder.clone().build();
    let problems = builder.problem_json().build();
    let hello = Hello::default();
    for service in [layer.layer(hello.clone()), problems.layer(hello.clone()), layer.cost(1).layer(hello)] {
        for content_type in ["application/grpc", "application/grpc-web+proto"] {
            let rejected = ask(&service, call(content_type)).await;
            assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(rejected.header("grpc-status"), None);
            assert_ne!(rejected.body, "");
        }
    }
}

#[tokio::test]
async fn each_kind_of_rejection_has_its_grpc_code() {
    let limit = || Limit::new("secret", FixedWindow::per_minute(1));
    let answer = ask(&limited(limit().by(key::header("x-user"))), call("application/grpc")).await;
    assert_eq!(status(&answer), (Some("3"), Some("Missing client identifier.")));
    assert_eq!(answer.header("grpc-retry-pushback-ms"), None);
    let answer = ask(&limited(limit().by(key::peer_ip())), call("application/grpc")).await;
    assert_eq!(status(&answer), (Some("13"), Some("Client address unavailable.")));
    let service =
        RateLimitLayer::builder([limit()]).store(FaultyStore::new(Mode::FailsAtOnce)).build().layer(Hello::default());
    let answer = ask(&service, call("application/grpc")).await;
    assert_eq!(status(&answer), (Some("14"), Some("Temporarily unavailable: try again in a moment.")));
    // The same wait as `Retry-After` over HTTP.
    assert_eq!(answer.header("grpc-retry-pushback-ms"), Some("1000"));
}

/// A closure writes rejections for HTTP, which gRPC clients cannot decode.
#[tokio::test]
async fn replacing_responses_does_not_change_grpc_rejections() {
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip());
    let layer = RateLimitLayer::builder([limit])
        .store(paused_store())
        .on_reject(|_| axum::response::Html("<p>No.</p>"))
        .build();
    let service = layer.layer(Hello::default());
    let ask_as = async |content_type: &'static str| {
        let mut request = from("192.0.2.1");
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
        ask(&service, request).await
    };
    assert_eq!(ask_as("application/grpc").await.body, "hello");
    assert_eq!(status(&ask_as("application/grpc").await).0, Some("8"));
    assert_eq!(ask_as("text/html").await.body, "<p>No.</p>");
}

#[tokio::test]
async fn the_route_of_a_grpc_request_without_a_router_is_its_path() {
    let limited = |by: Limit| limited(by.by(key::matched_route()));
    let one = || Limit::new("one", FixedWindow::per_minute(1));
    let to = |mut request: Request<()>, path: &'static str| {
        *request.uri_mut() = http::Uri::from_static(path);
        request
    };
    let grpc = || call("application/grpc+proto");
    let service = limited(one());
    for path in ["/package.Service/One", "/package.Service/Two"] {
        assert_eq!(ask(&service, to(grpc(), path)).await.body, "hello", "{path}");
        assert_eq!(status(&ask(&service, to(grpc(), path)).await).0, Some("8"), "{path}");
    }
    // Other requests share a bucket, whatever path they invent.
    for other in [
        call("application/json"),
        request(Method::POST, Version::HTTP_11, "application/grpc"),
        request(Method::GET, Version::HTTP_2, "application/grpc"),
    ] {
        let service = limited(one());
        assert_eq!(ask(&service, to(other.clone(), "/a")).await.status, StatusCode::OK, "{other:?}");
        assert!(ask(&service, to(other.clone(), "/b")).await.is_refused(), "{other:?}");
    }
    // A route that the router names takes precedence.
    let service = limited(one());
    let mut routed = grpc();
    routed.extensions_mut().insert(key::RoutePattern("/package.Service/{*method}".to_owned()));
    assert_eq!(ask(&service, to(routed.clone(), "/package.Service/One")).await.body, "hello");
    assert_eq!(status(&ask(&service, to(routed, "/package.Service/Two")).await).0, Some("8"));
}

/// The content type does not give a path that no route of Axum's router matches a bucket of its own.
#[tokio::test]
async fn unknown_paths_of_a_router_share_a_bucket_also_with_the_content_type_of_grpc() {
    use axum::Router;
    use axum::body::Body;

    let layer = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_minute(1)).by(key::matched_route())]);
    let app = Router::new().route("/known", axum::routing::get(async || "known"));
    let app = app.layer(layer.store(paused_store()).build());
    let unknown = |path: &'static str| {
        let mut request = call("application/grpc").map(|()| Body::empty());
        *request.uri_mut() = http::Uri::from_static(path);
        request
    };
    assert_eq!(ask(&app, unknown("/a")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(status(&ask(&app, unknown("/b")).await).0, Some("8"));
}

#[tokio::test]
async fn rules_and_explanations_know_the_path_of_a_grpc_request() {
    use tower_ratelimit::RequestHead;
    use tower_ratelimit::rules::{self, Extractors};

    let yaml = "
domain: shop
descriptors:
- { key: path, value: /package.Service/Method, rate_limit: { name: method, unit: year, requests_per_unit: 1 } }
";
    let limits = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    let layer = RateLimitLayer::builder(limits).store(paused_store()).build();
    let explanation = layer.explain(&RequestHead::of(&call("application/grpc"))).await;
    assert!(explanation.limits[0].applied().is_some(), "{explanation}");
    let service = layer.layer(Hello::default());
    assert_eq!(ask(&service, call("application/grpc")).await.remaining(), 0);
    let by_route = RateLimitLayer::new([Limit::new("one", FixedWindow::per_minute(1)).by(key::matched_route())]);
    let explanation = by_route.explain(&RequestHead::of(&call("application/grpc"))).await.to_string();
    assert!(explanation.contains(", by route /package.Service/Method,"), "{explanation}");
}

/// A layer that translates gRPC-Web leaves the version HTTP/1.1.
#[tokio::test]
async fn grpc_web_is_rejected_with_a_grpc_status_in_either_order_of_the_layers() {
    let limits = || {
        let limit = Limit::new("none", FixedWindow::per_minute(1)).cost_by(|_| 2);
        RateLimitLayer::builder([limit]).store(paused_store()).build()
    };
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        for (content_type, expected) in [
            ("application/grpc-web", "application/grpc-web+proto"),
            ("application/grpc-web+proto", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text+proto"),
            ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
        ] {
            let request = || {
                let mut request = request(Method::POST, version, content_type).map(|()| tonic::body::Body::empty());
                request.headers_mut().insert("accept", content_type.parse().unwrap());
                request
            };
            let inside = GrpcWebLayer::new().layer(limits().layer(Hello::default()));
            let rejected = ask(&inside, request()).await;
            assert_eq!(status(&rejected).0, Some("8"), "{version:?} {content_type}");
            assert_eq!(rejected.header("content-type"), Some(expected), "{version:?}");
            let outside = limits().layer(GrpcWebLayer::new().layer(Hello::default()));
            let rejected = ask(&outside, request()).await;
            assert_eq!(status(&rejected).0, Some("8"), "{version:?} {content_type}");
            assert_eq!(rejected.header("content-type"), Some(content_type), "{version:?}");
        }
    }
}

#[tokio::test]
async fn a_client_of_grpc_web_sees_the_status_and_its_details_in_either_order_of_the_layers() {
    let limits = || {
        let limit = Limit::new("one", FixedWindow::per_minute(1));
        RateLimitLayer::builder([limit]).store(paused_store()).build()
    };
    let health = || tonic_health::server::health_reporter().1;
    for server in [
        Server::hyper(GrpcWebLayer::new().layer(limits().layer(health()))).await,
        Server::hyper(limits().layer(GrpcWebLayer::new().layer(health()))).await,
    ] {
        let http_1 = Client::builder(TokioExecutor::new()).build_http();
        let service = ServiceBuilder::new().layer(GrpcWebClientLayer::new()).service(http_1);
        let mut client = HealthClient::with_origin(service, server.uri("").parse().unwrap());
        client.check(HealthCheckRequest::default()).await.expect("the first call is allowed");
        let status = client.check(HealthCheckRequest::default()).await.expect_err("the second call is denied");
        assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
        assert_eq!(status.message(), "Too many requests: try again in 1 minute.");
        let details = status.get_error_details();
        assert_eq!(details.retry_info().and_then(|info| info.retry_delay), Some(Duration::from_secs(60)));
    }
}

#[tokio::test]
async fn the_route_of_a_translated_request_is_its_path() {
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by(key::matched_route());
    let service = GrpcWebLayer::new().layer(limited(limit));
    for path in ["/package.Service/One", "/package.Service/Two"] {
        let call = || {
            let mut call = call("application/grpc-web").map(|()| tonic::body::Body::empty());
            *call.version_mut() = Version::HTTP_11;
            *call.uri_mut() = http::Uri::from_static(path);
            call
        };
        assert_eq!(ask(&service, call()).await.body, "hello", "{path}");
        assert_eq!(status(&ask(&service, call()).await).0, Some("8"), "{path}");
    }
}
