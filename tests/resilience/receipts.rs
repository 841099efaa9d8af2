//! Charges are refunded where they were made, and nowhere else.

use std::convert::Infallible;

use http::{Request, Response};
use support::calls::Calls;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    CircuitBreaker, DecidedBy, FixedWindow, LeakyBucketQueue, Limit, Limiter, LiveLimits, Permit, RateLimitLayer,
};

use crate::limited::{LOCALLY, ask, hello, ms, without_breaker};
use support::faulty_store::{FaultyStore, Mode, Operation};

async fn remaining(limiter: &Limiter) -> (DecidedBy, u64) {
    let decision = limiter.peek("key", 1).await.expect("a decision");
    (decision.decided_by(), decision.outcomes()[0].remaining())
}

#[tokio::test(start_paused = true)]
async fn a_local_charge_is_refunded_locally() {
    let store = FaultyStore::new(Mode::Fails);
    let limiter = without_breaker(&store).on_store_error(LOCALLY).build();
    let (one, two) = (limiter.acquire("key", 4).await, limiter.acquire("key", 5).await);
    let (one, two) = (one.expect("a decision").into_receipt(), two.expect("a decision").into_receipt());
    assert_eq!(remaining(&limiter).await, (DecidedBy::Local, 1));
    limiter.refund(one).await.expect("a refund");
    assert_eq!(remaining(&limiter).await, (DecidedBy::Local, 5));
    // Even after the store has recovered.
    store.set(Mode::Works);
    assert!(limiter.allows("key", 3).await);
    limiter.refund(two).await.expect("a refund");
    assert_eq!(store.asked(Operation::Refund), 0);
    assert_eq!(remaining(&limiter).await, (DecidedBy::Store, 7));
    store.set(Mode::Fails);
    assert_eq!(remaining(&limiter).await, (DecidedBy::Local, 10));
}

#[tokio::test(start_paused = true)]
async fn a_charge_of_the_store_is_not_refunded_locally() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = without_breaker(&store).on_store_error(LOCALLY).build();
    let receipts = [(); 2].map(|()| limiter.acquire("key", 3));
    let mut receipts = Vec::from(receipts);
    let (two, one) = (receipts.pop().expect("two"), receipts.pop().expect("one"));
    let (one, two) = (one.await.expect("a decision").into_receipt(), two.await.expect("a decision").into_receipt());
    store.set(Mode::Fails);
    assert!(limiter.allows("key", 10).await);
    assert!(limiter.refund(one).await.is_err());
    assert_eq!(remaining(&limiter).await, (DecidedBy::Local, 0));
    store.set(Mode::Works);
    limiter.refund(two).await.expect("a refund");
    assert_eq!(remaining(&limiter).await, (DecidedBy::Store, 7));
}

#[tokio::test(start_paused = true)]
async fn a_receipt_without_charges_refunds_nothing() {
    let store = FaultyStore::new(Mode::Fails);
    let limiter = without_breaker(&store).on_store_error(tower_ratelimit::OnStoreError::Allow).build();
    let receipt = limiter.acquire("key", 1).await.expect("a decision").into_receipt();
    assert!(receipt.is_empty());
    limiter.refund(receipt).await.expect("nothing is asked");
    assert_eq!(store.asked(Operation::Refund), 0);
}

#[tokio::test(start_paused = true)]
async fn a_local_receipt_of_another_limiter_refunds_nothing() {
    let store = FaultyStore::new(Mode::Fails);
    let [one, other] = [(); 2].map(|()| without_breaker(&store).on_store_error(LOCALLY).build());
    let receipt = one.acquire("key", 5).await.expect("a decision").into_receipt();
    assert!(other.allows("key", 5).await);
    other.refund(receipt).await.expect("nothing is refunded");
    assert_eq!(remaining(&other).await, (DecidedBy::Local, 5));
    // Clones count as the same limiter.
    let receipt = one.clone().acquire("key", 2).await.expect("a decision").into_receipt();
    one.refund(receipt).await.expect("a refund");
    assert_eq!(remaining(&one).await, (DecidedBy::Local, 5));
}

/// A queue with one slot per second, in which three requests may wait, and a limit of ten per day.
fn queue() -> [Limit; 2] {
    [Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(3)), Limit::new("day", FixedWindow::per_day(10))]
}

/// A cancelled wait is refunded where its slot was taken.
async fn a_slot_is_refunded(store: &FaultyStore) {
    let layer = RateLimitLayer::builder(queue()).store(store.clone()).on_store_error(LOCALLY).build();
    let service = layer.layer(hello());
    assert_eq!(ask(&service, Request::new(())).await.after, ms(0));
    let waits = tokio::spawn(service.clone().oneshot(Request::new(())));
    sleep(ms(10)).await;
    waits.abort();
    assert!(waits.await.is_err());
    sleep(ms(10)).await;
    let next = ask(&service, Request::new(())).await;
    assert!(next.after <= ms(1_000), "{:?}", next.after);
    assert!(next.header("ratelimit").is_some_and(|reported| reported.contains("\"day\";r=8")), "{:?}", next.headers);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_returns_its_slot_to_a_store_that_answers_later() {
    let store = FaultyStore::new(Mode::Works);
    a_slot_is_refunded(&store).await;
    assert_eq!((store.asked(Operation::Refund), store.answered(Operation::Refund)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_canceled_local_wait_returns_its_slot() {
    let store = FaultyStore::new(Mode::FailsAtOnce);
    a_slot_is_refunded(&store).await;
    assert_eq!(store.asked(Operation::Refund), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_of_a_limiter_returns_its_slot() {
    for (mode, refunds) in [(Mode::Works, 1), (Mode::FailsAtOnce, 0)] {
        let store = FaultyStore::new(mode);
        let limiter = Limiter::builder(queue()).store(store.clone()).on_store_error(LOCALLY).build();
        assert!(limiter.wait("key", 1).await.is_ok());
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.wait("key", 2).await.map(drop) }
        });
        sleep(ms(10)).await;
        waits.abort();
        assert!(waits.await.is_err());
        sleep(ms(10)).await;
        let decision = limiter.peek("key", 1).await.expect("a decision");
        assert!(decision.delay() <= ms(1_000), "{:?}", decision.delay());
        assert_eq!(decision.outcomes()[1].remaining(), 9);
        assert_eq!((store.asked(Operation::Refund), store.answered(Operation::Refund)), (refunds, refunds));
    }
}

/// Nothing panics outside a runtime.
#[test]
fn a_request_cancelled_outside_a_runtime_stays_charged() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let store = FaultyStore::new(Mode::Works);
    let layer = RateLimitLayer::builder(queue()).store(store.clone()).build();
    let service = layer.layer(hello());
    let waits = runtime.block_on(async {
        assert_eq!(ask(&service, Request::new(())).await.status, 200);
        let mut waits = Box::pin(service.clone().oneshot(Request::new(())));
        tokio::select! {
            biased;
            _ = waits.as_mut() => panic!("it waits"),
            () = sleep(ms(20)) => {}
        }
        (waits, ())
    });
    drop(waits);
    assert_eq!(store.answered(Operation::Refund), 0, "nobody waits for it");
}

/// At any position that a replacement has given the limit.
#[tokio::test(start_paused = true)]
async fn a_local_receipt_is_refunded_after_the_limit_has_moved() {
    let [a, b] = ["a", "b"].map(|name| move || Limit::new(name, FixedWindow::per_day(10)));
    let rules = LiveLimits::new([a()]);
    let limiter =
        Limiter::live_builder(&rules).store(FaultyStore::new(Mode::FailsAtOnce)).on_store_error(LOCALLY).build();
    let receipt = limiter.acquire("key", 4).await.expect("a decision").into_receipt();
    rules.replace([b(), a()]).expect("the limits are valid");
    limiter.refund(receipt).await.expect("a refund");
    let left = limiter.peek("key", 1).await.expect("a decision");
    assert_eq!(left.outcomes().iter().map(|outcome| outcome.remaining()).collect::<Vec<_>>(), [10, 10]);
}

/// A permit whose charges were made by the store, by this process, and by the store again.
#[tokio::test(start_paused = true)]
async fn a_refund_that_fails_does_not_stop_the_others() {
    let store = FaultyStore::new(Mode::Works);
    let layer = RateLimitLayer::builder(Limit::new("ten", FixedWindow::per_day(100)))
        .store(store.clone())
        .circuit_breaker(CircuitBreaker::off())
        .on_store_error(LOCALLY)
        .permits()
        .build();
    let breaking = store.clone();
    let handler = service_fn(move |request: Request<()>| {
        let store = breaking.clone();
        async move {
            let permit = Permit::of(request.extensions()).expect("a permit");
            for mode in [Mode::Fails, Mode::Works] {
                store.set(mode);
                assert!(permit.charge(3).await.expect("a decision").is_allowed());
            }
            store.set_for(Operation::Refund, Mode::Fails);
            assert!(permit.refund().await.is_err());
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    ask(&layer.layer(handler), Request::new(())).await;
    // Both charges of the store, and that of this process.
    assert_eq!(store.asked(Operation::Refund), 2);
}
