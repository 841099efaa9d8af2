//! The example of WebSockets, event streams and uploads does what the guide says.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{Sink, StreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use support::answer::Answer;
use support::server::Server;
use tokio::io::DuplexStream;
use tokio::time::{Instant, sleep};
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::{WebSocketStream, client_async};
use tower::ServiceExt;

#[allow(dead_code, reason = "a program's `main` is run as a program")]
#[path = "../../examples/streams/main.rs"]
mod example;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 50_000);

fn app() -> Router {
    example::app().layer(MockConnectInfo(ADDRESS))
}

/// Returns the tokens left according to the header `RateLimit`.
fn left(headers: &http::HeaderMap, limit: &str) -> u64 {
    let lines = headers.get_all("ratelimit").iter().map(|line| line.to_str().unwrap());
    let prefix = format!("\"{limit}\";r=");
    let item = lines.flat_map(|line| line.split(", ")).find_map(|item| item.strip_prefix(&prefix)).expect("the limit");
    item.split(';').next().unwrap().parse().unwrap()
}

/// Opens a WebSocket over a connection in memory, so that paused time advances only while nothing else happens.
async fn open(app: &Router) -> (WebSocketStream<DuplexStream>, http::HeaderMap) {
    try_open(app).await.expect("a handshake")
}

/// Returns the error if the handshake is rejected.
async fn try_open(app: &Router) -> Result<(WebSocketStream<DuplexStream>, http::HeaderMap), Error> {
    let (client, server) = tokio::io::duplex(1_000);
    let service = TowerToHyperService::new(app.clone());
    tokio::spawn(async move {
        let builder = auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection_with_upgrades(TokioIo::new(server), service).await;
    });
    let (socket, response) = client_async("ws://localhost/chat", client).await?;
    assert_eq!(response.status(), 101);
    Ok((socket, response.headers().clone()))
}

/// Sends a message, and returns the answer.
async fn say(socket: &mut WebSocketStream<DuplexStream>, text: &str) -> Message {
    let mut sink = Pin::new(&mut *socket);
    poll_fn(|context| sink.as_mut().poll_ready(context)).await.unwrap();
    sink.as_mut().start_send(Message::text(text)).unwrap();
    poll_fn(|context| sink.as_mut().poll_flush(context)).await.unwrap();
    socket.next().await.expect("an answer").unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_handshake_counts_once_and_messages_do_not() {
    let app = app();
    let (mut socket, headers) = open(&app).await;
    assert_eq!(left(&headers, "requests"), 19);
    for text in ["one", "two", "three"] {
        assert_eq!(say(&mut socket, text).await, Message::text(text));
    }
    let (_, headers) = open(&app).await;
    assert_eq!(left(&headers, "requests"), 18);
}

#[tokio::test(start_paused = true)]
async fn a_denied_handshake_gets_a_429() {
    let app = app();
    for _ in 0..20 {
        open(&app).await;
    }
    let error = try_open(&app).await.expect_err("a denial");
    assert_eq!(error.to_string(), "HTTP error: 429 Too Many Requests");
}

/// Three messages at once, and one in each of the two seconds that the others may wait.
#[tokio::test(start_paused = true)]
async fn messages_wait_for_their_turn_and_close_the_socket_if_it_comes_too_late() {
    let app = app();
    let mut sockets = Vec::new();
    for _ in 0..8 {
        sockets.push(open(&app).await.0);
    }
    let answers = join_all(sockets.iter_mut().map(|socket| say(socket, "hello"))).await;
    let is_policy = |message: &&Message| message.to_string().contains("too many messages");
    assert_eq!(answers.iter().filter(|message| **message == Message::text("hello")).count(), 5, "{answers:?}");
    assert_eq!(answers.iter().filter(is_policy).count(), 3, "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn twenty_sockets_may_be_open_at_a_time() {
    let app = app();
    let mut sockets = Vec::new();
    for _ in 0..20 {
        sockets.push(open(&app).await.0);
    }
    // The limit of requests has capacity again.
    sleep(Duration::from_secs(2)).await;
    assert!(try_open(&app).await.is_err());
    sockets.pop();
    // The server reads the end of the socket.
    sleep(Duration::from_millis(1)).await;
    sockets.push(open(&app).await.0);
    assert!(try_open(&app).await.is_err());
    // For as long as they are open.
    sleep(Duration::from_secs(86_400)).await;
    assert!(try_open(&app).await.is_err());
}

fn upload(frames: impl IntoIterator<Item = usize, IntoIter: Send + 'static>) -> (Request<Body>, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let frames = frames.into_iter().map(move |length| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::io::Error>(Bytes::from(vec![0; length]))
    });
    (Request::put("/upload").body(Body::from_stream(stream::iter(frames))).unwrap(), read)
}

/// The second frame alone is larger than the capacity of the limit.
#[tokio::test(start_paused = true)]
async fn an_upload_is_as_fast_as_its_limit() {
    let app = app();
    let start = Instant::now();
    let (request, _) = upload([64 * 1024, 200 * 1024, 56 * 1024]);
    let answer = Answer::of(app.oneshot(request).await.unwrap()).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::OK, "327680 bytes\n"));
    // 64 KiB at once, and 256 KiB at 64 KiB a second.
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_secs(4) && elapsed < Duration::from_millis(4_100), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_upload_over_its_quota_is_cut_off() {
    let app = app();
    let (request, read) = upload([100_000; 15]);
    let answer = Answer::of(app.clone().oneshot(request).await.unwrap()).await;
    assert_eq!(answer.status, 429);
    assert_eq!(read.load(Ordering::Relaxed), 11, "nothing is read after the first frame over the quota");
    // The frames that were admitted stay charged.
    let (request, read) = upload([1; 2]);
    assert_eq!(app.oneshot(request).await.unwrap().status(), 429);
    assert_eq!(read.load(Ordering::Relaxed), 1);
}

async fn answer(app: &Router) -> (u64, Body) {
    let response = app.clone().oneshot(Request::get("/complete").body(Body::empty()).unwrap()).await.unwrap();
    (left(response.headers(), "tokens"), response.into_body())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_stream_is_charged_for_what_it_has_sent() {
    let app = app();
    let (left, mut body) = answer(&app).await;
    assert_eq!(left, 99_000, "the whole answer is reserved");
    for _ in 0..25 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: word\n\n");
    }
    drop(body);
    tokio::task::yield_now().await;
    assert_eq!(answer(&app).await.0, 100_000 - 25 - 1_000);
}

#[tokio::test]
async fn a_stream_whose_client_has_gone_is_settled() {
    let app = example::app();
    let server = Server::axum(app.clone()).await;
    let response = {
        let connector = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
        let request = Request::get(server.uri("/complete")).body(Full::<Bytes>::default()).unwrap();
        connector.request(request).await.unwrap()
    };
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    let app = app.layer(MockConnectInfo(ADDRESS));
    // The server notices it when it writes the next event.
    for _ in 0..1_000 {
        if answer(&app).await.0 > 98_000 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the reservation was not settled");
}
