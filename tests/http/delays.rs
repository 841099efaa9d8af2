//! Requests in a queue wait in their own futures.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use support::faulty_store::{FaultyStore, Mode};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{LeakyBucketQueue, Limit, RateLimit, RateLimitLayer, key};

use crate::service::{builder, get, per_day, per_minute};
use crate::store::paused_store;
use support::answer::{Answer, ask};

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

    /// Checks the calls after all waits.
    async fn check(&self, expected: &[(&str, u128)]) {
        sleep(Duration::from_secs(10)).await;
        let calls = self.calls();
        assert_eq!(calls.iter().map(|(path, at)| (path.as_str(), *at)).collect::<Vec<_>>(), expected);
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

/// Returns a queue with one slot per second, in which three requests may wait.
fn queue() -> Limit {
    Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(3))
}

fn start(limits: impl IntoIterator<Item = Limit>) -> (Log, RateLimit<Log>) {
    let log = Log::new();
    (log.clone(), RateLimitLayer::new(limits).layer(log))
}

/// Sends a request in a new task.
async fn send<S, B>(service: &S, path: &str) -> JoinHandle<Answer>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static,
    B: Body<Data: Send, Error: Debug> + Send + 'static,
{
    let asking = service.clone().oneshot(get(path));
    let task = tokio::spawn(async { Answer::of(asking.await.unwrap()).await });
    tokio::task::yield_now().await;
    task
}

#[tokio::test(start_paused = true)]
async fn first_in_first_out_at_exact_instants() {
    let (log, service) = start(queue());
    let mut tasks = Vec::new();
    for path in ["/a", "/b", "/c", "/d"] {
        tasks.push(send(&service, path).await);
    }
    assert_eq!(log.calls(), [("/a".to_owned(), 0)]);
    let full = send(&service, "/e").await.await.unwrap();
    assert_eq!((full.is_denied(), full.header("retry-after"), full.remaining()), (true, Some("1"), 0));
    for task in tasks {
        assert!(!task.await.unwrap().is_denied());
    }
    // The next slot is at 4 s.
    send(&service, "/f").await.await.unwrap();
    log.check(&[("/a", 0), ("/b", 1_000), ("/c", 2_000), ("/d", 3_000), ("/f", 4_000)]).await;
}

/// Slots that are closer together than the resolution of Tokio's timers are still taken in order.
#[tokio::test(start_paused = true)]
async fn fast_queues_keep_their_order() {
    let (log, service) = start(Limit::new("queue", LeakyBucketQueue::per_second(10_000).waiting(200)));
    let paths: Vec<_> = (0..200).map(|number| format!("/{number}")).collect();
    for path in &paths {
        send(&service, path).await;
    }
    // Never early, and less than a millisecond late.
    let slots = (0..200_u128).map(|number| number.div_ceil(10));
    log.check(&paths.iter().map(|path| &**path).zip(slots).collect::<Vec<_>>()).await;
}

/// 100 requests pass at once, and 900 are spaced, also if the last ones are cancelled and others take their slots.
#[tokio::test(start_paused = true)]
async fn a_burst_passes_at_once_and_others_are_spaced_and_bounded() {
    let (log, service) = start(Limit::new("queue", LeakyBucketQueue::per_second(100).waiting(900).burst(99)));
    let mut tasks = Vec::new();
    for number in 0..1_000 {
        tasks.push(send(&service, &format!("/{number}")).await);
    }
    assert!(send(&service, "/denied").await.await.unwrap().is_denied());
    for _ in 0..100 {
        tasks.pop().unwrap().abort();
        tokio::task::yield_now().await;
    }
    for number in 900..1_000 {
        send(&service, &format!("/{number}")).await;
    }
    let paths: Vec<_> = (0..1_000).map(|number| format!("/{number}")).collect();
    // The longest delay is that of those which may wait: 9 s.
    let instants = (0..1_000_u128).map(|number| number.saturating_sub(99) * 10);
    log.check(&paths.iter().map(|path| &**path).zip(instants).collect::<Vec<_>>()).await;
}

/// If the last request of a queue is cancelled, its slot is free again. Otherwise, the other requests keep their slots. A
/// store that answers later queues requests alike.
#[tokio::test(start_paused = true)]
async fn the_slot_of_a_cancelled_request_is_taken_by_the_next_if_it_is_the_last() {
    for (paths, calls) in [
        (["/a", "/b", "/gone", "cancel", "/c"], [("/a", 0), ("/b", 1_000), ("/c", 2_000)]),
        (["/a", "/gone", "/b", "cancel", "/c"], [("/a", 0), ("/b", 2_000), ("/c", 3_000)]),
    ] {
        let (log, service) = start(queue());
        let mut gone = None;
        for path in paths {
            match (path, &gone) {
                ("cancel", Some(task)) => JoinHandle::abort(task),
                (path, _) => {
                    let task = send(&service, path).await;
                    gone = gone.or((path == "/gone").then_some(task));
                }
            }
        }
        assert!(gone.unwrap().await.unwrap_err().is_cancelled());
        log.check(&calls).await;
    }
    let log = Log::new();
    let store = FaultyStore::new(Mode::Works);
    let service = RateLimitLayer::builder(queue()).store(store).build().layer(log.clone());
    for path in ["/a", "/b", "/c"] {
        send(&service, path).await;
    }
    log.check(&[("/a", 0), ("/b", 1_000), ("/c", 2_000)]).await;
}

/// A cancelled wait also refunds the charges to other limits.
#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_is_refunded_by_every_limit() {
    let (_, service) = start([queue(), per_day("day", 10)]);
    assert_eq!(send(&service, "/a").await.await.unwrap().remaining_of("day"), 9);
    send(&service, "/gone").await.abort();
    assert_eq!(send(&service, "/b").await.await.unwrap().remaining_of("day"), 8);
}

/// A service that does not respond to `/never`.
async fn responds_but_to_never(request: Request<()>) -> Result<Response<String>, Infallible> {
    if request.uri().path() == "/never" {
        std::future::pending::<()>().await;
    }
    Ok(Response::new(String::new()))
}

/// A forwarded request stays charged, even if the client does not wait for the response.
#[tokio::test(start_paused = true)]
async fn a_request_that_proceeded_stays_charged() {
    let limits = [queue(), per_day("day", 10)];
    let service = RateLimitLayer::new(limits).layer(service_fn(responds_but_to_never));
    for left in [8, 6] {
        let mut asking = Box::pin(service.clone().oneshot(get("/never")));
        tokio::select! {
            biased;
            _ = asking.as_mut() => panic!("the service never responds"),
            () = sleep(Duration::from_secs(5)) => drop(asking),
        }
        assert_eq!(ask(&service, get("/")).await.remaining_of("day"), left);
        sleep(Duration::from_secs(5)).await;
    }
}

/// express-rate-limit 8.3.2: a client that closed its connection early was not counted. Here it is charged when its
/// request is forwarded.
#[tokio::test]
async fn a_request_that_is_dropped_at_any_await_is_charged_once_it_is_forwarded() {
    let delayed = FaultyStore::over(paused_store(), Mode::Works);
    for builder in [builder(per_minute("ten", 10)), builder(per_minute("ten", 10)).store(delayed)] {
        let service = builder.build().layer(service_fn(responds_but_to_never));
        // The request is dropped at the first await, at the second, and so on.
        for polls in 1..=3 {
            let mut asking = Box::pin(service.clone().oneshot(get("/never")));
            for _ in 0..polls {
                assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
        }
        assert_eq!(ask(&service, get("/")).await.remaining(), 6);
    }
}

/// A cost on a route inside the router's layer takes its other slots when the first one is due.
#[tokio::test(start_paused = true)]
async fn a_cost_takes_that_many_slots() {
    let log = Log::new();
    let layer = RateLimitLayer::new(queue());
    let (one, three) = (layer.layer(log.clone()), layer.cost(3).layer(log.clone()));
    send(&three, "/three").await;
    send(&one, "/one").await;
    assert!(send(&one, "/full").await.await.unwrap().is_denied());
    log.check(&[("/three", 0), ("/one", 3_000)]).await;

    let log = Log::new();
    let layer = RateLimitLayer::new(queue());
    let three = send(&layer.layer(layer.cost(3).layer(log.clone())), "/three").await;
    send(&layer.layer(log.clone()), "/one").await;
    assert!(!three.await.unwrap().is_denied());
    sleep(Duration::from_secs(10)).await;
    let calls = log.calls();
    assert_eq!(calls[1], ("/one".to_owned(), 3_000), "three slots were taken before: {calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_route_cost_over_the_capacity_charges_nothing() {
    let log = Log::new();
    let layer = RateLimitLayer::new(queue());
    let one = layer.layer(log.clone());
    send(&one, "/a").await;
    let four = send(&layer.layer(layer.cost(4).layer(log.clone())), "/four").await;
    send(&one, "/b").await;
    send(&one, "/c").await;
    // Its slot is due after a second. Two requests have queued behind it, so three more slots are denied.
    let denied = four.await.unwrap();
    assert_eq!((denied.is_denied(), denied.header("retry-after"), denied.remaining()), (true, Some("3"), 1));
    log.check(&[("/a", 0), ("/b", 2_000), ("/c", 3_000)]).await;
    // Without requests behind it, its slot is free at once.
    let denied = send(&layer.layer(layer.cost_by(|_| 5).layer(log)), "/five").await.await.unwrap();
    assert_eq!((denied.is_denied(), denied.header("retry-after"), denied.remaining()), (true, None, 4));
}

/// Of two requests on one connection, the one that waits does not block the other.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_does_not_block_its_connection() {
    let (log, service) = start(queue().by(key::path()));
    let service = TowerToHyperService::new(service);
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
    log.check(&[("/slow", 0), ("/quick", 0), ("/slow", 1_000), ("/slow", 2_000)]).await;
}
