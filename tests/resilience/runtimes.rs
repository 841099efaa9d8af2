//! Calls outside a Tokio runtime, whose timers would panic.

use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use tower::{Layer, Service};
use tower_ratelimit::{
    DecidedBy, FixedWindow, LeakyBucketQueue, Limit, Limiter, OnStoreError, Penalty, RateLimitLayer, StoreErrorKind,
    TokenBucket,
};

use crate::limited::{hello, limiter, ten};
use support::faulty_store::{FaultyStore, Mode, Operation};

#[track_caller]
fn names_the_runtime<T>(answer: Option<Result<T, impl std::fmt::Display>>) {
    let error = answer.expect("an answer at once").err().expect("an error").to_string();
    assert!(error.contains("there is no Tokio runtime"), "{error}");
}

#[test]
fn a_store_that_does_not_answer_at_once_is_an_error_outside_a_runtime() {
    let store = FaultyStore::new(Mode::Works);
    for mode in [Mode::Works, Mode::Hangs, Mode::Fails] {
        store.set(mode);
        let limiter = limiter(&store).build();
        let ten = limiter.limit("ten").expect("the limit");
        names_the_runtime(limiter.acquire("key", 1).now_or_never());
        names_the_runtime(limiter.acquire_charges(&[(&"key", 1)]).now_or_never());
        names_the_runtime(limiter.peek("key", 1).now_or_never());
        names_the_runtime(limiter.try_acquire("key", 1).now_or_never());
        names_the_runtime(limiter.wait("key", 1).now_or_never());
        names_the_runtime(limiter.wait_at_most("key", 1, Duration::from_secs(1)).now_or_never());
        names_the_runtime(limiter.reset("key").now_or_never());
        store.set(Mode::Remembered);
        let charged = limiter.acquire("key", 1).now_or_never().expect("memory").expect("a decision");
        store.set(mode);
        names_the_runtime(limiter.refund(charged.into_receipt()).now_or_never());
        names_the_runtime(ten.peek("key", 1).now_or_never());
        names_the_runtime(ten.reset("key").now_or_never());
        let explanation = limiter.explain("key", 1).now_or_never().expect("an explanation").to_string();
        assert!(explanation.contains("there is no Tokio runtime"), "{explanation}");
    }
}

/// It shows nothing about the store.
#[test]
fn a_missing_runtime_opens_no_breaker() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = limiter(&store).build();
    for _ in 0..20 {
        names_the_runtime(limiter.acquire("key", 1).now_or_never());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    assert_eq!(runtime.block_on(limiter.acquire("key", 1)).expect("a decision").decided_by(), DecidedBy::Store);
}

#[test]
fn the_policy_applies_outside_a_runtime() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = limiter(&store).on_store_error(OnStoreError::Allow).build();
    let decision = limiter.acquire("key", 1).now_or_never().expect("an answer").expect("the policy");
    assert!(decision.is_allowed());
    let mut service = RateLimitLayer::builder([ten()]).store(store).build().layer(hello());
    let response = service.call(Request::new(())).now_or_never().expect("a response").expect("infallible");
    assert_eq!(response.status(), 503);
}

/// A place in a queue is taken at once, but has to be waited for.
#[test]
fn a_delay_outside_a_runtime_is_an_error_and_is_refunded() {
    let queue = || Limit::new("queue", LeakyBucketQueue::per_hour(10));
    let limiter = Limiter::new([queue()]);
    limiter.wait("key", 1).now_or_never().expect("no delay").expect("allowed");
    let delayed = limiter.acquire("key", 1).now_or_never().expect("an answer").expect("a decision");
    for _ in 0..100 {
        names_the_runtime(limiter.wait("key", 1).now_or_never());
    }
    let after = limiter.peek("key", 1).now_or_never().expect("an answer").expect("a decision");
    assert_eq!(after.outcomes()[0].remaining(), delayed.outcomes()[0].remaining());

    let mut service = RateLimitLayer::new([queue()]).layer(hello());
    let mut visit = || {
        let response = service.call(Request::new(())).now_or_never().expect("a response");
        response.expect("infallible").status().as_u16()
    };
    assert_eq!([visit(), visit(), visit()], [200, 503, 503]);
}

#[test]
fn waiting_outside_a_runtime_is_an_error() {
    let limiter = Limiter::new(Limit::new("bucket", TokenBucket::per_hour(1)));
    limiter.wait("key", 1).now_or_never().expect("no wait").expect("allowed");
    names_the_runtime(limiter.wait("key", 1).now_or_never());
    let denied = limiter.try_acquire("key", 1).now_or_never().expect("an answer").expect_err("denied");
    assert!(denied.is_denied(), "memory needs no runtime");
}

/// So do charges in flight, and slots beside them.
#[test]
fn requests_that_may_be_strikes_need_no_runtime_in_memory() {
    let failures = Limit::new("failures", FixedWindow::per_day(2)).penalty(Penalty::after(2, Duration::from_secs(60)));
    let failures = failures.count_if(|response| response.status == 200);
    for limits in [vec![failures.clone()], vec![failures, Limit::concurrent("streams", 2)]] {
        let mut service = RateLimitLayer::new(limits).layer(hello());
        let mut visit = || {
            let response = service.call(Request::new(())).now_or_never().expect("a response");
            response.expect("infallible").status().as_u16()
        };
        assert_eq!([visit(), visit(), visit(), visit()], [200, 200, 429, 429]);
    }
}

/// Those that end in a store's future, too.
#[test]
fn overrides_outside_a_runtime_are_errors() {
    let store = FaultyStore::new(Mode::Works);
    store.set_for(Operation::Decide, Mode::Hangs);
    let limiter = Limiter::builder(Limit::new("ten", FixedWindow::per_day(10)).overridable()).store(store).build();
    let error = limiter.acquire("key", 1).now_or_never().expect("an answer").expect_err("no runtime");
    assert_eq!(error.kind(), StoreErrorKind::Failed);
}
