//! Rejections of gRPC requests, which are detected by their content type.

use std::time::Duration;
use support::faulty_store::{FaultyStore, Mode};

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Method, Request, StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::{ErrorDetails, StatusExt, pb};
use tonic_web::{GrpcWebClientLayer, GrpcWebLayer};
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Builder, CallError, HttpOptions, Limit, Limiter, Permit, RequestHead, TokenBucket, key, when};

use crate::service::{Hello, builder, from, grpc, layer, limited, one, per_day, per_minute, serve};
use support::answer::{Answer, ask};
use support::server::Server;

fn request(method: Method, version: Version, content_type: &str) -> Request<()> {
    let request = Request::builder().method(method).version(version).uri("/package.Service/Method");
    request.header("content-type", content_type).body(()).unwrap()
}

fn call(content_type: &str) -> Request<()> {
    request(Method::POST, Version::HTTP_2, content_type)
}

fn to(path: &'static str, mut request: Request<()>) -> Request<()> {
    *request.uri_mut() = http::Uri::from_static(path);
    request
}

/// Returns a limit that denies each request.
fn none() -> Limit {
    per_minute("none", 1).cost_by(|_| 2)
}

/// Returns the gRPC status and its message.
fn status(answer: &Answer) -> (Option<&str>, Option<&str>) {
    // Trailers-only responses have the HTTP status 200 and no body.
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, ""));
    assert_eq!((answer.header("cache-control"), answer.header("retry-after")), (Some("no-store"), None));
    (answer.header("grpc-status"), answer.header("grpc-message"))
}

/// Decodes a rejection as Tonic's clients do.
fn tonic_status(answer: &Answer) -> tonic::Status {
    tonic::Status::from_header_map(&answer.headers).expect("there is a status among the headers")
}

fn retry_delay(details: &ErrorDetails) -> Option<Duration> {
    details.retry_info().and_then(|info| info.retry_delay)
}

#[tokio::test]
async fn each_kind_of_rejection_is_trailers_only_with_its_grpc_code() {
    let minute = "Too many requests: try again in 1 minute.";
    let never = "Too much for one request: it costs more than its limit allows.";
    let later = "Temporarily unavailable: try again in a moment.";
    for (builder, code, message, pushback) in [
        (builder(one()), "8", minute, Some("60000")),
        // No wait can help, so clients do not retry.
        (builder(none()), "8", never, Some("-1")),
        (builder(one().by(key::header("x-user"))), "3", "Missing client identifier.", None),
        (builder(one().by(key::peer_ip())), "13", "Client address unavailable.", None),
        // The same wait as `Retry-After` over HTTP.
        (builder(one()).store(FaultyStore::new(Mode::FailsAtOnce)), "14", later, Some("1000")),
    ] {
        let service = serve(builder);
        ask(&service, grpc()).await;
        let answer = ask(&service, grpc()).await;
        assert_eq!(status(&answer), (Some(code), Some(message)));
        assert_eq!(answer.header("grpc-retry-pushback-ms"), pushback, "{message}");
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert_eq!(answer.header("ratelimit").is_some(), code == "8");
    }
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
        let limit = Limit::new("one", TokenBucket::new(1, 1, period));
        let service = serve(builder(limit).max_retry_after(Duration::MAX));
        assert!(!ask(&service, grpc()).await.is_denied());
        assert_eq!(ask(&service, grpc()).await.header("grpc-retry-pushback-ms"), Some(pushback), "{period:?}");
    }
}

#[tokio::test]
async fn the_content_type_of_a_rejection_is_one_of_a_fixed_list() {
    let service = limited(none());
    for (requested, returned) in [
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
        let rejected = ask(&service, call(requested)).await;
        assert_eq!((status(&rejected).0, rejected.header("content-type")), (Some("8"), Some(returned)), "{requested}");
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
        let headers = (rejected.header("grpc-status"), rejected.header("content-type"));
        assert!(rejected.is_denied(), "{content_type}");
        assert_eq!(headers, (None, Some("text/plain; charset=utf-8")), "{content_type}");
    }
    let mut twice = grpc();
    twice.headers_mut().append("content-type", HeaderValue::from_static("text/html"));
    assert!(ask(&service, twice).await.is_denied());
}

/// Otherwise, a client could turn its rejection into a 200 by a header.
#[tokio::test]
async fn only_genuine_grpc_requests_are_rejected_with_200() {
    let listed = builder(one()).always_reject(when::path_prefix("/package.Service"));
    for (builder, rejected) in [(builder(none()), 429), (listed, 403)] {
        let service = serve(builder);
        for (method, version, content_type, is_grpc) in [
            (Method::GET, Version::HTTP_11, "application/grpc", false),
            (Method::POST, Version::HTTP_11, "application/grpc", false),
            (Method::POST, Version::HTTP_10, "application/grpc+proto", false),
            (Method::GET, Version::HTTP_2, "application/grpc", false),
            (Method::PUT, Version::HTTP_2, "application/grpc", false),
            (Method::GET, Version::HTTP_11, "application/grpc-web", false),
            (Method::OPTIONS, Version::HTTP_2, "application/grpc-web", false),
            (Method::POST, Version::HTTP_2, "application/grpc", true),
            (Method::POST, Version::HTTP_3, "application/grpc", true),
            (Method::POST, Version::HTTP_11, "application/grpc-web+proto", true),
            (Method::POST, Version::HTTP_2, "application/grpc-web-text", true),
        ] {
            let case = format!("{method} {version:?} {content_type}");
            let answer = ask(&service, request(method, version, content_type)).await;
            let expected = if is_grpc { 200 } else { rejected };
            assert_eq!((answer.status.as_u16(), answer.header("grpc-status").is_some()), (expected, is_grpc), "{case}");
        }
    }
}

#[tokio::test]
async fn details_contain_the_wait_and_the_limits_that_are_exceeded() {
    let micros = Duration::from_micros;
    for wait in [micros(1), micros(999_999), micros(1_500_001), Duration::from_secs(24 * 86_400)] {
        let limits = [
            Limit::new("a \"quoted\" \\name", TokenBucket::new(1, 1, wait)).by(key::header("x-api-key")),
            per_day("daily", 10).by(key::header("x-api-key")),
            per_day("trial", 1).shadow(),
            Limit::new("short", TokenBucket::new(1, 1, micros(1))).by(key::header("x-api-key")),
        ];
        let service = limited(limits);
        let mut request = grpc();
        request.headers_mut().insert("x-api-key", HeaderValue::from_static("s3cr3t"));
        ask(&service, request.clone()).await;
        let rejected = ask(&service, request).await;
        let (status, message) = (tonic_status(&rejected), status(&rejected).1);
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let details = status.check_error_details().expect("the details can be decoded");
        assert_eq!(retry_delay(&details), Some(wait));
        let violations = &details.quota_failure().expect("limits are exceeded").violations;
        let violations: Vec<_> = violations.iter().map(|v| (v.subject.as_str(), v.description.as_str())).collect();
        let expected = [
            ("limit:a \"quoted\" \\name", "Limit \"a \"quoted\" \\name\" exceeded."),
            ("limit:short", "Limit \"short\" exceeded."),
        ];
        assert_eq!(violations, expected);
        assert!(!format!("{details:?}").contains("s3cr3t"));
        // The decoded `google.rpc.Status` agrees with the headers.
        let decoded = <pb::Status as prost::Message>::decode(status.details()).expect("it is a google.rpc.Status");
        assert_eq!((decoded.code, Some(decoded.message.as_str()), decoded.details.len()), (8, message, 2));
    }
}

#[tokio::test]
async fn details_are_left_out_where_there_is_nothing_to_add() {
    // If no wait can help, only the limit is named. If the store fails, no limit is exceeded.
    let failing = builder(one()).store(FaultyStore::new(Mode::FailsAtOnce));
    for (builder, delay, violations) in
        [(builder(none()), None, Some(1)), (failing, Some(Duration::from_secs(1)), None)]
    {
        let details = tonic_status(&ask(&serve(builder), grpc()).await).get_error_details();
        assert_eq!(retry_delay(&details), delay);
        assert_eq!(details.quota_failure().map(|failure| failure.violations.len()), violations);
    }
    let rejected = ask(&limited(one().by(key::header("x-user"))), grpc()).await;
    assert_eq!(rejected.header("grpc-status-details-bin"), None);
}

/// A handler of Tonic returns errors as statuses.
#[tokio::test]
async fn errors_convert_to_the_status_of_a_layer() {
    let layer_status = async |builder: Builder<HttpOptions>| tonic_status(&ask(&serve(builder), grpc()).await);
    let same = |status: tonic::Status, expected: tonic::Status| {
        let seen = |status: &tonic::Status| {
            let pushback = status.metadata().get("grpc-retry-pushback-ms").cloned();
            let delay = retry_delay(&status.get_error_details());
            (status.code(), status.message().to_owned(), pushback, delay)
        };
        assert_eq!(seen(&status), seen(&expected));
        let others: Vec<_> = status.metadata().keys().collect();
        assert!(others.len() <= 1, "{others:?}");
    };

    let limiter = Limiter::new(Limit::new("half", TokenBucket::new(1, 1, Duration::from_secs(7_200))));
    let denied = async || limiter.try_acquire("key", 2).await.unwrap_err();
    same(denied().await.into(), layer_status(builder(none())).await);
    let failing = || FaultyStore::new(Mode::FailsAtOnce);
    let unavailable = layer_status(builder(one()).store(failing())).await;
    let failed = Limiter::builder(per_day("one", 1)).store(failing()).build();
    same(failed.try_acquire("key", 1).await.unwrap_err().into(), unavailable.clone());
    same(failed.acquire("key", 1).await.unwrap_err().into(), unavailable.clone());
    same(CallError::<tonic::Status>::Limited(failed.try_acquire("key", 1).await.unwrap_err()).into(), unavailable);
    same(CallError::Service(tonic::Status::not_found("no")).into(), tonic::Status::not_found("no"));
    let invalid = limiter.acquire_charges(&[]).await.unwrap_err();
    same(invalid.into(), tonic::Status::internal("Internal server error."));

    // The wait of a denial is in the status.
    let _ = limiter.try_acquire("key", 1).await.unwrap();
    let status = tonic::Status::from(limiter.try_acquire("key", 1).await.unwrap_err());
    let wait = retry_delay(&status.get_error_details()).unwrap();
    assert!(wait > Duration::from_secs(7_000) && wait <= Duration::from_secs(7_200), "{wait:?}");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap().len(), "7199999".len());
}

/// A permit's error has the details of the request's limits.
#[tokio::test]
async fn a_denied_charge_converts_to_the_status_of_its_layer() {
    let service = tower::service_fn(async |request: Request<()>| {
        let error = Permit::of(request.extensions()).unwrap().try_charge(5).await.unwrap_err();
        Ok::<_, std::convert::Infallible>(tonic::Status::from(error).into_http::<Body>())
    });
    let rejected = ask(&builder(per_day("daily", 3)).permits().build().layer(service), grpc()).await;
    let details = tonic_status(&rejected).get_error_details();
    assert_eq!(details.quota_failure().map(|failure| failure.violations[0].subject.as_str()), Some("limit:daily"));
    assert_eq!(tonic_status(&rejected).code(), tonic::Code::ResourceExhausted);

    // A request that is not gRPC has a response without a status.
    let rejected = ask(&builder(per_day("daily", 3)).permits().build().layer(service), Request::new(())).await;
    let status = tonic_status(&rejected);
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.message().starts_with("Too much for one request"), "{status:?}");
}

/// Clients limit the size of all headers, usually to 8 KiB.
#[tokio::test]
async fn details_of_many_limits_stay_short() {
    let limits: Vec<_> = (0..64).map(|index| per_minute(format!("{index:064}"), 1)).collect();
    let service = serve(builder(limits).headers([]));
    ask(&service, grpc()).await;
    let rejected = ask(&service, grpc()).await;
    let details = rejected.header("grpc-status-details-bin").expect("there are details");
    assert!(details.len() < 4_096, "{} bytes", details.len());
    assert_eq!(tonic_status(&rejected).get_error_details().quota_failure().map(|it| it.violations.len()), Some(16));
}

/// Services without gRPC must never reject with 200.
#[tokio::test]
async fn without_grpc_rejections_every_rejection_has_an_http_status() {
    let limits = builder(none()).grpc_rejections(false);
    let route = limits.clone().build().cost(1);
    for layer in [limits.clone().build(), limits.problem_json().build(), route] {
        let service = layer.layer(Hello::default());
        for content_type in ["application/grpc", "application/grpc-web+proto"] {
            let rejected = ask(&service, call(content_type)).await;
            assert_eq!((rejected.is_denied(), rejected.header("grpc-status")), (true, None));
            assert_ne!(rejected.body, "");
        }
    }
}

/// A closure writes rejections for HTTP, which gRPC clients cannot decode.
#[tokio::test]
async fn replacing_responses_does_not_change_grpc_rejections() {
    let service = serve(builder(one().by(key::peer_ip())).on_reject(|_| axum::response::Html("<p>No.</p>")));
    let ask_as = async |content_type: &str| {
        let mut request = call(content_type);
        *request.extensions_mut() = from("192.0.2.1").extensions().clone();
        ask(&service, request).await
    };
    assert_eq!(ask_as("application/grpc").await.body, "hello");
    assert_eq!(status(&ask_as("application/grpc").await).0, Some("8"));
    assert_eq!(ask_as("text/html").await.body, "<p>No.</p>");
}

#[tokio::test]
async fn the_route_of_a_grpc_request_without_a_router_is_its_path() {
    let by_route = || one().by(key::matched_route());
    let service = limited(by_route());
    for path in ["/package.Service/One", "/package.Service/Two"] {
        assert_eq!(ask(&service, to(path, grpc())).await.body, "hello", "{path}");
        assert_eq!(status(&ask(&service, to(path, grpc())).await).0, Some("8"), "{path}");
    }
    // Other requests share a bucket, whatever path they invent.
    for other in [
        call("application/json"),
        request(Method::POST, Version::HTTP_11, "application/grpc"),
        request(Method::GET, Version::HTTP_2, "application/grpc"),
    ] {
        let service = limited(by_route());
        assert_eq!(ask(&service, to("/a", other.clone())).await.status, 200, "{other:?}");
        assert!(ask(&service, to("/b", other.clone())).await.is_denied(), "{other:?}");
    }
    // A route that the router names takes precedence.
    let service = limited(by_route());
    let mut routed = grpc();
    routed.extensions_mut().insert(key::RoutePattern("/package.Service/{*method}".to_owned()));
    assert_eq!(ask(&service, to("/package.Service/One", routed.clone())).await.body, "hello");
    assert_eq!(status(&ask(&service, to("/package.Service/Two", routed)).await).0, Some("8"));
}

/// The content type does not give a path that no route of Axum's router matches a bucket of its own.
#[tokio::test]
async fn unknown_paths_of_a_router_share_a_bucket_also_with_the_content_type_of_grpc() {
    let app = Router::new().route("/known", axum::routing::get(async || "known"));
    let app = app.layer(layer(one().by(key::matched_route())));
    let unknown = |path| to(path, grpc()).map(|()| Body::empty());
    assert_eq!(ask(&app, unknown("/a")).await.status, 404);
    assert_eq!(status(&ask(&app, unknown("/b")).await).0, Some("8"));
}

#[tokio::test]
async fn rules_and_explanations_know_the_path_of_a_grpc_request() {
    let yaml = "
domain: shop
descriptors:
- { key: path, value: /package.Service/Method, rate_limit: { name: method, unit: year, requests_per_unit: 1 } }
";
    let rules = layer(rules::from_yaml(yaml, &Extractors::new()).unwrap());
    let explanation = rules.explain(&RequestHead::of(&grpc())).await;
    assert!(explanation.limits[0].applied().is_some(), "{explanation}");
    assert_eq!(ask(&rules.layer(Hello::default()), grpc()).await.remaining(), 0);
    let explanation = layer(one().by(key::matched_route())).explain(&RequestHead::of(&grpc())).await.to_string();
    assert!(explanation.contains(", by route /package.Service/Method,"), "{explanation}");
}

fn web_call(version: Version, content_type: &str) -> Request<tonic::body::Body> {
    let mut request = request(Method::POST, version, content_type).map(|()| tonic::body::Body::empty());
    request.headers_mut().insert("accept", content_type.parse().unwrap());
    request
}

/// A layer that translates gRPC-Web leaves the version HTTP/1.1.
#[tokio::test]
async fn grpc_web_is_rejected_with_a_grpc_status_in_either_order_of_the_layers() {
    let inside = GrpcWebLayer::new().layer(limited(none()));
    let outside = layer(none()).layer(GrpcWebLayer::new().layer(Hello::default()));
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        for (content_type, translated) in [
            ("application/grpc-web", "application/grpc-web+proto"),
            ("application/grpc-web+proto", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text+proto"),
            ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
        ] {
            let rejections = [
                (ask(&inside, web_call(version, content_type)).await, translated),
                (ask(&outside, web_call(version, content_type)).await, content_type),
            ];
            for (rejected, expected) in rejections {
                let found = (status(&rejected).0, rejected.header("content-type"));
                assert_eq!(found, (Some("8"), Some(expected)), "{version:?} {content_type}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_of_grpc_web_sees_the_status_and_its_details_in_either_order_of_the_layers() {
    let limits = || layer(one());
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
        assert_eq!(retry_delay(&status.get_error_details()), Some(Duration::from_secs(60)));
    }
}

#[tokio::test]
async fn the_route_of_a_translated_request_is_its_path() {
    let service = GrpcWebLayer::new().layer(limited(one().by(key::matched_route())));
    for path in ["/package.Service/One", "/package.Service/Two"] {
        let call = || {
            let mut call = web_call(Version::HTTP_11, "application/grpc-web");
            *call.uri_mut() = http::Uri::from_static(path);
            call
        };
        assert_eq!(ask(&service, call()).await.body, "hello", "{path}");
        assert_eq!(status(&ask(&service, call()).await).0, Some("8"), "{path}");
    }
}
