//! A reqwest client that stays below the limit of a server, and repeats rejected requests:
//! `cargo run --example reqwest_client --features reqwest -- http://127.0.0.1:3000/`.

use std::error::Error;

use http::{Request, Response};
use reqwest::{Body, Client};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::client::{PaceLayer, RetryPolicy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("http://127.0.0.1:3000/".to_owned());

    let reqwest = Client::new();
    let mut client = ServiceBuilder::new()
        // Waits as `Retry-After` says, and sends a request up to five times. A stream is sent once.
        .retry(RetryPolicy::with_clone_body(|body: &Body| Some(body.as_bytes()?.to_vec().into())))
        // Learns the limit of the server. After a rejection, all requests to it wait.
        .layer(PaceLayer::new())
        .service(service_fn(move |request: Request<Body>| {
            let client = reqwest.clone();
            async move { client.execute(request.try_into()?).await.map(Response::<Body>::from) }
        }));

    for _ in 0..10 {
        let request = Request::get(&url).body(Body::default())?;
        let response = client.ready().await?.call(request).await?;
        println!("{}", response.status());
    }
    Ok(())
}
