//! Axum with two limiters: failed logins by address, and requests by user. Start it with
//! `cargo run --example axum_server`, and try
//! `curl -i http://127.0.0.1:3000/report -H 'authorization: Bearer ann'`, also with
//! `Bearer mallory`.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use tokio::net::TcpListener;
use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer, SlidingLog, TokenBucket, key};

/// The authenticated user.
#[derive(Clone)]
struct User(String);

fn app() -> Router {
    // 20 failed logins an hour from each address. Other requests are refunded once they are
    // answered, so that an address can have 20 of them at a time.
    let failures = RateLimitLayer::new([Limit::new("failed-logins", SlidingLog::per_hour(20))
        .by(key::peer_ip())
        .count_if(|response| response.status == StatusCode::UNAUTHORIZED)]);

    // A request that one of these limits denies is charged to neither.
    let user = key::extension(|user: &User| user.0.clone());
    let requests = RateLimitLayer::new([
        Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(user.clone()),
        Limit::new("daily", FixedWindow::per_day(10_000)).by(user),
    ]);

    Router::new()
        .route("/hello", get(hello))
        .route("/report", get("a report\n"))
        // The last layer is the outermost: a request passes `failures`, `authenticate`, `requests`.
        .layer(requests.costs(CostTable::new().path("/report", 10)))
        .layer(from_fn(authenticate))
        .layer(failures)
}

async fn hello(Extension(user): Extension<User>) -> String {
    format!("hello, {}\n", user.0)
}

async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let header = request.headers().get(AUTHORIZATION);
    let token = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    // Look the token up in your database here.
    let user = token.filter(|token| ["ann", "bob"].contains(token));
    let user = User(user.ok_or(StatusCode::UNAUTHORIZED)?.to_owned());
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Gives `key::peer_ip` the address of each client.
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await
}
