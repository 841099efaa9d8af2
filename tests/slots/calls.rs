//! Slots of operations without HTTP, and mistakes.

use std::future::{pending, ready};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, poll};
use http::Request;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::store::Sketch;
use tower_ratelimit::{
    AcquireError, CallError, Concurrency, Event, FixedWindow, Limit, Limiter, LiveLimits, MemoryStore, Penalty,
    RequestHead, RequestLimiter, StoreError, StoreErrorKind, TokenBucket, key,
};

fn limits(slots: u32) -> [Limit; 2] {
    [Limit::concurrent("streams", slots), Limit::new("requests", FixedWindow::per_day(100))]
}

/// Returns the slots and the tokens that Ann has left.
async fn unused(limiter: &Limiter) -> [u64; 2] {
    let state = limiter.peek("ann", 0).await.expect("an answer");
    [0, 1].map(|limit| state.outcomes()[limit].remaining())
}

#[tokio::test]
async fn calls_that_would_hold_no_slot_are_errors() {
    let live = LiveLimits::new(limits(2));
    for limiter in [Limiter::new(limits(2)), Limiter::live_builder(&live).build()] {
        let check = |error: StoreError| {
            assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
            assert!(error.to_string().contains("use `Limiter::hold`"), "{error}");
        };
        let of = |error: AcquireError| match error {
            AcquireError::Store(error) => check(error),
            error => panic!("{error}"),
        };
        check(limiter.acquire("ann", 1).await.unwrap_err());
        check(limiter.acquire_charges(&[(&"ann", 1), (&"ann", 1)]).await.unwrap_err());
        check(limiter.acquire_up_to("ann", 1..=5).await.unwrap_err());
        of(limiter.try_acquire("ann", 1).await.unwrap_err());
        of(limiter.wait("ann", 1).await.unwrap_err());
        of(limiter.wait_at_most("ann", 1, Duration::from_secs(1)).await.unwrap_err());
        assert_eq!(unused(&limiter).await, [2, 100]);
    }
}

#[tokio::test]
async fn an_operation_takes_one_slot_whatever_it_costs() {
    let limiter = Limiter::new(limits(2));
    for cost in [0, 1, 7] {
        let [_, before] = unused(&limiter).await;
        let held = limiter.hold("ann", cost).await.unwrap();
        assert_eq!(unused(&limiter).await, [1, before - cost], "{cost}");
        let other = limiter.hold_at_most("ann", cost, Duration::ZERO).await.unwrap();
        assert!(limiter.hold("ann", cost).await.unwrap_err().is_denied(), "{cost}");
        drop((held, other));
        assert_eq!(unused(&limiter).await, [2, before - 2 * cost], "{cost}");
    }
}

/// A reset while requests run must not make the count negative when they end.
#[tokio::test]
async fn a_reset_keeps_slots_in_use() {
    let limiter = Limiter::new(limits(2));
    let held = limiter.hold("ann", 10).await.unwrap();
    limiter.reset("ann").await.unwrap();
    limiter.limit("streams").unwrap().reset("ann").await.unwrap();
    assert_eq!(unused(&limiter).await, [1, 100]);
    let other = limiter.hold("ann", 1).await.unwrap();
    drop(held);
    assert_eq!(unused(&limiter).await, [1, 99]);
    drop(other);
    assert_eq!(unused(&limiter).await, [2, 99]);
}

/// The receipt of an operation refunds its tokens, and its slot stays until it is dropped.
#[tokio::test]
async fn a_receipt_has_no_slots() {
    let limiter = Limiter::new(limits(2));
    let held = limiter.hold("ann", 10).await.unwrap();
    limiter.refund((*held).clone().into_receipt()).await.unwrap();
    assert_eq!(unused(&limiter).await, [1, 100]);
    drop(held);
    assert_eq!(unused(&limiter).await, [2, 100]);
}

#[tokio::test]
async fn a_layer_of_calls_holds_a_slot_for_each_call() {
    let limiter = Limiter::new(limits(1));
    let limited = limiter.layer(|_: &u32| "ann");
    let hanging = service_fn(|_: u32| pending::<Result<u32, &str>>());
    let mut call = Box::pin(limited.layer(hanging).oneshot(1));
    assert!(poll!(call.as_mut()).is_pending());
    assert_eq!(unused(&limiter).await, [0, 99]);
    let double = service_fn(|number: u32| ready(if number > 0 { Ok(2 * number) } else { Err("zero") }));
    let error = limited.layer(double).oneshot(1).await.unwrap_err();
    assert!(matches!(error, CallError::Limited(error) if error.is_denied()));
    drop(call);
    assert_eq!(unused(&limiter).await, [1, 99]);
    assert_eq!(limited.layer(double).oneshot(4).await.unwrap(), 8);
    assert!(matches!(limited.layer(double).oneshot(0).await, Err(CallError::Service("zero"))));
    let panicking = service_fn(|_: u32| async { panic!("of a call") as Result<u32, &str> });
    assert!(AssertUnwindSafe(limited.layer(panicking).oneshot(1)).catch_unwind().await.is_err());
    assert_eq!(unused(&limiter).await, [1, 96]);
    // A call to which the limit does not apply.
    let others = limiter.layer(|_: &u32| "ann").charge("streams", |number| (*number > 1).then_some(("ann", 1)));
    let _held = limiter.hold("ann", 0).await.unwrap();
    assert_eq!(others.layer(double).oneshot(1).await.unwrap(), 2);
    assert!(others.layer(double).oneshot(2).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn calls_can_wait_for_a_slot() {
    let limiter = Limiter::new(limits(1));
    let limited = limiter.layer(|_: &u32| "ann").wait_at_most(Duration::from_secs(60));
    let mut slow = limited.layer(service_fn(async |number: u32| {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, &str>(number)
    }));
    let began = Instant::now();
    let answers = join_all((0..4).map(|number| slow.call(number))).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(began.elapsed() >= Duration::from_secs(40) && began.elapsed() < Duration::from_secs(43));
    assert_eq!(unused(&limiter).await, [1, 96]);
}

/// A call under the key of one client waits for a slot that another client's call returns.
#[tokio::test(start_paused = true)]
async fn a_returned_slot_wakes_waiting_calls_with_other_keys() {
    let limiter = Limiter::new(limits(1));
    let layer = limiter.layer(|number: &u32| *number).charge("streams", |_| Some(("ann", 1)));
    let layer = layer.wait_at_most(Duration::from_secs(60));
    let mut slow = layer.layer(service_fn(async |_: u32| {
        sleep(Duration::from_millis(10)).await;
        Ok::<_, &str>(())
    }));
    let began = Instant::now();
    join_all((0..4).map(|number| slow.call(number))).await.into_iter().for_each(|call| call.unwrap());
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_was_taken_before_limits_were_replaced_wakes_waiting_operations() {
    let live = LiveLimits::new(limits(1));
    let limiter = Limiter::live_builder(&live).build();
    let held = limiter.hold("ann", 1).await.unwrap();
    live.replace(limits(1)).unwrap();
    let began = Instant::now();
    let waiter = limiter.clone();
    let waiting = tokio::spawn(async move { waiter.hold_at_most("ann", 1, Duration::from_secs(60)).await });
    sleep(Duration::from_millis(10)).await;
    drop(held);
    drop(waiting.await.unwrap().unwrap());
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slots_that_are_returned_together_wake_all_operations_in_order_whatever_they_cost() {
    let limiter = Limiter::new(limits(3));
    let held = [limiter.hold("ann", 5).await, limiter.hold("ann", 5).await, limiter.hold("ann", 5).await];
    let began = Instant::now();
    let mut waiting = Vec::new();
    for cost in [5, 0, 5] {
        let waiter = limiter.clone();
        let wait = async move { waiter.hold_at_most("ann", cost, Duration::from_secs(60)).await };
        waiting.push(tokio::spawn(wait));
        sleep(Duration::from_millis(10)).await;
    }
    drop(held);
    // One that costs nothing takes a slot, too, and waits for its turn.
    let later = limiter.clone();
    let mut later = Box::pin(async move { later.hold_at_most("ann", 0, Duration::from_secs(60)).await });
    assert!(poll!(&mut later).is_pending());
    let mut granted = Vec::new();
    for waiting in waiting {
        granted.push(waiting.await.unwrap().unwrap());
    }
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    drop(granted);
    drop(later.await.unwrap());
}

/// They expire, so that any number of keys may be in use although few requests are.
#[tokio::test]
async fn slots_that_nobody_holds_leave_a_memory_store_its_bound() {
    let store = Arc::new(MemoryStore::new().max_keys(1_000));
    let streams = Limit::concurrent("streams", 2).by(key::header("x-user"));
    let limiter = RequestLimiter::builder([streams]).store(store.clone()).build();
    for user in 0..5_000 {
        let request = Request::get("/").header("x-user", user).body(()).unwrap();
        assert!(limiter.decide(&RequestHead::of(&request)).await.unwrap().is_allowed());
    }
    assert!(store.keys() <= 1_000, "{}", store.keys());
}

#[test]
fn options_of_other_limits_are_mistakes() {
    let streams = || Limit::concurrent("streams", 2);
    let rate = || Limit::new("requests", FixedWindow::per_day(100));
    for (limit, message) in [
        (streams().cost(2), "has a cost, but takes one slot for each request: leave it out"),
        (streams().cost_by(|_| 1), "has a cost, but takes one slot for each request: leave it out"),
        (streams().count_if(|_| true), "has an actual cost, but takes one slot for each request: leave it out"),
        (streams().settle_by(|_| None), "has an actual cost, but takes one slot for each request: leave it out"),
        (streams().settle_at_end(|_| None), "has an actual cost, but takes one slot for each request: leave it out"),
        (streams().debt(50), "has a debt, but takes one slot for each request: leave it out"),
        (streams().quota_mode(), "has quota mode, but returns its slots: leave it out"),
        (rate().longest_hold(Duration::from_secs(1)), "has a longest hold, but has no slots: leave it out"),
        (rate().until_head(), "has `until_head`, but has no slots: leave it out"),
    ] {
        let error = crate::builder([limit]).try_build().unwrap_err().to_string();
        assert!(error.ends_with(message), "{error}");
    }
    assert!(Concurrency::try_limit(0).is_err());
    for (millis, is_valid) in [(999, false), (1_000, true), (1_001, true), (367 * 86_400_000, false)] {
        let living = Concurrency::limit(1).try_time_to_live(Duration::from_millis(millis));
        assert_eq!(living.is_ok(), is_valid, "{millis}");
    }
    assert!(Concurrency::limit(1).try_time_to_live(Duration::from_micros(1_000_500)).is_err());
}

/// A sketch forgets whose slots it counts, so that they could not be returned.
#[test]
fn sketches_keep_no_slots() {
    for store in [MemoryStore::sketch(Sketch::new()), MemoryStore::new().overflow(Sketch::new())] {
        assert!(crate::builder([Limit::concurrent("streams", 2)]).store(store).try_build().is_err());
    }
}

#[tokio::test]
async fn a_waiter_that_lacks_a_slot_and_a_token_waits_for_both() {
    let limits = [Limit::concurrent("streams", 1), Limit::new("requests", TokenBucket::per_second(2).burst(1))];
    let limiter = Limiter::new(limits);
    let held = limiter.hold("ann", 1).await.unwrap();
    let of_task = limiter.clone();
    let waiter =
        tokio::spawn(async move { of_task.hold_at_most("ann", 1, Duration::from_millis(900)).await.map(drop) });
    sleep(Duration::from_millis(100)).await;
    drop(held);
    waiter.await.unwrap().expect("a slot is free after 100 ms, and a token after 500 ms");
}

#[tokio::test]
async fn a_locked_out_waiter_is_denied_at_once() {
    let limiter = Limiter::new([Limit::concurrent("streams", 1).penalty(Penalty::after(1, Duration::from_secs(60)))]);
    let held = limiter.hold("ann", 1).await.unwrap();
    limiter.hold("ann", 1).await.unwrap_err();
    drop(held);
    let began = Instant::now();
    limiter.hold_at_most("ann", 1, Duration::from_secs(2)).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn strikes_of_impossible_requests_evict_no_slot_in_use() {
    let store = Arc::new(MemoryStore::new().max_keys(16));
    let slots = Limiter::builder([Limit::concurrent("streams", 4)]).store(store.clone()).build();
    let penalty = Limit::new("requests", FixedWindow::per_day(3)).penalty(Penalty::after(5, Duration::from_secs(60)));
    let rates = Limiter::builder([penalty]).store(store.clone()).build();
    let mut held = Vec::new();
    for key in 0..32_u64 {
        held.push(slots.hold(key, 1).await.unwrap());
    }
    for key in 0..1_000_u64 {
        assert!(!rates.acquire(key, 1_000).await.unwrap().is_allowed());
    }
    let mut lost = 0;
    for key in 0..32_u64 {
        lost += u32::from(slots.peek(key, 0).await.unwrap().outcomes()[0].remaining() == 4);
    }
    assert_eq!(lost, 0, "keys in use were evicted");
}

#[tokio::test]
async fn a_recorder_that_panics_leaks_no_slot() {
    let panics = Arc::new(AtomicBool::new(true));
    let now = panics.clone();
    let limiter = Limiter::builder([Limit::concurrent("streams", 1)])
        .observe(move |event: &Event<'_>| {
            if matches!(event, Event::SlotTaken { .. }) && now.swap(false, Ordering::Relaxed) {
                panic!("of a recorder");
            }
        })
        .build();
    let of_task = limiter.clone();
    assert!(tokio::spawn(async move { of_task.hold("ann", 1).await.map(drop) }).await.is_err());
    let _ = limiter.hold("ann", 1).await.expect("nobody holds a slot");
}
