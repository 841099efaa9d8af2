//! Concurrency limits.

mod calls;
mod costs;
mod faults;
mod fleet;
mod headers;
mod layers;
mod renewals;
mod servers;
mod stores;
mod storm;

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use http_body::Body as HttpBody;
use support::store_fixture::{midnight, user_key};
use tokio::time::sleep;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::{Builder, FixedWindow, HttpOptions, Limit, MemoryStore, RateLimitLayer};

/// Returns a limit of the requests in flight of each user.
fn streams(slots: u32) -> Limit {
    Limit::concurrent("streams", slots).by(user_key())
}

/// Returns a limit of the requests of each user on a day.
fn requests(tokens: u32) -> Limit {
    Limit::new("requests", FixedWindow::per_day(tokens)).by(user_key())
}

/// Returns a builder with a store whose clock stands at midnight.
fn builder(limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
    RateLimitLayer::builder(limits).store(MemoryStore::new().clock(midnight()))
}

fn layer(limits: impl IntoIterator<Item = Limit>) -> RateLimitLayer {
    builder(limits).build()
}

/// Returns a request of a user.
fn get(user: &str) -> Request<Body> {
    support::store_fixture::get("/", user)
}

/// Returns a service that responds at once.
fn respond(
    limits: &RateLimitLayer,
    response: impl Fn() -> Response<Body> + Clone,
) -> impl Service<
    Request<Body>,
    Response = Response<impl HttpBody<Data = axum::body::Bytes, Error = axum::Error>>,
    Error = Infallible,
    Future: Future,
> + Clone {
    limits.layer(service_fn(move |_: Request<Body>| ready(Ok::<_, Infallible>(response()))))
}

/// Returns the slots and tokens that Ann has left under each limit.
async fn unused(limits: &RateLimitLayer) -> Vec<u64> {
    let mut unused = Vec::new();
    for limit in limits.limits() {
        let state = limits.limit(limit.name()).expect("the limit").peek("ann", 0).await.expect("an answer");
        unused.push(state.outcomes()[0].remaining());
    }
    unused
}

/// Waits until Ann has so many slots left under the first limit.
async fn wait_for_unused(limits: &RateLimitLayer, slots: u64) {
    for _ in 0..2_000 {
        if unused(limits).await[0] == slots {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?} are left, not {slots}", unused(limits).await);
}
