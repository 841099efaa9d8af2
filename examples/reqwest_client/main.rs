//! A reqwest client that stays below the limit of a server, and waits if the server rejects it:
//! `cargo run --example reqwest_client --features reqwest -- http://127.0.0.1:3000/`.

use std::error::Error;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use reqwest::{Body, Client};
use tokio::time::sleep;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{LeakyBucketQueue, Limit, RateLimitLayer};

/// Returns the wait that a rejection asks for, in seconds, unless it is longer than a minute.
fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    let is_rejection = response.status() == StatusCode::TOO_MANY_REQUESTS;
    (is_rejection && seconds <= 60).then(|| Duration::from_secs(seconds))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or("http://127.0.0.1:3000/".to_owned());

    // Sends a request every 200 ms. Up to 50 requests wait. Further ones get 429, and are not sent.
    let polite = Limit::new("polite", LeakyBucketQueue::per_second(5).waiting(50));
    let reqwest = Client::new();
    let mut client = ServiceBuilder::new()
        // Responses keep the rate limit headers of the server.
        .layer(RateLimitLayer::builder([polite]).headers([]).build())
        .service(service_fn(move |request: Request<Body>| {
            let client = reqwest.clone();
            async move { client.execute(request.try_into()?).await.map(Response::<Body>::from) }
        }));

    for _ in 0..10 {
        let mut attempts = 0;
        let response = loop {
            let request = Request::get(&url).body(Body::default())?;
            let response = client.ready().await?.call(request).await?;
            attempts += 1;
            match retry_after(&response) {
                Some(wait) if attempts < 5 => sleep(wait).await,
                _ => break response,
            }
        };
        println!("{}", response.status());
    }
    Ok(())
}
