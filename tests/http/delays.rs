//! Requests in a queue wait in their own futures.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use support::faulty_store::{FaultyStore, Mode};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::{FixedWindow, LeakyBucketQueue, Limit, RateLimit, RateLimitLayer, key};

use crate::service::get;
use support::answer::Answer;

/// A service that records the path and the time of each call, in ms.
#[derive(Clone, Debug)]
struct Log {
    start: Instant,
    calls: Arc<Mutex<Vec<(String, u128)>>>,
}

impl Log {
    fn new() -> Self {
        Self { start: Instant::now(), calls: Arc::default() }
    }

    fn calls(&self) -> Vec<(String, u128)> {
        self.calls.lock().unwrap().clone()
    }
}

impl<B> Service<Request<B>> for Log {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = (request.uri().path().to_owned(), self.start.elapsed().as_millis());
        self.calls.lock().unwrap().push(call);
        ready(Ok(Response::new(Full::default())))
    }
}

fn calls(expected: &[(&str, u128)]) -> Vec<(String, u128)> {
    expected.iter().map(|(path, at)| ((*path).to_owned(), *at)).collect()
}

/// Returns a queue with one slot per second, in which three requests may wait.
fn queue() -> Limit {
    Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(3))
}

/// Sends a request in a new task.
async fn send(service: &RateLimit<Log>, path: &str) -> JoinHandle<Answer> {
    let asking = service.clone().oneshot(get(path));
    let task = tokio::spawn(async { Answer::of(asking.await.unwrap()).await });
    tokio::task::yield_now().await;
    task
}

#[tokio::test(start_paused = true)]
async fn first_in_first_out_at_exact_instants() {
    let log = Log::new();
    let service = RateLimitLayer::new([queue()]).layer(log.clone());
    let mut tasks = Vec::new();
    for path in ["/a", "/b", "/c", "/d"] {
        tasks.push(send(&service, path).await);
    }
    assert_eq!(log.calls(), calls(&[("/a", 0)]));
    let full = send(&service, "/e").await.await.unwrap();
    assert!(full.is_refused());
    assert_eq!((full.header("retry-after"), full.remaining()), (Some("1"), 0));
    for task in tasks {
        assert!(!task.await.unwrap().is_refused());
    }
    assert_eq!(log.calls(), calls(&[("/a", 0), ("/b", 1_000), ("/c", 2_000), ("/d", 3_000)]));
    // The next slot is at 4 s.
    send(&service, "/f").await.await.unwrap();
    assert_eq!(log.calls().last(), calls(&[("/f", 4_000)]).last());
}

#[tokio::test(start_paused = true)]
async fn delayed_store_answers_queue_requests_alike() {
    let log = Log::new();
    let service = RateLimitLayer::builder([queue()]).store(FaultyStore::new(Mode::Works)).build().layer(log.clone());
    for path in ["/a", "/b", "/c"] {
        send(&service, path).await;
    }
    sleep(Duration::from_secs(10)).await;
    assert_eq!(log.calls(), calls(&[("/a", 0), ("/b", 1_000), ("/c", 2_000)]));
}

/// Slots that are closer together than the resolution of Tokio's timers are still taken in order.
#[tokio::test(start_paused = true)]
async fn fast_queues_keep_their_order() {
    let log = Log::new();
    let limit = Limit::new("queue", LeakyBucketQueue::per_second(10_000).waiting(200));
    let service = RateLimitLayer::new([limit]).layer(log.clone());
    let mut paths = Vec::new();
    for number in 0..200 {
        paths.push(format!("/{number}"));
        send(&service, paths.last().unwrap()).await;
    }
    sleep(Duration::from_secs(1)).await;
    let (called, instants): (Vec<String>, Vec<u128>) = log.calls().into_iter().unzip();
    assert_eq!(called, paths);
    let slots = (0..200u128).map(|number| number.div_ceil(10));
    assert_eq!(instants, slots.collect::<Vec<_>>(), "never early, and less than a millisecond late");
}

#[tokio::test(start_paused = true)]
async fn cancelling_the_last_of_a_queue_returns_its_slot() {
    let log = Log::new();
    let service = RateLimitLayer::new([queue()]).layer(log.clone());
    send(&service, "/a").await;
    send(&service, "/b").await;
    let last = send(&service, "/gone").await;
    last.abort();
    assert!(last.await.unwrap_err().is_cancelled());
    send(&service, "/c").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(log.calls(), calls(&[("/a", 0), ("/b", 1_000), ("/c", 2_000)]));
}

/// The other requests keep their slots.
#[tokio::test(start_paused = true)]
async fn cancelling_the_middle_of_a_queue_leaves_its_slot_unused() {
    let log = Log::new();
    let service = RateLimitLayer::new([queue()]).layer(log.clone());
    send(&service, "/a").await;
    let middle = send(&service, "/gone").await;
    send(&service, "/b").await;
    middle.abort();
    assert!(middle.await.unwrap_err().is_cancelled());
    send(&service, "/c").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(log.calls(), calls(&[("/a", 0), ("/b", 2_000), ("/c", 3_000)]));
}

/// A cancelled wait also refunds the charges to other limits.
#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_is_refunded_by_every_limit() {
    let limits = [queue(), Limit::new("day", FixedWindow::per_day(10))];
    let service = RateLimitLayer::new(limits).layer(Log::new());
    assert_eq!(send(&service, "/a").await.await.unwrap().remaining_of("day"), 9);
    send(&service, "/gone").await.abort();
    assert_eq!(send(&service, "/b").await.await.unwrap().remaining_of("day"), 8);
}

/// A forwarded request stays charged, even if the client does not wait for the response.
#[tokio::test(start_paused = true)]
async fn a_request_that_proceeded_stays_charged() {
    let limits = [queue(), Limit::new("day", FixedWindow::per_day(10))];
    let never = tower::service_fn(|request: Request<()>| async move {
        if request.uri().path() == "/never" {
            std::future::pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let service = RateLimitLayer::new(limits).layer(never);
    for left in [8, 6] {
        let mut asking = Box::pin(service.clone().oneshot(get("/never")));
        tokio::select! {
            biased;
            _ = asking.as_mut() => panic!("the service never responds"),
            () = sleep(Duration::from_secs(5)) => drop(asking),
        }
        assert_eq!(support::answer::ask(&service, get("/")).await.remaining_of("day"), left);
        sleep(Duration::from_secs(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_takes_that_many_slots() {
    let log = Log::new();
    let layer = RateLimitLayer::new([queue()]);
    let (one, three) = (layer.layer(log.clone()), layer.cost(3).layer(log.clone()));
    send(&three, "/three").await;
    send(&one, "/one").await;
    assert!(send(&one, "/full").await.await.unwrap().is_refused());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(log.calls(), calls(&[("/three", 0), ("/one", 3_000)]));
}

/// A cost on a route inside the router's layer takes its other slots when the first one is due.
#[tokio::test(start_paused = true)]
async fn a_route_cost_takes_that_many_slots() {
    let log = Log::new();
    let layer = RateLimitLayer::new([queue()]);
    let three = ServiceBuilder::new().layer(layer.clone()).layer(layer.cost(3)).service(log.clone());
    let three = tokio::spawn(three.oneshot(get("/three")));
    tokio::task::yield_now().await;
    send(&layer.layer(log.clone()), "/one").await;
    assert!(three.await.unwrap().unwrap().status().is_success());
    sleep(Duration::from_secs(10)).await;
    let calls = log.calls();
    assert_eq!(calls[1], ("/one".to_owned(), 3_000), "three slots were taken before: {calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_route_cost_over_the_capacity_charges_nothing() {
    let log = Log::new();
    let layer = RateLimitLayer::new([queue()]);
    let one = layer.layer(log.clone());
    let four = ServiceBuilder::new().layer(layer.clone()).layer(layer.cost(4)).service(log.clone());
    send(&one, "/a").await;
    let four = tokio::spawn(four.oneshot(get("/four")));
    tokio::task::yield_now().await;
    send(&one, "/b").await;
    send(&one, "/c").await;
    // Its slot is due after a second. Two requests have queued behind it, so three more slots are denied.
    let refused = Answer::of(four.await.unwrap().unwrap()).await;
    assert!(refused.is_refused());
    assert_eq!((refused.header("retry-after"), refused.remaining()), (Some("3"), 1));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(log.calls(), calls(&[("/a", 0), ("/b", 2_000), ("/c", 3_000)]));
    // Without requests behind it, its slot is free at once.
    let five = ServiceBuilder::new().layer(layer.clone()).layer(layer.cost_by(|_| 5)).service(log.clone());
    let refused = Answer::of(five.oneshot(get("/five")).await.unwrap()).await;
    assert!(refused.is_refused());
    assert_eq!((refused.header("retry-after"), refused.remaining()), (None, 4));
}

/// Of two requests on one connection, the one that waits does not block the other.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_does_not_block_its_connection() {
    let log = Log::new();
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(3)).by(key::path());
    let service = TowerToHyperService::new(RateLimitLayer::new([queue]).layer(log.clone()));
    let (client, server) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(server), service)
            .await
    });
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    let ask = |path: &str| {
        let request = Request::get(format!("http://localhost{path}")).body(Empty::<Bytes>::new()).unwrap();
        let mut sender = sender.clone();
        tokio::spawn(async move { sender.send_request(request).await.unwrap().status() })
    };
    let asked = [ask("/slow"), ask("/slow"), ask("/slow"), ask("/quick")];
    for status in asked {
        assert!(status.await.unwrap().is_success());
    }
    assert_eq!(log.calls(), calls(&[("/slow", 0), ("/quick", 0), ("/slow", 1_000), ("/slow", 2_000)]));
}
