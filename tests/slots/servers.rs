//! Slots over real connections, whose clients disconnect or reset streams.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::WebSocketUpgrade;
use axum::routing::{any, get as route};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use support::patient::LONG;
use support::server::Server;
use tokio::io::DuplexStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::{WebSocketStream, client_async};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, service_fn};
use tower_ratelimit::{Permit, RateLimitLayer};

use crate::{builder, layer, requests, streams, unused, wait_for_unused};

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

const BOTH: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

fn client(version: Version) -> HttpClient {
    Client::builder(TokioExecutor::new()).http2_only(version == Version::HTTP_2).build_http()
}

fn request(server: &Server, method: Method, path: &str) -> Request<Empty<Bytes>> {
    let request = Request::builder().method(method).uri(server.uri(path)).header("te", "trailers");
    request.header("x-user", "ann").body(Empty::new()).unwrap()
}

async fn send(client: &HttpClient, server: &Server, path: &str) -> Response<Incoming> {
    client.request(request(server, Method::GET, path)).await.expect("a response")
}

/// Returns a plain server, which responds as the path says.
async fn serve(limits: &RateLimitLayer) -> Server {
    type Frames = Pin<Box<dyn futures_util::Stream<Item = io::Result<Frame<Bytes>>> + Send>>;
    fn data(text: &'static str) -> io::Result<Frame<Bytes>> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }
    let respond = async |request: Request<Incoming>| {
        let frames: Frames = match request.uri().path() {
            "/no-head" => pending().await,
            "/no-frame" => Box::pin(stream::pending()),
            "/a-frame" => Box::pin(stream::iter([data("a")]).chain(stream::pending())),
            "/endless" => Box::pin(stream::unfold((), async |()| {
                sleep(Duration::from_millis(2)).await;
                Some((data("tick"), ()))
            })),
            "/large" => {
                Box::pin(stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[b'.'; 65_536])))).take(1_000))
            }
            "/failing" => Box::pin(stream::iter([data("a"), Err(io::Error::other("torn"))])),
            "/trailers" => Box::pin(stream::iter([data("a"), Ok(Frame::trailers(HeaderMap::new()))])),
            "/panicking" => panic!("of a handler"),
            _ => Box::pin(stream::iter([data("a"), data("b")])),
        };
        let body = match request.uri().path() {
            "/204" | "/304" => Body::empty(),
            "/known" => Body::from("known"),
            _ => Body::new(StreamBody::new(frames)),
        };
        let status = request.uri().path()[1..].parse().unwrap_or(200_u16);
        Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
    };
    Server::hyper(limits.layer(service_fn(respond))).await
}

#[tokio::test]
async fn a_complete_response_returns_its_slot_and_keeps_the_connection() {
    let limits = layer([streams(1), requests(1_000)]);
    let server = serve(&limits).await;
    for version in BOTH {
        let client = client(version);
        for path in ["/polled", "/known", "/204", "/304", "/trailers"] {
            // Over HTTP/2, Hyper would send the body of a response to HEAD.
            let methods = if version == Version::HTTP_2 { &[Method::GET][..] } else { &[Method::GET, Method::HEAD] };
            for method in methods {
                let response = client.request(request(&server, method.clone(), path)).await.unwrap();
                assert!(response.status() != 429, "{version:?} {method} {path}");
                response.into_body().collect().await.unwrap();
                wait_for_unused(&limits, 1).await;
            }
        }
    }
}

/// Over HTTP/1, the connection is closed. Over HTTP/2, the stream is reset, and the connection stays.
#[tokio::test]
async fn a_client_that_disconnects_returns_its_slot() {
    let limits = layer([streams(1), requests(1_000)]);
    let server = serve(&limits).await;
    for version in BOTH {
        for round in 0..5 {
            let client = client(version);
            let connected = timeout(LONG, send(&client, &server, "/known")).await.unwrap();
            connected.into_body().collect().await.unwrap();
            wait_for_unused(&limits, 1).await;

            // Before the head.
            let call = tokio::spawn(client.request(request(&server, Method::GET, "/no-head")));
            wait_for_unused(&limits, 0).await;
            assert_eq!(send(&client, &server, "/known").await.status(), 429, "{version:?} {round}");
            call.abort();
            wait_for_unused(&limits, 1).await;

            // Before the first frame, after it, and between many.
            for (path, frames) in [("/no-frame", 0), ("/a-frame", 1), ("/endless", 5), ("/large", 1)] {
                let mut body = send(&client, &server, path).await.into_body();
                for _ in 0..frames {
                    assert!(body.frame().await.unwrap().unwrap().is_data());
                }
                assert_eq!(unused(&limits).await[0], 0, "{version:?} {path}");
                drop(body);
                wait_for_unused(&limits, 1).await;
            }

            // With its connection.
            let body = send(&client, &server, "/endless").await.into_body();
            assert_eq!(unused(&limits).await[0], 0);
            drop((client, body));
            wait_for_unused(&limits, 1).await;
        }
    }
}

#[tokio::test]
async fn failures_return_slots() {
    let limits = layer([streams(1)]);
    let server = serve(&limits).await;
    for version in BOTH {
        for path in ["/failing", "/panicking"] {
            let response = client(version).request(request(&server, Method::GET, path)).await;
            if let Ok(response) = response {
                assert!(response.into_body().collect().await.is_err());
            }
            wait_for_unused(&limits, 1).await;
        }
    }
}

/// A client that reads slowly uses up its slots, unless the hold is limited.
#[tokio::test]
async fn a_client_that_does_not_read_holds_its_slot_for_the_longest_hold() {
    for (longest, is_held) in [(LONG, true), (Duration::from_millis(300), false)] {
        let limits = layer([streams(1).longest_hold(longest)]);
        let server = serve(&limits).await;
        for version in BOTH {
            let (stalled, other) = (client(version), client(version));
            let body = send(&stalled, &server, "/large").await.into_body();
            if is_held {
                sleep(Duration::from_millis(300)).await;
                assert_eq!(send(&other, &server, "/known").await.status(), 429, "{version:?}");
            } else {
                wait_for_unused(&limits, 1).await;
                assert_eq!(send(&other, &server, "/known").await.status(), 200, "{version:?}");
            }
            drop((stalled, body));
            wait_for_unused(&limits, 1).await;
        }
    }
}

/// Opens a WebSocket over a connection in memory.
async fn open(app: &Router, path: &str) -> Option<WebSocketStream<DuplexStream>> {
    let (client, server) = tokio::io::duplex(1_000);
    let service = TowerToHyperService::new(app.clone());
    tokio::spawn(async move {
        let builder = auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection_with_upgrades(TokioIo::new(server), service).await;
    });
    client_async(format!("ws://localhost{path}"), client).await.ok().map(|(socket, _)| socket)
}

/// A response with 101 has no body, so its slot would be returned with its head.
#[tokio::test]
async fn an_upgraded_connection_holds_its_slot_by_its_permit() {
    let ann = tower_ratelimit::key::from_fn(|_| Some("ann"));
    let limits = builder([tower_ratelimit::Limit::concurrent("streams", 2).by(ann)]).permits().build();
    let held = async |permit: Permit, upgrade: WebSocketUpgrade| {
        let held = permit.hold();
        upgrade.on_upgrade(async move |mut socket| {
            while socket.recv().await.is_some_and(|message| message.is_ok()) {}
            drop(held);
        })
    };
    let not_held = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket| while socket.recv().await.is_some_and(|message| message.is_ok()) {})
    };
    let app = Router::new().route("/held", any(held)).route("/not-held", any(not_held)).layer(limits.clone());
    let sockets = [open(&app, "/held").await.unwrap(), open(&app, "/held").await.unwrap()];
    assert_eq!(unused(&limits).await, [0]);
    assert!(open(&app, "/held").await.is_none());
    let [mut first, second] = sockets;
    first.close(None).await.unwrap();
    wait_for_unused(&limits, 1).await;
    // Without a closing handshake.
    drop(second);
    wait_for_unused(&limits, 2).await;
    let _socket = open(&app, "/not-held").await.unwrap();
    wait_for_unused(&limits, 2).await;
    // A failed handshake.
    assert!(open(&app, "/none").await.is_none());
    wait_for_unused(&limits, 2).await;
}

#[tokio::test]
async fn a_stream_of_tonic_holds_its_slot() {
    let limits = layer([streams(1)]);
    let (reporter, health) = tonic_health::server::health_reporter();
    let server = Server::hyper(limits.layer(health)).await;
    let http = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let mut client = HealthClient::with_origin(http, server.uri("").parse().unwrap());
    let call = || {
        let mut call = tonic::Request::new(HealthCheckRequest { service: "service".to_owned() });
        call.metadata_mut().insert("x-user", "ann".parse().unwrap());
        call
    };
    reporter.set_service_status("service", ServingStatus::Serving).await;
    let mut watched = client.watch(call()).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    assert_eq!(client.check(call()).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
    drop(watched);
    wait_for_unused(&limits, 1).await;
    client.check(call()).await.unwrap();
    wait_for_unused(&limits, 1).await;
}

/// Axum answers HEAD by the handler of GET, and drops its body.
#[tokio::test]
async fn a_head_request_returns_its_slot() {
    let limits = layer([streams(1)]);
    let endless = async || Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>("tick")));
    let server = Server::axum(Router::new().route("/", route(endless)).layer(limits.clone())).await;
    for version in BOTH {
        let client = client(version);
        for _ in 0..3 {
            let response = client.request(request(&server, Method::HEAD, "/")).await.unwrap();
            assert_eq!(response.status(), 200);
            wait_for_unused(&limits, 1).await;
        }
    }
}
