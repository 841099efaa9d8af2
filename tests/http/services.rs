//! The layer in every position: routers, routes, servers and clients.

use std::time::Duration;

use axum::Router;
use axum::routing::{MethodRouter, get};
use http::Request;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt};
use tower_ratelimit::{RateLimitLayer, key};

use crate::service::{Hello, layer, one, per_minute};
use support::answer::Answer;
use support::server::Server;

/// Returns a limit of two requests per minute for each peer, at the start of a minute.
fn two() -> RateLimitLayer {
    layer(per_minute("two", 2).by(key::peer_ip()))
}

async fn hello() -> &'static str {
    "hello"
}

/// Checks three responses, of which the last is a denial.
fn check(answers: [Answer; 3]) {
    for (answer, (status, left, wait, cache)) in
        answers.into_iter().zip([(200, 1, None, None), (200, 0, None, None), (429, 0, Some("60"), Some("no-store"))])
    {
        assert_eq!((answer.status.as_u16(), answer.body == "hello"), (status, status == 200));
        assert_eq!(answer.all("ratelimit-policy"), ["\"two\";q=2;w=60"]);
        assert_eq!(answer.all("ratelimit"), [format!("\"two\";r={left};t=60")]);
        assert_eq!((answer.header("retry-after"), answer.header("cache-control")), (wait, cache));
    }
}

/// Checks that a server allows two requests, and the statuses of others.
async fn allows_two(server: Server, path: &str, others: &[(&str, u16)]) {
    check([server.get(path).await, server.get(path).await, server.get(path).await]);
    for (line, status) in others {
        let (method, path) = line.split_once(' ').expect("a method and a path");
        let request = Request::builder().method(method).uri(server.uri(path)).body(Full::default()).unwrap();
        let answer = server.send(request).await;
        assert_eq!(answer.status, *status, "{line}");
        assert_eq!(answer.header("ratelimit").is_some(), *status == 429, "{line}");
    }
}

#[tokio::test]
async fn on_routers_and_routes_of_axum() {
    let (root, free) = (|| Router::new().route("/", get(hello)), |app: Router| app.route("/free", get(hello)));
    let route = |route: MethodRouter| Router::new().route("/", route);
    // Requests that match no route are limited, too.
    allows_two(Server::axum(root().layer(two())).await, "/", &[("GET /nowhere", 429)]).await;
    let unlimited = [("GET /nowhere", 404), ("GET /free", 200), ("POST /", 405)];
    allows_two(Server::axum(free(root().route_layer(two()))).await, "/", &unlimited[..2]).await;
    allows_two(Server::axum(free(route(get(hello).route_layer(two())))).await, "/", &unlimited).await;
    // Methods that the route does not have are limited, too.
    allows_two(Server::axum(route(get(hello).layer(two()))).await, "/", &[("POST /", 429)]).await;
    let nested = Router::new().nest("/api", root().layer(two()));
    allows_two(Server::axum(free(nested)).await, "/api", &unlimited[..2]).await;
    // With bodies that are kept, nothing is boxed for the layer.
    allows_two(Server::axum(root().layer(two().keep_body())).await, "/", &[("GET /nowhere", 429)]).await;
    let kept = free(route(get(hello).route_layer(two().keep_body())));
    allows_two(Server::axum(kept).await, "/", &unlimited[1..2]).await;
    // Outside the router, only the server provides the peer's address.
    allows_two(Server::hyper(two().layer(root())).await, "/", &[]).await;
}

#[tokio::test]
async fn in_hyper_and_in_a_client() {
    let inner = Hello::default();
    allows_two(Server::hyper(two().layer(inner.clone())).await, "/", &[]).await;
    assert_eq!(inner.calls(), 2, "a rejected request is not forwarded");

    let inner = Hello::default();
    let server = Server::hyper(inner.clone()).await;
    let client = layer(per_minute("two", 2)).layer(Client::builder(TokioExecutor::new()).build_http());
    let ask = async || {
        let request = Request::get(server.uri("/")).body(Full::<bytes::Bytes>::default()).unwrap();
        Answer::of(client.clone().oneshot(request).await.unwrap()).await
    };
    check([ask().await, ask().await, ask().await]);
    assert_eq!(inner.calls(), 2, "a rejected request is never sent");
}

/// Serves Tonic's health service behind a layer.
async fn tonic(layer: RateLimitLayer) -> (Server, HealthClient<Channel>) {
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::run(async |listener| {
        let server = tonic::transport::Server::builder().layer(layer).add_service(health);
        server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("Tonic serves");
    })
    .await;
    let channel = Channel::from_shared(server.uri("")).unwrap().connect().await.unwrap();
    (server, HealthClient::new(channel))
}

/// Tonic's extension provides the peer. Without it, the calls would end with `INTERNAL`.
#[tokio::test]
async fn in_tonic() {
    let (_server, mut client) = tonic(two()).await;
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
    let (_server, mut client) = tonic(layer(one().by(key::matched_route()))).await;
    let request = HealthCheckRequest::default;
    assert!(client.check(request()).await.is_ok());
    assert!(client.watch(request()).await.is_ok(), "another method has another bucket");
    assert_eq!(client.check(request()).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert_eq!(client.watch(request()).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
}
