//! Tower's contract: only the service that was polled ready is called, once, and only for forwarded requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use support::faulty_store::{FaultyStore, Mode};

use axum::extract::Request as AxumRequest;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::buffer::Buffer;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::{
    FixedWindow, LeakyBucketQueue, Limit, RateLimit, RateLimitLayer, ResponseBody, ResponseFuture, key,
};

use crate::service::{Hello, get};
use crate::store::paused_store;
use support::answer::ask;

/// A service that panics if it is called without having been polled ready. A clone is not ready.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
    inner: Hello,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, inner: self.inner.clone() }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = <Hello as Service<Request<()>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without having been polled ready");
        self.inner.call(request)
    }
}

fn two() -> Limit {
    Limit::new("two", FixedWindow::per_minute(2))
}

/// Sends four requests to one instance of the service, of which two are forwarded.
async fn two_of_four_are_forwarded(layer: RateLimitLayer) {
    let inner = Hello::default();
    let mut service = layer.layer(Strict { is_ready: false, inner: inner.clone() });
    for _ in 0..4 {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status().is_success(), response.headers().get("retry-after").is_none());
    }
    assert_eq!(inner.calls(), 2);
}

#[tokio::test]
async fn decided_at_once() {
    two_of_four_are_forwarded(RateLimitLayer::builder([two()]).store(paused_store()).build()).await;
}

#[tokio::test]
async fn decided_later() {
    two_of_four_are_forwarded(
        RateLimitLayer::builder([two()]).store(FaultyStore::over(paused_store(), Mode::Works)).build(),
    )
    .await;
}

#[tokio::test]
async fn with_a_key_that_is_looked_up() {
    let looked_up = key::from_async_fn(|_| async {
        tokio::task::yield_now().await;
        Some(7)
    });
    two_of_four_are_forwarded(RateLimitLayer::builder([two().by(looked_up)]).store(paused_store()).build()).await;
}

#[tokio::test]
async fn a_route_with_its_own_cost_inside() {
    let limits =
        RateLimitLayer::builder([Limit::new("four", FixedWindow::per_minute(4))]).store(paused_store()).build();
    let inner = Hello::default();
    let strict = Strict { is_ready: false, inner: inner.clone() };
    let mut service = ServiceBuilder::new().layer(limits.clone()).layer(limits.cost(2)).service(strict);
    for _ in 0..4 {
        service.ready().await.unwrap().call(get("/")).await.unwrap();
    }
    assert_eq!(inner.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn delayed() {
    let inner = Hello::default();
    let queue = LeakyBucketQueue::per_second(1).waiting(2);
    let layer = RateLimitLayer::new([Limit::new("queue", queue)]);
    let mut service = layer.layer(Strict { is_ready: false, inner: inner.clone() });
    let first = service.ready().await.unwrap().call(get("/"));
    let second = service.ready().await.unwrap().call(get("/"));
    let (first, second) = tokio::join!(first, second);
    assert!(first.unwrap().status().is_success() && second.unwrap().status().is_success());
    assert_eq!(inner.calls(), 2);
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Fault(&'static str);

/// A service whose readiness can be set, and whose calls fail.
#[derive(Clone, Debug)]
struct Faulty(Poll<Result<(), Fault>>);

impl Service<Request<()>> for Faulty {
    type Response = Response<String>;
    type Error = Fault;
    type Future = std::future::Ready<Result<Self::Response, Fault>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        self.0.clone()
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Err(Fault("called")))
    }
}

#[tokio::test]
async fn errors_and_readiness_are_the_inner_services() {
    let limits = RateLimitLayer::builder([two()]).store(paused_store()).build();
    let mut context = Context::from_waker(Waker::noop());
    for reported in [Poll::Pending, Poll::Ready(Ok(())), Poll::Ready(Err(Fault("never ready")))] {
        assert_eq!(limits.layer(Faulty(reported.clone())).poll_ready(&mut context), reported);
    }
    let mut service = limits.layer(Faulty(Poll::Ready(Ok(()))));
    let failed: Result<Response<ResponseBody<String>>, Fault> = service.ready().await.unwrap().call(get("/")).await;
    assert_eq!(failed.unwrap_err(), Fault("called"));
}

#[tokio::test]
async fn a_rejected_request_has_no_permit() {
    let limits = RateLimitLayer::builder([two()]).store(paused_store()).build();
    let service = ServiceBuilder::new().layer(limits).concurrency_limit(1).service(Strict::default());
    let [mut one, mut other] = [service.clone(), service];
    for is_refused in [false, false, true, true] {
        let answer = one.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(answer.status() == http::StatusCode::TOO_MANY_REQUESTS, is_refused);
        drop(answer);
        // The service still exists, and must have released its permit.
        let mut context = Context::from_waker(Waker::noop());
        assert!(Service::<Request<()>>::poll_ready(&mut other, &mut context).is_ready());
        other = one.clone();
    }
}

#[tokio::test]
async fn works_around_and_inside_a_buffer() {
    let inner = Hello::default();
    let limits = RateLimitLayer::builder([two()]).store(paused_store()).build();
    let around = limits.layer(Buffer::new(inner.clone(), 1));
    assert!(!ask(&around, get("/")).await.is_refused());
    let within = Buffer::new(limits.layer(inner.clone()), 1);
    assert!(!ask(&within, get("/")).await.is_refused());
    assert!(ask(&around, get("/")).await.is_refused());
    assert!(ask(&within, get("/")).await.is_refused());
    assert_eq!(inner.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn inside_a_timeout_a_request_that_queues_gives_up() {
    let inner = Hello::default();
    let queue = LeakyBucketQueue::per_second(1).waiting(1);
    let service = ServiceBuilder::new()
        .timeout(Duration::from_millis(300))
        .layer(RateLimitLayer::new([Limit::new("queue", queue)]))
        .service(inner.clone());
    assert!(service.clone().oneshot(get("/")).await.is_ok());
    assert!(service.clone().oneshot(get("/")).await.is_err());
    // The cancelled request has left the queue, so another one is allowed.
    assert!(service.clone().oneshot(get("/")).await.is_err());
    assert_eq!(inner.calls(), 1);
}

#[test]
fn services_are_shared_and_futures_are_sent() {
    fn is_shared<T: Send + Sync>() {}
    fn is_sent<T: Send>() {}
    is_shared::<RateLimitLayer>();
    is_shared::<RateLimit<Hello>>();
    is_shared::<ResponseBody<Full<Bytes>>>();
    is_sent::<ResponseFuture<Hello, ()>>();
    // Axum's bodies are `Send`, but not `Sync`.
    is_sent::<ResponseFuture<axum::Router, axum::body::Body>>();
    let layer = RateLimitLayer::new([two()]);
    let _: BoxCloneSyncService<AxumRequest, _, Infallible> = BoxCloneSyncService::new(layer.layer(axum::Router::new()));
}

/// A service that counts its clones. A request that is forwarded at once needs none.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl Service<Request<()>> for Counted {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test]
async fn the_service_is_not_cloned_if_the_decision_is_ready() {
    let clones = Arc::new(AtomicUsize::new(0));
    let mut service = RateLimitLayer::builder([two()]).store(paused_store()).build().layer(Counted(clones.clone()));
    for _ in 0..2 {
        service.ready().await.unwrap().call(get("/")).await.unwrap();
    }
    assert_eq!(clones.load(Ordering::Relaxed), 0);
    // After a rejection, a clone replaces the service, which drops what it had reserved.
    service.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(clones.load(Ordering::Relaxed), 1);
}
