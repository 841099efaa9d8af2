//! A WebSocket, an event stream and uploads: `cargo run --example streams --features streams`, and
//! then `curl -N http://127.0.0.1:3000/complete` or
//! `curl -T Cargo.lock http://127.0.0.1:3000/upload`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, WebSocketUpgrade, close_code};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::response::sse::{Event, Sse};
use axum::routing::{any, get, put};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tower_ratelimit::{AcquireError, Limit, Limiter, Permit, RateLimitLayer, key};
use tower_ratelimit::{FixedWindow, TokenBucket};

/// The limits that are decided after a request was admitted, by the address of the client.
#[derive(Clone)]
struct Limits {
    sockets: Limiter,
    messages: Limiter,
    events: Limiter,
    upload_rate: Limiter,
    daily_upload: Limiter,
}

/// The bytes that an upload may send at once.
const BURST: u32 = 64 * 1024;

pub(crate) fn app() -> Router {
    let limits = Limits {
        sockets: Limiter::new([Limit::concurrent("sockets", 20)]),
        messages: Limiter::new([Limit::new("messages", TokenBucket::per_second(1).burst(3))]),
        events: Limiter::new([Limit::new("events", TokenBucket::per_second(20))]),
        upload_rate: Limiter::new([Limit::new("upload-rate", TokenBucket::per_second(BURST))]),
        daily_upload: Limiter::new([Limit::new("daily-upload", FixedWindow::per_day(1_000_000))]),
    };

    // Requests, whatever they transfer.
    let requests = Limit::new("requests", TokenBucket::per_second(10).burst(20)).by(key::peer_ip());
    // Tokens of a language model. Each answer reserves 1,000 of them.
    let tokens = Limit::new("tokens", FixedWindow::per_day(100_000)).by(key::peer_ip());
    let tokens = RateLimitLayer::builder([tokens]).cost(1_000).permits().build();

    let throttle = from_fn_with_state(limits.clone(), throttle);
    Router::new()
        .route("/chat", any(chat))
        .route("/complete", get(complete).layer(tokens))
        .route("/upload", put(upload).layer(throttle))
        .layer(RateLimitLayer::new([requests]))
        .with_state(limits)
}

async fn chat(
    State(limits): State<Limits>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, AcquireError> {
    let address = key::peer_ip().network(peer.ip());
    let held = limits.sockets.hold(address, 1).await?;
    Ok(upgrade.on_upgrade(async move |mut socket| {
        let _held = held; // until this task ends
        while let Some(Ok(message)) = socket.recv().await {
            let Message::Text(text) = message else { continue };
            // Reads no other message before the turn of this one, which slows the client down.
            let turn = limits.messages.wait_at_most(address, 1, Duration::from_secs(2)).await;
            let answer = match turn {
                Ok(_) => Message::Text(text),
                Err(_) => {
                    let reason = "too many messages".into();
                    Message::Close(Some(CloseFrame { code: close_code::POLICY, reason }))
                }
            };
            if socket.send(answer).await.is_err() {
                return;
            }
        }
    }))
}

/// Settles the tokens of an answer when it is dropped: at its end, or when the client has gone.
struct Usage {
    permit: Permit,
    tokens: u64,
}

impl Drop for Usage {
    fn drop(&mut self) {
        if let (Some(permit), tokens) = (self.permit.limit("tokens"), self.tokens) {
            tokio::spawn(async move { permit.settle(tokens).await });
        }
    }
}

async fn complete(
    State(limits): State<Limits>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    permit: Permit,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let address = key::peer_ip().network(peer.ip());
    let usage = Usage { permit, tokens: 0 };
    Sse::new(stream::unfold(usage, move |mut usage| {
        let events = limits.events.clone();
        async move {
            // Waits for its turn. Ends the stream if the limiter fails.
            events.wait(address, 1).await.ok()?;
            usage.tokens += 1;
            // Call your model here.
            Some((Ok(Event::default().data("word")), usage))
        }
    }))
}

/// Forwards the body of a request no faster than the limit allows.
async fn throttle(
    State(limits): State<Limits>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let address = key::peer_ip().network(peer.ip());
    let slowly = |body: Body| {
        Body::from_stream(body.into_data_stream().then(move |frame| {
            let rate = limits.upload_rate.clone();
            async move {
                let frame = frame?;
                // A cost above the capacity would be denied, so a large frame is charged in parts.
                for part in frame.chunks(BURST as usize) {
                    rate.wait(address, part.len() as u64).await.map_err(axum::Error::new)?;
                }
                Ok::<_, axum::Error>(frame)
            }
        }))
    };
    next.run(request.map(slowly)).await
}

/// Counts the bytes that arrive, and rejects the request once they exceed the limit.
async fn upload(
    State(limits): State<Limits>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    body: Body,
) -> Result<(StatusCode, String), AcquireError> {
    let address = key::peer_ip().network(peer.ip());
    let mut frames = body.into_data_stream();
    let mut size = 0;
    while let Some(frame) = frames.next().await {
        // The client has gone, or the throttle has failed: the upload is not complete.
        let Ok(frame) = frame else { return Ok((StatusCode::BAD_REQUEST, "incomplete\n".into())) };
        limits.daily_upload.try_acquire(address, frame.len() as u64).await?;
        size += frame.len();
    }
    Ok((StatusCode::OK, format!("{size} bytes\n")))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await
}
