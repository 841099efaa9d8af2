//! The layer in every position: routers, routes, servers and clients.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower::{ServiceBuilder, ServiceExt};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};

use crate::service::Hello;
use crate::store::paused_store;
use support::answer::{Answer, Member};
use support::server::Server;

/// Returns a limit of two requests per minute for each peer, at the start of a minute.
fn two() -> RateLimitLayer {
    RateLimitLayer::builder([Limit::new("two", FixedWindow::per_minute(2)).by(key::peer_ip())])
        .store(paused_store())
        .build()
}

async fn hello() -> &'static str {
    "hello"
}

fn is_allowed(answer: &Answer, left: i64) {
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body, "hello");
    assert_eq!(answer.policies(), [Member::new("two", &[("q", 2), ("w", 60)])]);
    assert_eq!(answer.standings(), [Member::new("two", &[("r", left), ("t", 60)])]);
    assert_eq!(answer.header("retry-after"), None);
}

fn is_refused(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.standings(), [Member::new("two", &[("r", 0), ("t", 60)])]);
    assert_eq!(answer.header("retry-after"), Some("60"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

async fn allows_two(server: &Server, path: &str) {
    is_allowed(&server.get(path).await, 1);
    is_allowed(&server.get(path).await, 0);
    is_refused(&server.get(path).await);
}

#[tokio::test]
async fn on_an_axum_router() {
    let server = Server::axum(Router::new().route("/", get(hello)).layer(two())).await;
    allows_two(&server, "/").await;
    // Requests that match no route are limited, too.
    is_refused(&server.get("/nowhere").await);
}

#[tokio::test]
async fn on_the_routes_of_an_axum_router() {
    let app = Router::new().route("/", get(hello)).route_layer(two());
    let server = Server::axum(app.route("/free", get(hello))).await;
    assert_eq!(server.get("/nowhere").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/free").await.header("ratelimit"), None);
    allows_two(&server, "/").await;
    assert_eq!(server.get("/nowhere").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/free").await.body, "hello");
}

/// Here, nothing is boxed for the layer.
#[tokio::test]
async fn with_bodies_that_are_kept() {
    let server = Server::axum(Router::new().route("/", get(hello)).layer(two().keep_body())).await;
    allows_two(&server, "/").await;
    is_refused(&server.get("/nowhere").await);
    let app = Router::new().route("/", get(hello).route_layer(two().keep_body())).route("/free", get(hello));
    let server = Server::axum(app).await;
    allows_two(&server, "/").await;
    assert_eq!(server.get("/free").await.header("ratelimit"), None);
}

#[tokio::test]
async fn on_one_route() {
    let app = Router::new().route("/", get(hello).route_layer(two())).route("/free", get(hello));
    let server = Server::axum(app).await;
    allows_two(&server, "/").await;
    assert_eq!(server.get("/free").await.header("ratelimit"), None);
    let post = Request::post(server.uri("/")).body(Full::default()).unwrap();
    assert_eq!(server.send(post).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn around_one_route() {
    let server = Server::axum(Router::new().route("/", get(hello).layer(two()))).await;
    allows_two(&server, "/").await;
    // Methods that the route does not have are limited, too.
    let post = Request::post(server.uri("/")).body(Full::default()).unwrap();
    is_refused(&server.send(post).await);
}

#[tokio::test]
async fn on_a_nested_router() {
    let inner = Router::new().route("/hello", get(hello)).layer(two());
    let server = Server::axum(Router::new().nest("/api", inner).route("/free", get(hello))).await;
    allows_two(&server, "/api/hello").await;
    assert_eq!(server.get("/free").await.header("ratelimit"), None);
}

#[tokio::test]
async fn around_a_whole_router() {
    let app = Router::new().route("/", get(hello));
    // Outside the router, only the server provides the peer's address.
    let service = ServiceBuilder::new().layer(two()).service(app);
    let server = Server::hyper(service).await;
    allows_two(&server, "/").await;
}

#[tokio::test]
async fn in_hyper() {
    let inner = Hello::default();
    let server = Server::hyper(ServiceBuilder::new().layer(two()).service(inner.clone())).await;
    allows_two(&server, "/").await;
    assert_eq!(inner.calls(), 2, "a rejected request is not forwarded");
}

#[tokio::test]
async fn in_a_client() {
    let calls = Hello::default();
    let server = Server::hyper(calls.clone()).await;
    let limits = RateLimitLayer::builder([Limit::new("two", FixedWindow::per_minute(2))]).store(paused_store()).build();
    let client = ServiceBuilder::new().layer(limits).service(Client::builder(TokioExecutor::new()).build_http());
    let ask = async || {
        let request = Request::get(server.uri("/")).body(Full::<bytes::Bytes>::default()).unwrap();
        Answer::of(client.clone().oneshot(request).await.unwrap()).await
    };
    is_allowed(&ask().await, 1);
    is_allowed(&ask().await, 0);
    is_refused(&ask().await);
    assert_eq!(calls.calls(), 2, "a refused request is never sent");
}

/// Tonic's extension provides the peer. Without it, the calls would end with `INTERNAL`.
#[tokio::test]
async fn in_tonic() {
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::run(async |listener| {
        let server = tonic::transport::Server::builder().layer(two()).add_service(health);
        server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("Tonic serves");
    })
    .await;
    let channel = Channel::from_shared(server.uri("")).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut check = async || client.check(HealthCheckRequest::default()).await;

    for left in ["1", "0"] {
        let answer = check().await.expect("the server is healthy");
        assert_eq!(answer.metadata().get("ratelimit").unwrap(), format!("\"two\";r={left};t=60").as_str());
    }
    let status = check().await.expect_err("it is the third");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert_eq!(status.message(), "Too many requests: try again in 1 minute.");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "60000");
    let details = status.get_error_details();
    assert_eq!(details.retry_info().and_then(|info| info.retry_delay), Some(Duration::from_secs(60)));
    assert_eq!(details.quota_failure().map(|failure| failure.violations[0].subject.as_str()), Some("limit:two"));
    assert_eq!(status.metadata().get("ratelimit").unwrap(), "\"two\";r=0;t=60");
}

#[tokio::test]
async fn in_tonic_each_method_has_a_route_of_its_own() {
    let (_, health) = tonic_health::server::health_reporter();
    let by_route = Limit::new("one", FixedWindow::per_minute(1)).by(key::matched_route());
    let layer = RateLimitLayer::builder([by_route]).store(paused_store()).build();
    let server = Server::run(async |listener| {
        let server = tonic::transport::Server::builder().layer(layer).add_service(health);
        server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("Tonic serves");
    })
    .await;
    let mut client = HealthClient::new(Channel::from_shared(server.uri("")).unwrap().connect().await.unwrap());
    let request = HealthCheckRequest::default;
    assert!(client.check(request()).await.is_ok());
    assert!(client.watch(request()).await.is_ok(), "another method has another bucket");
    assert_eq!(client.check(request()).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert_eq!(client.watch(request()).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
}
