//! An Axum server that records its requests for a dry run, a line of JSON for each:
//!
//! ```sh
//! cargo run --example record_requests --features policies -- requests.jsonl
//! cargo run --example dry_run --features policies -- limits.yaml requests.jsonl
//! ```
//!
//! `examples/dry_run/recording.rs` describes the format.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use axum::{Router, serve};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

/// The headers that limits read. Do not record credentials: identify clients by a header that is not secret, such as
/// the ID of their account, which a proxy or an outer middleware adds.
const HEADERS: [&str; 1] = ["x-user"];

/// Sends a request to the writer. It is called where the layer of limits would be.
async fn record(State(lines): State<SyncSender<Value>>, request: Request, next: Next) -> Response {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let extensions = request.extensions();
    let mut line = json!({
        "at": at,
        "method": request.method().as_str(),
        "path": request.uri().path(),
        "headers": recorded_headers(request.headers()),
    });
    if let Some(route) = extensions.get::<MatchedPath>() {
        line["route"] = route.as_str().into();
    }
    if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() {
        line["peer"] = peer.ip().to_string().into();
    }
    // If the writer is slow, requests are not recorded instead of delayed.
    let _ = lines.try_send(line);
    next.run(request).await
}

fn recorded_headers(headers: &HeaderMap) -> Map<String, Value> {
    let text = |value: &HeaderValue| Some(value.to_str().ok()?.to_owned());
    let values = |name| -> Value { headers.get_all(name).iter().filter_map(text).collect() };
    let present = HEADERS.into_iter().filter(|name| headers.contains_key(*name));
    present.map(|name| (name.to_owned(), values(name))).collect()
}

fn write(lines: &Receiver<Value>, mut file: File) {
    for line in lines {
        if let Err(error) = writeln!(file, "{line}") {
            eprintln!("a request can't be recorded: {error}");
        }
    }
}

fn app(lines: SyncSender<Value>) -> Router {
    Router::new()
        .route("/", get("hello\n"))
        .route("/users/{id}", get("a user\n"))
        .layer(from_fn_with_state(lines, record))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = File::options().append(true).create(true).open(arguments.next().expect("the path of a file"))?;
    let listener = TcpListener::bind(arguments.next().unwrap_or("127.0.0.1:3000".to_owned())).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let (sender, lines) = sync_channel(1_000);
    thread::spawn(move || write(&lines, file));
    serve(listener, app(sender).into_make_service_with_connect_info::<SocketAddr>()).await
}
