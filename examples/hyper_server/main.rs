//! Hyper without a framework: `cargo run --example hyper_server --features hyper`, then
//! `curl -i http://127.0.0.1:3000/`.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};
use tower_ratelimit::key::PeerAddr;
use tower_ratelimit::{Limit, RateLimitLayer, TokenBucket, key};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello\n")))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    // One request a second from each address, three at once.
    let burst = Limit::new("burst", TokenBucket::per_second(1).burst(3)).by(key::peer_ip());
    let limits = RateLimitLayer::new([burst]);

    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = ServiceBuilder::new()
            // Gives `key::peer_ip` the address of the client. It must be outside the limits.
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddr(peer));
                request
            })
            // Clones of the layer share their state, so all connections have the same limits.
            .layer(limits.clone())
            .service(service_fn(hello));
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(service);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                eprintln!("connection of {peer}: {error}");
            }
        });
    }
}
