//! Limits that settle when the body of a response ends.

mod estimates;
mod random;
mod servers;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    BodyEnd, ConfigError, Limit, LiveLimits, Permit, RateLimitLayer, RequestLimiter, StoreErrorKind,
};

use crate::service::{builder, get, layer, panic_message, per_day};
use support::frames::{End, Frames};
use support::store_fixture::{StoreFixture, on_both_stores, user_key};

on_both_stores!(the_last_of_several_settlements_counts, settlements_in_the_background_keep_their_order);

/// The ends that a limit has seen, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Returns a limit of bytes, which reserves 100 for each response and settles those that were sent.
    fn limit(&self) -> Limit {
        let log = self.clone();
        per_day("bytes", 100_000).cost(100).settle_at_end(move |end| {
            log.add(end);
            Some(end.bytes)
        })
    }

    fn add(&self, end: &BodyEnd<'_>) {
        let status = end.trailers.map(|trailers| trailers["grpc-status"].to_str().unwrap().to_owned());
        let state = if end.is_complete { "complete" } else { "cut" };
        let trailers = status.map_or_else(String::new, |status| format!(", grpc-status {status}"));
        let text = format!("{}: {} bytes, {} frames, {state}{trailers}", end.status, end.bytes, end.frames);
        self.0.lock().unwrap().push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Waits for the end of a body at a server.
    async fn next(&self) -> String {
        for _ in 0..2_000 {
            if let [only] = &self.take()[..] {
                return only.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("the body does not end");
    }
}

/// Returns the used tokens of the limit `bytes`.
async fn used(layer: &RateLimitLayer) -> u64 {
    let state = layer.limit("bytes").unwrap().peek(tower_ratelimit::key::Shared, 0).await.unwrap();
    let [outcome] = state.outcomes() else { panic!("one limit is peeked at") };
    outcome.algorithm().capacity() - outcome.remaining()
}

/// Responds with a body.
fn respond(
    layer: &RateLimitLayer,
    response: impl Fn() -> Response<Frames> + Clone,
) -> impl Service<
    Request<()>,
    Response = Response<impl Body<Data = Bytes, Error = &'static str>>,
    Error = Infallible,
    Future: Future,
> + Clone {
    layer.layer(service_fn(move |_: Request<()>| std::future::ready(Ok::<_, Infallible>(response()))))
}

#[tokio::test]
async fn a_body_settles_once_what_has_passed_until_its_end() {
    for (end, polls, expected) in [
        (End::Polled, 3, "200 OK: 30 bytes, 2 frames, complete"),
        (End::Known, 2, "200 OK: 30 bytes, 2 frames, complete"),
        (End::Trailers, 3, "200 OK: 30 bytes, 2 frames, complete, grpc-status 0"),
        (End::Failure, 3, "200 OK: 30 bytes, 2 frames, cut"),
        // The client disconnects.
        (End::Polled, 2, "200 OK: 30 bytes, 2 frames, cut"),
        (End::Trailers, 2, "200 OK: 30 bytes, 2 frames, cut"),
        (End::Known, 1, "200 OK: 10 bytes, 1 frames, cut"),
        (End::Failure, 1, "200 OK: 10 bytes, 1 frames, cut"),
        (End::Known, 0, "200 OK: 0 bytes, 0 frames, cut"),
    ] {
        let log = Log::default();
        let limits = layer([log.limit()]);
        let service = respond(&limits, move || Response::new(Frames::new(&[10, 20], end)));
        let mut body = Box::pin(service.oneshot(get("/")).await.unwrap().into_body());
        for _ in 0..polls {
            assert_eq!((log.take(), used(&limits).await), (vec![], 100), "{end:?} {polls}");
            let _ = body.frame().await;
        }
        let is_dropped = expected.contains("cut") && !(end == End::Failure && polls == 3);
        assert_eq!(log.0.lock().unwrap().len(), usize::from(!is_dropped), "{end:?} {polls}");
        // A body may be polled after its end.
        if !is_dropped {
            let _ = body.frame().await;
        }
        drop(body);
        assert_eq!(log.take(), [expected], "{end:?} {polls}");
        let bytes = if polls == 0 { 0 } else { [10, 30][usize::from(polls > 1)] };
        assert_eq!(used(&limits).await, bytes, "{end:?} {polls}");
    }
}

#[tokio::test]
async fn a_response_without_a_body_ends_at_once() {
    let log = Log::default();
    let limits = layer([log.limit()]);
    for status in [200, 204, 304] {
        let empty = move || Response::builder().status(status).body(Frames::new(&[], End::Known)).unwrap();
        let body = respond(&limits, empty).oneshot(get("/")).await.unwrap().into_body();
        let [only] = &log.take()[..] else { panic!("it ends once") };
        assert!(only.starts_with(&status.to_string()) && only.ends_with("0 bytes, 0 frames, complete"), "{only}");
        drop(body);
        assert_eq!((log.take(), used(&limits).await), (vec![], 0));
    }
}

/// Hyper drops such a body without asking for its end.
#[tokio::test]
async fn a_body_is_complete_with_all_bytes_that_its_response_announces() {
    let log = Log::default();
    let limits = layer([log.limit()]);
    for (length, polls, expected) in [("30", 2, "complete"), ("30", 1, "cut"), ("31", 2, "cut"), ("", 2, "cut")] {
        let response = move || {
            Response::builder().header("content-length", length).body(Frames::new(&[10, 20], End::Polled)).unwrap()
        };
        let mut body = Box::pin(respond(&limits, response).oneshot(get("/")).await.unwrap().into_body());
        for _ in 0..polls {
            let _ = body.frame().await;
        }
        drop(body);
        let [only] = &log.take()[..] else { panic!("it ends once") };
        assert!(only.ends_with(expected), "{length} {polls}: {only}");
    }
}

#[tokio::test]
async fn a_request_without_a_response_keeps_its_charge() {
    let log = Log::default();
    let limits = layer([log.limit()]);
    let fails = limits.layer(service_fn(async |_: Request<()>| Err::<Response<Frames>, _>("no response")));
    assert!(fails.oneshot(get("/")).await.is_err());
    assert_eq!((log.take(), used(&limits).await), (vec![], 100));
    let hangs =
        limits.layer(service_fn(async |_: Request<()>| pending::<Result<Response<Frames>, Infallible>>().await));
    let mut call = Box::pin(hangs.oneshot(get("/")));
    assert!(futures_util::poll!(call.as_mut()).is_pending());
    drop(call);
    assert_eq!((log.take(), used(&limits).await), (vec![], 200));
}

#[tokio::test]
async fn no_cost_keeps_the_charge() {
    let failed = |end: &BodyEnd<'_>| (end.trailers?.get("grpc-status")? != "0").then_some(0);
    let limits = layer([per_day("bytes", 1_000).cost(100).settle_at_end(failed)]);
    for (end, left) in [(End::Trailers, 100), (End::Polled, 200)] {
        let _ = respond(&limits, move || Response::new(Frames::new(&[10], end))).oneshot(get("/")).await.unwrap();
        assert_eq!(used(&limits).await, left);
    }
}

async fn the_last_of_several_settlements_counts(fixture: StoreFixture) {
    let limit = || per_day("bytes", 100_000).by(user_key());
    let settled = limit()
        .cost(100)
        .settle_by(|response| response.header("x-used")?.parse().ok())
        .settle_at_end(|end| (end.bytes > 0).then_some(end.bytes));
    let limits = fixture.builder([settled]).permits().build();
    let mut left = 100_000;
    // By the permit, the head, and the end.
    for (permit, head, bytes, charged) in [
        (None, None, None, 100),
        (None, Some(50), None, 50),
        (Some(500), Some(50), Some(300), 300),
        (Some(70), None, None, 70),
    ] {
        let service = limits.layer(service_fn(move |request: Request<()>| async move {
            if let Some(actual) = permit {
                let permit = Permit::of(request.extensions()).unwrap().limit("bytes").unwrap();
                permit.settle(actual).await.unwrap();
            }
            let response =
                head.into_iter().fold(Response::builder(), |response, used: u64| response.header("x-used", used));
            let lengths: Vec<_> = bytes.into_iter().collect();
            Ok::<_, Infallible>(response.body(Frames::new(&lengths, End::Polled)).unwrap())
        }));
        let request = Request::get("/").header("x-user", "ann").body(()).unwrap();
        service.oneshot(request).await.unwrap().into_body().collect().await.unwrap();
        left -= charged;
        fixture.wait_for_remaining(&limit(), "ann", left).await;
    }
}

/// The head settles at 5,000 in the background, while the body has ended already.
async fn settlements_in_the_background_keep_their_order(fixture: StoreFixture) {
    let limit = || per_day("bytes", 100_000).by(user_key());
    let settled = limit().cost(100).settle_by(|_| Some(5_000)).settle_at_end(|end| Some(end.bytes));
    let limits = fixture.builder([settled]).build();
    for round in 1..=20 {
        let service = limits.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Frames::new(&[7], End::Polled)))
        }));
        let request = Request::get("/").header("x-user", "ann").body(()).unwrap();
        service.oneshot(request).await.unwrap().into_body().collect().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(if fixture.is_memory { 0 } else { 20 })).await;
        fixture.wait_for_remaining(&limit(), "ann", 100_000 - 7 * round).await;
    }
}

#[tokio::test]
async fn a_body_settles_from_within_by_a_permit() {
    let limits = builder([per_day("bytes", 100_000)]).cost(100).permits().build();
    /// Settles when it is dropped.
    struct Settling(Frames, Permit);
    impl Body for Settling {
        type Data = Bytes;
        type Error = &'static str;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Pin::new(&mut self.0).poll_frame(context)
        }
    }
    impl Drop for Settling {
        fn drop(&mut self) {
            let (permit, left) = (self.1.clone(), self.0.lengths.len() as u64);
            tokio::spawn(async move { permit.settle(3 - left).await });
        }
    }
    let service = limits.layer(service_fn(async |request: Request<()>| {
        let permit = Permit::of(request.extensions()).unwrap();
        Ok::<_, Infallible>(Response::new(Settling(Frames::new(&[10, 10, 10], End::Known), permit)))
    }));
    let mut body = Box::pin(service.oneshot(get("/")).await.unwrap().into_body());
    let _ = (body.frame().await, body.frame().await);
    assert_eq!(used(&limits).await, 100);
    drop(body);
    tokio::task::yield_now().await;
    assert_eq!(used(&limits).await, 2);
}

#[tokio::test]
async fn a_permit_for_several_limits_does_not_settle_them_at_one_cost() {
    let limits = builder([per_day("requests", 100), per_day("bytes", 1_000), per_day("calls", 100).cost(1)]);
    let limits = limits.permits().build();
    let service = limits.layer(service_fn(async |request: Request<()>| {
        let permit = Permit::of(request.extensions()).unwrap();
        let error = permit.settle(40).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
        assert_eq!(
            error.to_string(),
            "a settlement is for several limits, [\"requests\", \"bytes\"]: name one by `permit.limit(name)`, or give the \
             others a cost of their own with `Limit::cost`"
        );
        permit.limit("bytes").unwrap().settle(40).await.unwrap();
        Ok::<_, Infallible>(Response::new(Frames::new(&[], End::Known)))
    }));
    let _ = service.oneshot(get("/")).await.unwrap();
    assert_eq!(used(&limits).await, 40);
}

#[test]
fn kept_bodies_can_not_be_observed() {
    const MESSAGE: &str = "the limit \"bytes\" settles or holds slots until the end of a response's body, which a layer \
                           with `keep_body` can't observe: leave out `keep_body`";
    let limits = layer([Log::default().limit()]);
    assert_eq!(panic_message(AssertUnwindSafe(|| limits.keep_body())), MESSAGE);
    let live = LiveLimits::new([per_day("bytes", 100)]);
    let kept = RateLimitLayer::live_builder(&live).build().keep_body();
    let error: ConfigError = live.replace([Log::default().limit()]).unwrap_err();
    assert_eq!(error.to_string(), MESSAGE);
    drop(kept);
    live.replace([Log::default().limit()]).unwrap();
}

#[test]
fn limiters_without_responses_have_no_bodies() {
    let error = RequestLimiter::builder([Log::default().limit()]).try_build().map(drop).unwrap_err();
    assert!(error.to_string().contains("takes its actual cost from a response"), "{error}");
}
