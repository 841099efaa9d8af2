//! A Tonic client that stays below the limit of a server:
//! `cargo run --example tonic_client --features tonic`.
//!
//! Calls wait for up to a second. One that would wait longer fails with the status
//! `RESOURCE_EXHAUSTED`, and is not sent.

use std::error::Error;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;
use tower_ratelimit::{CallError, Limit, Limiter, TokenBucket};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}", listener.local_addr()?);
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    // Five calls a second of each method, two at once.
    let calls = Limiter::new([Limit::new("calls", TokenBucket::per_second(5).burst(2))]);
    let limits = calls.layer(|call: &http::Request<Body>| call.uri().path().to_owned());
    let channel = Channel::from_shared(uri)?.connect().await?;
    let channel = ServiceBuilder::new()
        .map_err(|error: CallError<tonic::transport::Error>| Status::from(error))
        .layer(limits.wait_at_most(Duration::from_secs(1)))
        .service(channel);

    let client = HealthClient::new(channel);
    let calls = (0..10).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move { client.check(Request::new(HealthCheckRequest::default())).await })
    });
    for call in calls.collect::<Vec<_>>() {
        match call.await? {
            Ok(_) => println!("sent"),
            Err(status) => println!("not sent: {:?}: {}", status.code(), status.message()),
        }
    }
    Ok(())
}
