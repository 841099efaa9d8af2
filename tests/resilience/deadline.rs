//! Deadlines: no request waits for a store longer than configured.

use std::time::Duration;

use http::{Request, StatusCode};
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{
    CircuitBreaker, DecidedBy, FixedWindow, Limit, Limiter, OnStoreError, RateLimitLayer, StoreErrorKind, key,
};

use crate::limited::{LOCALLY, acquire, ask, hello, limiter, ms, ten, visit, without_breaker};
use support::faulty_store::{FaultyStore, Mode, Operation};

/// Checks that this is at `expected`, with the resolution of Tokio's timers.
#[track_caller]
fn at(expected: Duration, is: Duration) {
    assert!(expected <= is && is <= expected + ms(1), "after {is:?}, not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn every_policy_applies_at_the_deadline_of_a_hanging_store() {
    for (policy, status) in [(OnStoreError::Reject, 503), (OnStoreError::Allow, 200), (LOCALLY, 200)] {
        for deadline in [None, Some(ms(7)), Some(ms(900))] {
            let mut builder =
                RateLimitLayer::builder([ten()]).store(FaultyStore::new(Mode::Hangs)).on_store_error(policy);
            if let Some(deadline) = deadline {
                builder = builder.deadline(deadline);
            }
            let reported = visit(&builder.build()).await;
            assert_eq!(reported.status, status, "{policy:?}");
            at(deadline.unwrap_or(ms(50)), reported.after);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_an_error_of_a_limiter() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = without_breaker(&store).deadline(ms(20)).build();
    let (decided, after) = acquire(&limiter).await;
    assert_eq!(decided, Err(StoreErrorKind::TimedOut));
    at(ms(20), after);
    let error = limiter.acquire("key", 1).await.expect_err("no decision");
    let message = "the rate limit store did not answer within 20 ms: check its load and the network, or raise \
                   `Builder::deadline`";
    assert_eq!(error.to_string(), message);
    for kind in [
        limiter.peek("key", 1).await.map(drop).expect_err("no decision").kind(),
        limiter.reset("key").await.expect_err("no reset").kind(),
    ] {
        assert_eq!(kind, StoreErrorKind::TimedOut);
    }
    store.set(Mode::Works);
    let receipt = limiter.acquire("key", 1).await.expect("a decision").into_receipt();
    store.set(Mode::Hangs);
    assert_eq!(limiter.refund(receipt).await.expect_err("no refund").kind(), StoreErrorKind::TimedOut);
}

/// A future may be created long before it is awaited.
#[tokio::test(start_paused = true)]
async fn the_deadline_begins_when_a_call_is_awaited() {
    let store = FaultyStore::new(Mode::Slow(ms(49)));
    let limiter = without_breaker(&store).build();
    let deciding = limiter.acquire("key", 1);
    tokio::time::sleep(ms(1_000)).await;
    let receipt = deciding.await.expect("a decision").into_receipt();
    let [refunding, resetting] = [limiter.refund(receipt), limiter.reset("key")];
    tokio::time::sleep(ms(1_000)).await;
    refunding.await.expect("a refund");
    resetting.await.expect("a reset");
}

#[tokio::test(start_paused = true)]
async fn a_reply_within_the_deadline_decides() {
    let store = FaultyStore::new(Mode::Slow(ms(49)));
    for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
        let (decided, after) = acquire(&limiter(&store).on_store_error(policy).build()).await;
        assert_eq!(decided, Ok(DecidedBy::Store));
        at(ms(49), after);
    }
}

/// Waiting in a queue or for tokens is not waiting for the store.
#[tokio::test(start_paused = true)]
async fn each_attempt_of_a_wait_has_its_own_deadline() {
    let limit = Limit::new("one", FixedWindow::per_minute(1));
    let limiter = Limiter::builder([limit]).store(FaultyStore::new(Mode::Slow(ms(40)))).build();
    for _ in 0..3 {
        assert!(limiter.wait("key", 1).await.is_ok());
    }
}

/// A refund, followed by a charge.
#[tokio::test(start_paused = true)]
async fn the_deadline_covers_all_calls_of_a_request() {
    for (step, status) in [(ms(20), StatusCode::OK), (ms(30), StatusCode::SERVICE_UNAVAILABLE)] {
        let store = FaultyStore::new(Mode::Slow(step));
        let limits = RateLimitLayer::builder([ten()]).store(store.clone()).build();
        let service = ServiceBuilder::new().layer(limits.cost(5)).layer(limits.cost(2)).service(hello());
        let reported = ask(&service, Request::new(())).await;
        assert_eq!(reported.status, status);
        assert_eq!((store.asked(Operation::Decide), store.asked(Operation::Refund) > 0), (2, true));
        at(step + (2 * step).min(ms(50)), reported.after);
    }
}

#[tokio::test(start_paused = true)]
async fn extracting_keys_does_not_count_against_the_deadline() {
    let limit = ten().by(key::from_async_fn(|_| async {
        tokio::time::sleep(ms(1_000)).await;
        Some("ann")
    }));
    let layer = RateLimitLayer::builder([limit]).store(FaultyStore::new(Mode::Slow(ms(40)))).build();
    let reported = ask(&layer.layer(hello()), Request::new(())).await;
    assert_eq!(reported.status, StatusCode::OK);
    at(ms(1_040), reported.after);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_duration_max_never_passes() {
    let limiter = limiter(&FaultyStore::new(Mode::Slow(Duration::from_secs(3_600))));
    let limiter = limiter.deadline(Duration::MAX).circuit_breaker(CircuitBreaker::off()).build();
    assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
}
