//! Bodies of servers: events of Axum, Hyper over HTTP/1 and HTTP/2, and streams of Tonic.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use support::frames::{End, Frames};
use support::server::Server;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, service_fn};
use tower_ratelimit::RateLimitLayer;

use super::{Log, used};
use crate::service::layer;

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

/// Requests a path, and returns the response once its head has arrived, with the client, which keeps the connection.
async fn request(
    server: &Server,
    version: Version,
    method: Method,
    path: &str,
) -> Result<(Response<Incoming>, HttpClient), Error> {
    let client = Client::builder(TokioExecutor::new()).http2_only(version == Version::HTTP_2).build_http();
    let request = Request::builder().method(method).uri(server.uri(path)).header("te", "trailers");
    let response = client.request(request.body(Empty::new()).unwrap()).await?;
    Ok((response, client))
}

const BOTH: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

/// Returns a server, its limit's log and the layer. `/3` is a stream of three events, and `/endless` never ends.
async fn events() -> (Server, Log, RateLimitLayer) {
    let log = Log::default();
    let limits = layer([log.limit()]);
    let event = |()| Ok::<_, Infallible>(Event::default().data("word"));
    let three = async move || Sse::new(stream::iter([(); 3]).map(event));
    let endless = async move || {
        let ticks = stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some(((), ()))
        });
        Sse::new(ticks.map(event))
    };
    let app = Router::new().route("/3", get(three)).route("/endless", get(endless)).layer(limits.clone());
    (Server::axum(app).await, log, limits)
}

#[tokio::test]
async fn events_of_axum_are_settled() {
    let (server, log, limits) = events().await;
    for version in BOTH {
        let (response, _client) = request(&server, version, Method::GET, "/3").await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "data: word\n\n".repeat(3));
        assert_eq!(log.next().await, "200 OK: 36 bytes, 3 frames, complete");
    }
    assert_eq!(used(&limits).await, 72);
}

#[tokio::test]
async fn events_are_settled_when_the_client_disconnects() {
    let (server, log, limits) = events().await;
    let mut charged = 0;
    for version in BOTH {
        let (response, client) = request(&server, version, Method::GET, "/endless").await.unwrap();
        let mut body = response.into_body();
        for _ in 0..5 {
            assert!(body.frame().await.unwrap().unwrap().is_data());
        }
        assert_eq!((log.take(), used(&limits).await), (vec![], charged + 100));
        drop((body, client));
        let end = log.next().await;
        let frames: u64 = end.split(' ').nth(4).unwrap().parse().unwrap();
        assert!(frames >= 5, "{end}");
        assert_eq!(end, format!("200 OK: {} bytes, {frames} frames, cut", 12 * frames));
        charged += 12 * frames;
        assert_eq!(used(&limits).await, charged);
    }
}

/// Returns a plain server. The path is the way in which the body ends.
async fn hyper() -> (Server, Log, RateLimitLayer) {
    let log = Log::default();
    let limits = layer([log.limit()]);
    let respond = async |request: Request<Incoming>| {
        let response = Response::builder();
        let response = match request.uri().path() {
            "/trailers" => response.header("trailer", "grpc-status").body(Frames::new(&[10, 20], End::Trailers)),
            "/known" => response.body(Frames::new(&[10, 20], End::Known)),
            "/polled" => response.body(Frames::new(&[10, 20], End::Polled)),
            "/length" => response.header("content-length", 30).body(Frames::new(&[10, 20], End::Polled)),
            "/fails" => response.body(Frames::new(&[10, 20], End::Failure)),
            status => response.status(&status[1..]).body(Frames::new(&[], End::Known)),
        };
        Ok::<_, Infallible>(response.unwrap())
    };
    (Server::hyper(limits.layer(service_fn(respond))).await, log, limits)
}

#[tokio::test]
async fn bodies_of_hyper_are_settled() {
    let (server, log, limits) = hyper().await;
    for version in BOTH {
        for (path, expected) in [
            ("/trailers", "200 OK: 30 bytes, 2 frames, complete, grpc-status 0"),
            ("/known", "200 OK: 30 bytes, 2 frames, complete"),
            ("/polled", "200 OK: 30 bytes, 2 frames, complete"),
            ("/length", "200 OK: 30 bytes, 2 frames, complete"),
            ("/204", "204 No Content: 0 bytes, 0 frames, complete"),
            ("/304", "304 Not Modified: 0 bytes, 0 frames, complete"),
        ] {
            let before = used(&limits).await;
            let (response, _client) = request(&server, version, Method::GET, path).await.unwrap();
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().is_some(), path == "/trailers", "{version:?} {path}");
            let bytes = body.to_bytes().len() as u64;
            assert_eq!(log.next().await, expected, "{version:?} {path}");
            assert_eq!(used(&limits).await, before + bytes, "{version:?} {path}");
        }
    }
}

#[tokio::test]
async fn failed_bodies_are_settled() {
    let (server, log, limits) = hyper().await;
    for version in BOTH {
        let before = used(&limits).await;
        // The connection or the stream may be closed before the head is sent.
        match request(&server, version, Method::GET, "/fails").await {
            Ok((response, _client)) => assert!(response.into_body().collect().await.is_err()),
            Err(error) => assert!(!error.is_connect()),
        }
        assert_eq!(log.next().await, "200 OK: 30 bytes, 2 frames, cut", "{version:?}");
        assert_eq!(used(&limits).await, before + 30);
    }
}

/// The server drops the body of the service.
#[tokio::test]
async fn a_head_request_is_charged_nothing() {
    let (server, log, limits) = hyper().await;
    let (response, _client) = request(&server, Version::HTTP_11, Method::HEAD, "/known").await.unwrap();
    assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    assert_eq!((log.next().await.as_str(), used(&limits).await), ("200 OK: 0 bytes, 0 frames, cut", 0));
    // So does Axum.
    let (server, log, limits) = events().await;
    for version in BOTH {
        let (response, _client) = request(&server, version, Method::HEAD, "/3").await.unwrap();
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
        assert_eq!((log.next().await.as_str(), used(&limits).await), ("200 OK: 0 bytes, 0 frames, cut", 0));
    }
}

#[tokio::test]
async fn streams_of_tonic_are_settled() {
    let log = Log::default();
    let limits = layer([log.limit()]);
    let (mut reporter, health) = tonic_health::server::health_reporter();
    let server = Server::hyper(limits.layer(health)).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let mut client = HealthClient::with_origin(client, server.uri("").parse().unwrap());
    let service = || HealthCheckRequest { service: "service".to_owned() };
    // Without a body, the status is among the headers.
    assert_eq!(client.watch(service()).await.unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(log.next().await, "200 OK: 0 bytes, 0 frames, complete");
    reporter.set_service_status("service", ServingStatus::Serving).await;
    client.check(service()).await.unwrap();
    // A message of two bytes with a prefix of five.
    assert_eq!(log.next().await, "200 OK: 7 bytes, 1 frames, complete, grpc-status 0");

    let mut watched = client.watch(service()).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    reporter.set_service_status("service", ServingStatus::NotServing).await;
    assert!(watched.message().await.unwrap().is_some());
    assert_eq!((log.take(), used(&limits).await), (vec![], 107));
    reporter.clear_service_status("service").await;
    assert!(watched.message().await.unwrap().is_none());
    assert_eq!(log.next().await, "200 OK: 14 bytes, 2 frames, complete, grpc-status 0");

    // The client drops the stream, but keeps the connection.
    reporter.set_service_status("service", ServingStatus::Serving).await;
    let mut watched = client.watch(service()).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    drop(watched);
    assert_eq!(log.next().await, "200 OK: 7 bytes, 1 frames, cut");
    assert_eq!(used(&limits).await, 28);
}
