//! Handlers that reject a denied charge with the response of the layer.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, Response, StatusCode, Version};
use tower::{Layer, service_fn};
use tower_ratelimit::{Builder, ChargeError, HttpOptions, Permit, RateLimitLayer, Reason, Rejection, key};

use crate::service::per_day;
use support::answer::{Answer, ask};
use support::store_fixture::StoreFixture;

/// A handler that charges ten tokens for each request, of which the layer has charged one.
async fn handler(permit: Permit) -> Result<&'static str, ChargeError> {
    let decision = permit.try_charge(9).await?;
    assert!(decision.is_allowed());
    Ok("done")
}

fn builder() -> Builder<HttpOptions> {
    let limit = per_day("rows", 15).by(key::header("x-api-key"));
    RateLimitLayer::builder(limit).permits()
}

fn request() -> Request<Body> {
    Request::post("/").header("x-api-key", "ann").header("accept-language", "de").body(Body::empty()).unwrap()
}

/// Returns the response to the second request, whose charge is denied.
async fn denied(builder: Builder<HttpOptions>, request: impl Fn() -> Request<Body>) -> Answer {
    let app: Router = Router::new().route("/", post(handler)).layer(builder.build());
    let first = ask(&app, request()).await;
    assert_eq!((first.status, first.body.as_str()), (StatusCode::OK, "done"));
    ask(&app, request()).await
}

#[tokio::test]
async fn a_denied_charge_has_the_limiters_response() {
    let answer = denied(builder(), request).await;
    assert_eq!(answer.status, 429);
    assert!(answer.body.starts_with("Too many requests: try again in "), "{}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert!(answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().unwrap() > 0));
    // The layer adds the headers once, and the denied charge has taken nothing.
    assert_eq!(answer.remaining(), 4);
    assert_eq!(answer.all("ratelimit-policy").len(), 1);
    let answer = denied(builder().problem_json(), request).await;
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert!(answer.body.contains(r#""violated-policies":["rows"]"#), "{}", answer.body);
}

#[tokio::test]
async fn a_denied_charge_in_a_nested_router_has_the_path_that_the_client_sent() {
    let reject = |rejection: &Rejection<'_>| (rejection.status(), rejection.head.path().to_owned());
    let app: Router = Router::new().route("/", post(handler)).layer(builder().on_reject(reject).build());
    let app = Router::new().nest("/api", app);
    let nested = || {
        let mut nested = request();
        *nested.uri_mut() = "/api".parse().unwrap();
        nested
    };
    assert_eq!(ask(&app, nested()).await.status, 200);
    assert_eq!(ask(&app, nested()).await.body, "/api");
}

#[tokio::test]
async fn a_charge_above_the_capacity_is_denied_without_a_time_to_retry() {
    for more in [15, 16, u64::MAX] {
        let handler = async move |permit: Permit| {
            let denied = permit.try_charge(more).await.expect_err("a denial");
            let decision = denied.decision().expect("a decision");
            assert_eq!((decision.is_allowed(), decision.retry_after().is_none()), (false, more > 15), "{more}");
            denied
        };
        let app: Router = Router::new().route("/", post(handler)).layer(builder().build());
        let answer = ask(&app, request()).await;
        assert_eq!(answer.status, 429, "{more}");
        // The whole capacity is available in the next window.
        assert_eq!(answer.header("retry-after").is_none(), more > 15, "{more}");
        assert_eq!(answer.remaining(), 14, "{more}");
    }
}

#[tokio::test]
async fn a_custom_rejection_of_a_charge_sees_the_requests_head() {
    let layer = builder().on_reject(|rejection| {
        assert!(matches!(rejection.reason, Reason::Limited { retry_after: Some(_) }));
        let language = rejection.head.header("accept-language").unwrap_or("none").to_owned();
        let text = format!("{} {} {language}", rejection.head.method, rejection.head.uri);
        Response::builder().status(StatusCode::PAYMENT_REQUIRED).body(Body::from(text)).unwrap()
    });
    let answer = denied(layer, request).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::PAYMENT_REQUIRED, "POST / de"));
}

#[tokio::test]
async fn a_denied_charge_of_a_grpc_request_has_a_grpc_status() {
    let grpc = || {
        let mut request = request();
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        request
    };
    let answer = denied(builder(), grpc).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, Some("8")));
    let answer = denied(builder().grpc_rejections(false), grpc).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::TOO_MANY_REQUESTS, None));
}

#[tokio::test]
async fn a_denial_of_one_limits_permit_names_that_limit_alone() {
    let limits = ["a", "b"].map(|name| per_day(name, 1).by(key::header("x-api-key")));
    let layer = RateLimitLayer::builder(limits).permits().problem_json().build();
    let service = layer.layer(service_fn(async |request: Request<Body>| {
        let permit = Permit::of(request.extensions()).expect("a permit");
        let permit = permit.limit("b").expect("the limit applies");
        let denied = permit.charge(1).await.expect("a decision");
        Ok::<_, Infallible>(permit.reject(&denied).map(Body::from))
    }));
    let answer = ask(&service, request()).await;
    assert_eq!(answer.status, 429);
    assert!(answer.body.contains(r#""violated-policies":["b"]"#), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_without_a_store_is_rejected_with_503() {
    let mut fixture = StoreFixture::on_redis().await;
    let limit = per_day("rows", 15).by(key::header("x-api-key"));
    let layer = fixture.builder(limit).permits().build();
    let server = Arc::new(Mutex::new(fixture.server.take().expect("a server")));
    let failing = async move |permit: Permit| {
        server.lock().unwrap().stop();
        handler(permit).await
    };
    let app: Router = Router::new().route("/", post(failing)).layer(layer);
    let answer = ask(&app, request()).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[test]
fn a_charge_error_is_an_error_that_can_be_sent() {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_error::<ChargeError>();
}
