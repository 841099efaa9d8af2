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
use tower_ratelimit::{LeakyBucketQueue, Limit, RateLimit, RateLimitLayer, ResponseBody, ResponseFuture, key};

use crate::service::{Hello, builder, get, layer, per_minute};
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
    per_minute("two", 2)
}

/// Calls one instance of a service as soon as it is ready, and returns the statuses.
async fn called<S, B>(mut service: S, calls: usize) -> Vec<u16>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut statuses = Vec::new();
    for _ in 0..calls {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    statuses
}

/// throttle-kit tower_layer.rs:226, tokio-rate-limit middleware.rs:268, axum_gcra lib.rs:555: a clone was called instead
/// of the service that had been polled ready. tower-rate-limit-redis service.rs:103: `inner.call(request)` ran before the
/// store's decision, so services that spawn or buffer did the work of rejected requests.
#[tokio::test]
async fn the_service_that_is_ready_is_called_once_for_each_forwarded_request() {
    let looked_up = key::from_async_fn(|_| async {
        tokio::task::yield_now().await;
        Some(7)
    });
    for layer in [
        layer(two()),
        builder(two()).store(FaultyStore::over(paused_store(), Mode::Works)).build(),
        layer(two().by(looked_up)),
    ] {
        let strict = Strict::default();
        let inner = strict.inner.clone();
        assert_eq!(called(layer.layer(strict), 4).await, [200, 200, 429, 429]);
        assert_eq!(inner.calls(), 2);
    }
    // A route with its own cost inside.
    let limits = layer(per_minute("four", 4));
    let strict = Strict::default();
    let inner = strict.inner.clone();
    assert_eq!(called(limits.layer(limits.cost(2).layer(strict)), 4).await, [200, 200, 429, 429]);
    assert_eq!(inner.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn delayed() {
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(2));
    let strict = Strict::default();
    let inner = strict.inner.clone();
    let mut service = RateLimitLayer::new(queue).layer(strict);
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
    let limits = layer(two());
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
    let limits = layer(two());
    let service = ServiceBuilder::new().layer(limits).concurrency_limit(1).service(Strict::default());
    let [mut one, mut other] = [service.clone(), service];
    for status in [200, 200, 429, 429] {
        let answer = one.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(answer.status(), status);
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
    let limits = layer(two());
    let around = limits.layer(Buffer::new(inner.clone(), 1));
    let within = Buffer::new(limits.layer(inner.clone()), 1);
    for is_denied in [false, true] {
        assert_eq!(ask(&around, get("/")).await.is_denied(), is_denied);
        assert_eq!(ask(&within, get("/")).await.is_denied(), is_denied);
    }
    assert_eq!(inner.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn inside_a_timeout_a_request_that_queues_gives_up() {
    let inner = Hello::default();
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(1));
    let service = ServiceBuilder::new().timeout(Duration::from_millis(300)).layer(RateLimitLayer::new(queue));
    let service = service.service(inner.clone());
    // A cancelled request leaves the queue, so another one is allowed.
    for is_ok in [true, false, false] {
        assert_eq!(service.clone().oneshot(get("/")).await.is_ok(), is_ok);
    }
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
    let mut service = layer(two()).layer(Counted(clones.clone()));
    // After a rejection, a clone replaces the service, which drops what it had reserved.
    for (status, expected) in [(200, 0), (200, 0), (429, 1)] {
        assert_eq!(called(&mut service, 1).await, [status]);
        assert_eq!(clones.load(Ordering::Relaxed), expected);
    }
}
