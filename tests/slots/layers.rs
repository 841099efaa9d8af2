//! Slots of a layer's requests, from the decision to the end of the response.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use futures_util::{FutureExt, poll, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use support::answer::ask;
use support::database::{Database, Fault};
use support::patient::Patient;
use support::store_fixture::user_key;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{
    Concurrency, FixedWindow, KeyList, LeakyBucketQueue, Limit, LiveLimits, MemoryStore, Permit, RateLimitLayer,
    SystemClock, TokenBucket, key, when,
};

use crate::{get, layer, requests, respond, streams, unused};

fn data(text: &'static str) -> Result<Frame<axum::body::Bytes>, io::Error> {
    Ok(Frame::data(text.into()))
}

fn body(frames: Vec<Result<Frame<axum::body::Bytes>, io::Error>>) -> Body {
    Body::new(StreamBody::new(stream::iter(frames)))
}

/// The slot was once returned with the head: hundreds of streams ran under a limit of eight.
#[tokio::test]
async fn a_slot_is_held_until_the_body_has_ended() {
    let trailers = || Ok(Frame::trailers(HeaderMap::new()));
    let known: fn() -> Body = || Body::from("all");
    let polled: fn() -> Body = || body(vec![data("a"), data("b")]);
    let failing: fn() -> Body = || body(vec![data("a"), Err(io::Error::other("torn"))]);
    let with_trailers = move || body(vec![data("a"), data("b"), trailers()]);
    for (name, body, polls, is_dropped) in [
        ("the last frame is known", &known as &(dyn Fn() -> Body + Sync), 1, false),
        ("the end is polled", &polled, 3, false),
        ("trailers", &with_trailers, 3, false),
        ("a failure", &failing, 2, false),
        ("dropped before its first frame", &known, 0, true),
        ("dropped before its end", &polled, 2, true),
        ("dropped before its trailers", &with_trailers, 2, true),
    ] {
        let limits = layer([streams(1), requests(100)]);
        let service = limits.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(body()))));
        let response = service.clone().oneshot(get("ann")).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = Box::pin(response.into_body());
        for _ in 0..polls {
            assert_eq!(unused(&limits).await, [0, 99], "{name}");
            let _ = body.frame().await;
        }
        if is_dropped {
            assert_eq!(ask(&service, get("ann")).await.status, 429, "{name}");
            drop(body);
        } else {
            assert_eq!(unused(&limits).await[0], 1, "{name}");
            // Polled after its end, and dropped.
            let _ = body.frame().await;
            drop(body);
        }
        assert_eq!(unused(&limits).await, [1, 99], "{name}");
        assert_eq!(service.oneshot(get("ann")).await.unwrap().status(), 200, "{name}");
    }
}

/// Such responses have no end of a body that anything could wait for.
#[tokio::test]
async fn responses_without_a_body_hold_no_slot() {
    let limits = layer([streams(1)]);
    for status in [200, 204, 304] {
        let service = respond(&limits, move || Response::builder().status(status).body(Body::empty()).unwrap());
        let response = service.oneshot(get("ann")).await.unwrap();
        assert_eq!((response.status().as_u16(), unused(&limits).await[0]), (status, 1));
    }
}

#[tokio::test]
async fn a_request_without_a_response_returns_its_slot() {
    let limits = layer([streams(1), requests(100)]);
    let failing = limits.layer(service_fn(|_: Request<Body>| ready(Err::<Response<Body>, _>("no response"))));
    assert!(failing.oneshot(get("ann")).await.is_err());
    assert_eq!(unused(&limits).await, [1, 99]);

    let hanging = limits.layer(service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>()));
    let mut call = Box::pin(hanging.oneshot(get("ann")));
    assert!(poll!(call.as_mut()).is_pending());
    assert_eq!(unused(&limits).await, [0, 98]);
    drop(call);
    assert_eq!(unused(&limits).await, [1, 98]);

    async fn panics(_: Request<Body>) -> Result<Response<Body>, Infallible> {
        panic!("of a handler");
    }
    let call = limits.layer(service_fn(panics)).oneshot(get("ann"));
    assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
    assert_eq!(unused(&limits).await, [1, 97]);

    #[allow(unreachable_code, reason = "the type of its future")]
    let panics_at_once = service_fn(|_: Request<Body>| {
        panic!("of a service");
        ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    });
    let call = limits.layer(panics_at_once).oneshot(get("ann"));
    assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
    assert_eq!(unused(&limits).await, [1, 96]);

    let panicking = || Body::from_stream(stream::once(async { panic!("of a body") as Result<&str, io::Error> }));
    let response = respond(&limits, move || Response::new(panicking())).oneshot(get("ann")).await.unwrap();
    assert_eq!(unused(&limits).await, [0, 95]);
    assert!(AssertUnwindSafe(response.into_body().collect()).catch_unwind().await.is_err());
    assert_eq!(unused(&limits).await, [1, 95]);
}

/// A service that is never ready, or has failed.
#[derive(Clone)]
struct NotReady(bool);

impl Service<Request<Body>> for NotReady {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if self.0 { Poll::Ready(Err("broken")) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        unreachable!("it is not ready")
    }
}

#[tokio::test]
async fn a_request_whose_service_is_not_ready_takes_no_slot() {
    let limits = layer([streams(1), requests(100)]);
    let mut waiting = pin!(limits.layer(NotReady(false)).oneshot(get("ann")));
    assert!(poll!(waiting.as_mut()).is_pending());
    assert_eq!(unused(&limits).await, [1, 100]);
    assert!(limits.layer(NotReady(true)).oneshot(get("ann")).await.is_err());
    assert_eq!(unused(&limits).await, [1, 100]);
}

/// The other side of holding slots to the end of the body: slow downloads use them up.
#[tokio::test]
async fn until_head_returns_the_slot_before_the_body() {
    let heads = Limit::concurrent("heads", 1).by(user_key()).until_head();
    let limits = layer([streams(2), heads]);
    let service = limits.layer(service_fn(async |_: Request<Body>| {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(Response::new(Body::from("all")))
    }));
    let mut call = Box::pin(service.clone().oneshot(get("ann")));
    assert!(poll!(call.as_mut()).is_pending());
    assert_eq!(unused(&limits).await, [1, 0]);
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    let response = call.await.unwrap();
    assert_eq!(unused(&limits).await, [1, 1]);
    drop(response);
    assert_eq!(unused(&limits).await, [2, 1]);
}

#[tokio::test]
async fn a_layer_that_keeps_bodies_holds_slots_until_the_head_only() {
    let limits = layer([Limit::concurrent("streams", 1).by(user_key()).until_head()]).keep_body();
    let hello = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("hello"))));
    let responses = [limits.layer(hello).oneshot(get("ann")).await, limits.layer(hello).oneshot(get("ann")).await];
    assert!(responses.iter().all(|response| response.as_ref().unwrap().status() == 200));

    let limits = layer([streams(1)]);
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| limits.keep_body())).unwrap_err();
    let message = panic.downcast::<String>().unwrap();
    assert!(message.contains("holds slots until the end of a response's body"), "{message}");
    // Also if the limit comes later.
    let live = LiveLimits::new([requests(1)]);
    let _kept = RateLimitLayer::live_builder(&live).build().keep_body();
    assert!(live.replace([streams(1)]).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_free_after_the_longest_hold() {
    let limits = layer([streams(1).longest_hold(Duration::from_secs(10))]);
    let service = respond(&limits, || Response::new(Body::from("all")));
    let first = service.clone().oneshot(get("ann")).await.unwrap();
    sleep(Duration::from_millis(9_900)).await;
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    sleep(Duration::from_millis(200)).await;
    let second = service.clone().oneshot(get("ann")).await.unwrap();
    assert_eq!(second.status(), 200);
    // It has no slot any more, so the slot of the second request stays.
    drop(first);
    assert_eq!(unused(&limits).await, [0]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(unused(&limits).await, [0]);
    drop(second);
    assert_eq!(unused(&limits).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn requests_that_have_ended_leave_no_timers() {
    let limits = layer([streams(1).longest_hold(Duration::from_secs(3_600))]);
    let service = respond(&limits, || Response::new(Body::from("all")));
    for _ in 0..100 {
        assert_eq!(ask(&service, get("ann")).await.status, 200);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

/// A delayed request holds its slot, which takes the place of the next one in the queue.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_in_a_queue_holds_its_slot() {
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(10)).by(user_key());
    let limits = layer([streams(2), queue]);
    let service = respond(&limits, || Response::new(Body::from("all")));
    let first = service.clone().oneshot(get("ann")).await.unwrap();
    let mut second = Box::pin(service.clone().oneshot(get("ann")));
    assert!(poll!(second.as_mut()).is_pending());
    assert_eq!(unused(&limits).await[0], 0);
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    // Dropped while it waits: both come back.
    drop(second);
    assert_eq!(unused(&limits).await[0], 1);
    let began = Instant::now();
    let second = service.clone().oneshot(get("ann")).await.unwrap();
    let waited = began.elapsed();
    assert!(waited > Duration::from_millis(900) && waited < Duration::from_millis(1_100), "{waited:?}");
    assert_eq!(unused(&limits).await[0], 0);
    drop((first, second));
    assert_eq!(unused(&limits).await[0], 2);
}

#[tokio::test]
async fn a_request_takes_the_slots_of_all_limits_or_none() {
    let limits = layer([streams(1), Limit::concurrent("all", 3).by(key::from_fn(|_| Some("ann"))), requests(2)]);
    let service = respond(&limits, || Response::new(Body::from("all")));
    let ann = service.clone().oneshot(get("ann")).await.unwrap();
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    let bob = service.clone().oneshot(get("bob")).await.unwrap();
    let eve = service.clone().oneshot(get("eve")).await.unwrap();
    assert_eq!(ask(&service, get("joe")).await.status, 429);
    assert_eq!(unused(&limits).await, [0, 0, 1]);
    drop((ann, bob, eve));
    assert_eq!(unused(&limits).await, [1, 3, 1]);
    let ann = service.clone().oneshot(get("ann")).await.unwrap();
    drop(ann);
    // Without a token, it takes no slot.
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    assert_eq!(unused(&limits).await, [1, 3, 0]);
}

#[tokio::test]
async fn limits_that_do_not_apply_take_no_slots() {
    let listed = KeyList::new(user_key(), ["vip"]);
    let banned = KeyList::new(user_key(), ["eve"]);
    let uploads = streams(1).when(when::header("x-upload", "1"));
    let limits = crate::builder([uploads]).never_limit(listed).always_reject(banned).build();
    let service = respond(&limits, || Response::new(Body::from("all")));
    let upload = |user| Request::get("/").header("x-user", user).header("x-upload", "1").body(Body::empty()).unwrap();
    let exempt = [service.clone().oneshot(upload("vip")).await, service.clone().oneshot(upload("vip")).await];
    let download = service.clone().oneshot(get("ann")).await.unwrap();
    let statuses = [&exempt[0], &exempt[1]].map(|exempt| exempt.as_ref().unwrap().status());
    assert_eq!((statuses, download.status()), ([StatusCode::OK; 2], StatusCode::OK));
    assert_eq!(ask(&service, upload("eve")).await.status, 403);
    assert_eq!(unused(&limits).await, [1]);
    let held = service.clone().oneshot(upload("ann")).await.unwrap();
    assert_eq!(ask(&service, upload("ann")).await.status, 429);
    drop((exempt, download));
    assert_eq!(ask(&service, upload("ann")).await.status, 429);
    drop(held);
    assert_eq!(unused(&limits).await, [1]);
}

#[tokio::test]
async fn a_limit_in_shadow_mode_denies_nothing_and_counts_what_it_would_allow() {
    for limits in [layer([streams(2).shadow()]), crate::builder([streams(2)]).shadow().build()] {
        let service = respond(&limits, || Response::new(Body::from("all")));
        let mut held = Vec::new();
        for left in [1, 0, 0, 0] {
            held.push(service.clone().oneshot(get("ann")).await.unwrap());
            assert_eq!((held[0].status(), unused(&limits).await[0]), (StatusCode::OK, left));
        }
        // Of those beyond the limit, none has a slot to return.
        held.truncate(2);
        assert_eq!(unused(&limits).await, [0]);
        held.truncate(1);
        assert_eq!(unused(&limits).await, [1]);
        drop(held);
        assert_eq!(unused(&limits).await, [2]);
    }
}

#[tokio::test]
async fn nested_layers_with_costs_take_one_slot() {
    let limits = layer([streams(2), requests(100)]);
    let hello = || service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("hello"))));
    let mut left = 100;
    for cost in [0, 1, 5] {
        let service = limits.layer(limits.cost(cost).layer(hello()));
        let response = service.oneshot(get("ann")).await.unwrap();
        left -= cost;
        assert_eq!(unused(&limits).await, [1, left]);
        drop(response);
        assert_eq!(unused(&limits).await, [2, left]);
    }
    // On its own.
    let response = limits.cost(0).layer(hello()).oneshot(get("ann")).await.unwrap();
    assert_eq!(unused(&limits).await, [1, left]);
    drop(response);
    // The route is denied what it costs, and the request returns its slot with the token of the router.
    let costly = limits.layer(limits.cost_by(|_| 99).layer(hello()));
    assert_eq!(ask(&costly, get("ann")).await.status, 429);
    assert_eq!(unused(&limits).await, [2, left]);
}

/// A double release would free the slot of another request.
#[tokio::test]
async fn permits_and_settlements_leave_slots_alone() {
    let counted = requests(100).count_if(|response| response.status != 201);
    let settled = Limit::new("bytes", FixedWindow::per_day(1_000)).by(user_key()).cost(10).settle_by(|_| Some(20));
    let at_end = Limit::new("sent", FixedWindow::per_day(1_000)).by(user_key()).settle_at_end(|end| Some(end.bytes));
    let limits = crate::builder([streams(2), counted, settled, at_end]).permits().build();
    let other = respond(&limits, || Response::new(Body::from("all"))).oneshot(get("ann")).await.unwrap();
    for case in 0..8 {
        let service = limits.layer(service_fn(move |request: Request<Body>| async move {
            let permit = Permit::of(request.extensions()).unwrap();
            let slot = permit.limit("streams").unwrap();
            match case {
                0 => drop(permit.charge(3).await.unwrap()),
                1 => permit.refund().await.unwrap(),
                2 => permit.reset().await.unwrap(),
                3 => drop(slot.charge(1).await.unwrap()),
                4 => slot.refund().await.unwrap(),
                5 => slot.reset().await.unwrap(),
                6 => drop(slot.settle(0).await.unwrap()),
                _ => drop(slot.settle(9).await.unwrap()),
            }
            Ok::<_, Infallible>(Response::builder().status(201).body(Body::from("all")).unwrap())
        }));
        let response = service.clone().oneshot(get("ann")).await.unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(unused(&limits).await[0], 0, "{case}");
        assert_eq!(ask(&service, get("ann")).await.status, 429, "{case}");
        drop(response);
        assert_eq!(unused(&limits).await[0], 1, "{case}");
    }
    drop(other);
    assert_eq!(unused(&limits).await[0], 2);
}

#[tokio::test]
async fn a_permit_holds_the_slot_beyond_the_response() {
    let limits = crate::builder([streams(1)]).permits().build();
    let (sender, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let service = limits.layer(service_fn(move |request: Request<Body>| {
        let permit = Permit::of(request.extensions()).unwrap();
        sender.send((permit.hold().expect("a slot"), permit)).unwrap();
        ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    }));
    assert_eq!(ask(&service, get("ann")).await.status, 200);
    assert_eq!(unused(&limits).await, [0]);
    let (held, permit) = kept.recv().await.unwrap();
    let again = permit.hold();
    drop(held);
    assert_eq!(unused(&limits).await, [0]);
    drop(again);
    assert_eq!(unused(&limits).await, [1]);
    assert!(permit.hold().is_none());
}

#[tokio::test]
async fn a_permit_holds_nothing_that_was_released() {
    let limits = crate::builder([streams(1).until_head()]).permits().build();
    let (sender, mut permits) = tokio::sync::mpsc::unbounded_channel();
    let service = limits.layer(service_fn(move |request: Request<Body>| {
        sender.send(Permit::of(request.extensions()).unwrap()).unwrap();
        ready(Ok::<_, Infallible>(Response::new(Body::from("all"))))
    }));
    let response = service.oneshot(get("ann")).await.unwrap();
    assert!(permits.recv().await.unwrap().hold().is_none());
    drop(response);
    // Without a concurrency limit, there is nothing to hold.
    let limits = crate::builder([requests(1)]).permits().build();
    let service = limits.layer(service_fn(|request: Request<Body>| {
        assert!(Permit::of(request.extensions()).unwrap().hold().is_none());
        ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    }));
    assert_eq!(ask(&service, get("ann")).await.status, 200);
}

#[tokio::test]
async fn slots_in_use_survive_a_replacement_of_limits() {
    let live = LiveLimits::new([streams(2)]);
    let limits = RateLimitLayer::live_builder(&live).build();
    let service = respond(&limits, || Response::new(Body::from("all")));
    let first = service.clone().oneshot(get("ann")).await.unwrap();
    let second = service.clone().oneshot(get("ann")).await.unwrap();
    live.replace([streams(3)]).unwrap();
    let third = service.clone().oneshot(get("ann")).await.unwrap();
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    live.replace([requests(10)]).unwrap();
    drop(first);
    live.replace([requests(10), streams(1)]).unwrap();
    drop(second);
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    drop(third);
    assert_eq!(ask(&service, get("ann")).await.status, 200);
}

#[tokio::test]
async fn requests_and_keys_can_have_other_numbers_of_slots() {
    let pro = when::header("x-plan", "pro");
    let limits = layer([streams(1).overridable().size_when(pro, Concurrency::limit(3))]);
    let service = respond(&limits, || Response::new(Body::from("all")));
    let pro = || Request::get("/").header("x-user", "ann").header("x-plan", "pro").body(Body::empty()).unwrap();
    let held = [service.clone().oneshot(pro()).await, service.clone().oneshot(pro()).await];
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    let handle = limits.limit("streams").unwrap();
    handle.set_override("ann", Concurrency::limit(4), None).await.unwrap();
    let more = [service.clone().oneshot(get("ann")).await, service.clone().oneshot(get("ann")).await];
    assert!(more.iter().all(|response| response.as_ref().unwrap().status() == 200));
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    drop(held);
    handle.set_override("ann", Concurrency::limit(2), None).await.unwrap();
    assert_eq!(ask(&service, get("ann")).await.status, 429);
    drop(more);
    assert_eq!(unused(&limits).await, [2]);
}

/// A slot in use must never be evicted, because its release would free the slot of another request.
#[tokio::test]
async fn a_full_memory_store_evicts_no_slot_in_use() {
    let store = Arc::new(MemoryStore::new().max_keys(1));
    let rate = Limit::new("requests", TokenBucket::per_day(3)).by(user_key());
    let limits = RateLimitLayer::builder([streams(1)]).store(store.clone()).build();
    let rates = RateLimitLayer::builder([rate]).store(store.clone()).build();
    let slow = respond(&limits, || Response::new(Body::from("all")));
    let quick = respond(&rates, || Response::new(Body::from("all")));
    let statuses = async |service: &_, user| {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(ask(service, get(user)).await.status.as_u16());
        }
        statuses
    };
    let held = slow.clone().oneshot(get("ann")).await.unwrap();
    for user in 0..1_000 {
        assert_eq!(ask(&quick, get(&user.to_string())).await.status, 200);
        assert_eq!(ask(&slow, get(&user.to_string())).await.status, 200);
    }
    assert_eq!(ask(&slow, get("ann")).await.status, 429);
    // Other keys have room beside it.
    let others = slow.clone().oneshot(get("bob")).await.unwrap();
    assert_eq!(ask(&slow, get("bob")).await.status, 429);
    assert_eq!(statuses(&quick, "bob").await, [200, 200, 200, 429]);
    drop((held, others));
    assert_eq!(unused(&limits).await, [1]);
    assert_eq!(statuses(&quick, "carl").await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn keys_without_requests_in_flight_take_no_memory() {
    let store = Arc::new(MemoryStore::new());
    let limits = RateLimitLayer::builder([streams(1)]).store(store.clone()).build();
    let service = respond(&limits, || Response::new(Body::from("all")));
    for user in 0..1_000 {
        assert_eq!(ask(&service, get(&user.to_string())).await.status, 200);
    }
    assert_eq!(store.keys(), 0);
}

/// As if clients disconnected while a remote store decides.
#[tokio::test]
async fn a_request_that_is_cancelled_while_the_store_decides_keeps_no_slot() {
    let database = Database::new(SystemClock::new(), Fault::None).latency(Duration::from_millis(5));
    let limits = crate::builder([streams(4)]).store(CasStore::new(database)).patient().build();
    let service = respond(&limits, || Response::new(Body::from("all")));
    for after in 0..40 {
        let call = service.clone().oneshot(get("ann"));
        let _ = tokio::time::timeout(Duration::from_millis(after), call).await;
    }
    crate::wait_for_unused(&limits, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_waits_for_its_lookup_takes_no_slot_before() {
    let slow = key::from_async_fn(|_| async {
        sleep(Duration::from_secs(1)).await;
        Some("ann")
    });
    let limits = layer([Limit::concurrent("streams", 1).by(slow)]);
    let service = respond(&limits, || Response::new(Body::from("all")));
    let mut call = Box::pin(service.oneshot(get("ann")));
    assert!(poll!(call.as_mut()).is_pending());
    assert_eq!(unused(&limits).await, [1]);
    advance(Duration::from_secs(2)).await;
    let response = call.await.unwrap();
    assert_eq!(unused(&limits).await, [0]);
    drop(response);
    assert_eq!(unused(&limits).await, [1]);
}
