//! A Tonic server, and a client that calls it until a limit denies:
//! `cargo run --example tonic_server --features tonic`.
//!
//! Denied calls fail with the status `RESOURCE_EXHAUSTED` and the wait. Tonic needs no additional
//! setup for `key::peer_ip`.

use std::error::Error;

use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_ratelimit::{Limit, RateLimitLayer, TokenBucket, key};

async fn serve(listener: TcpListener) -> Result<(), tonic::transport::Error> {
    // One call a second from each address, three at once.
    let burst = Limit::new("burst", TokenBucket::per_second(1).burst(3)).by(key::peer_ip());
    let limits = RateLimitLayer::new([burst]);
    // Add your services here.
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits).add_service(health);
    server.serve_with_incoming(TcpIncoming::from(listener)).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}", listener.local_addr()?);
    tokio::spawn(serve(listener));

    let mut client = HealthClient::new(Channel::from_shared(uri)?.connect().await?);
    loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => println!("allowed"),
            Err(status) => {
                println!("denied: {:?}: {}", status.code(), status.message());
                return Ok(());
            }
        }
    }
}
