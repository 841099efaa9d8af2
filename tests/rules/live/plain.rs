//! Limits without HTTP.

use std::sync::Arc;

use support::limits::acquire_costs;
use tower_ratelimit::{CircuitBreaker, FixedWindow, LeakyBucketQueue, Limit, Limiter, LiveLimits, StoreErrorKind};

use support::store_fixture::{StoreFixture, on_both_stores};

fn limiter(rules: &LiveLimits, fixture: &StoreFixture) -> Limiter {
    Limiter::live_builder(rules)
        .store(fixture.store.clone())
        .deadline(std::time::Duration::from_secs(30))
        .circuit_breaker(CircuitBreaker::off())
        .build()
}

fn daily(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(tokens))
}

async fn a_limiter_applies_the_current_limits(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 10)]);
    let limiter = limiter(&rules, &fixture);
    assert!(limiter.acquire("ann", 8).await.unwrap().is_allowed());
    assert!(!limiter.acquire("ann", 3).await.unwrap().is_allowed());
    rules.replace([daily("b", 9), daily("a", 12)]).unwrap();
    let decision = limiter.acquire("ann", 3).await.unwrap();
    let remaining: Vec<u64> = decision.outcomes().iter().map(|outcome| outcome.remaining()).collect();
    assert_eq!(remaining, [6, 1]);
    rules.replace([]).unwrap();
    assert!(limiter.acquire("ann", 1_000).await.unwrap().is_allowed());
    assert!(limiter.peek("ann", 1_000).await.unwrap().is_allowed());
    limiter.reset("ann").await.unwrap();
    rules.replace([daily("a", 12)]).unwrap();
    assert_eq!(limiter.peek("ann", 1).await.unwrap().outcomes()[0].remaining(), 1);
}

async fn charges_for_replaced_limits_of_another_number_are_an_error(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 10)]);
    let limiter = limiter(&rules, &fixture);
    assert!(acquire_costs(&limiter, "ann", &[1]).await.unwrap().is_allowed());
    rules.replace([daily("a", 10), daily("b", 10)]).unwrap();
    let error = acquire_costs(&limiter, "ann", &[1]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    let error = limiter.acquire_charges(&[(&"ann", 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    assert!(acquire_costs(&limiter, "ann", &[1, 1]).await.unwrap().is_allowed());
}

async fn a_receipt_refunds_the_limits_that_remain(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 10), daily("b", 10)]);
    let limiter = limiter(&rules, &fixture);
    let receipt = limiter.acquire("ann", 4).await.unwrap().into_receipt();
    // At another position, in another size, and without the other limit.
    rules.replace([daily("b", 20), daily("c", 10)]).unwrap();
    assert!(limiter.acquire("ann", 1).await.unwrap().is_allowed());
    limiter.refund(receipt).await.unwrap();
    let seen = limiter.peek("ann", 1).await.unwrap();
    let remaining: Vec<u64> = seen.outcomes().iter().map(|outcome| outcome.remaining()).collect();
    assert_eq!(remaining, [19, 9]);
    rules.replace([daily("b", 20), daily("a", 10)]).unwrap();
    assert_eq!(limiter.peek("ann", 1).await.unwrap().outcomes()[1].remaining(), 6);
}

/// A wait applies the limits at its start.
async fn a_cancelled_wait_refunds_the_limits_that_it_was_charged_to(fixture: StoreFixture) {
    let queue = || Limit::new("queue", LeakyBucketQueue::per_day(1).waiting(9));
    let rules = LiveLimits::new([queue()]);
    let limiter = Arc::new(limiter(&rules, &fixture));
    assert!(limiter.acquire("ann", 1).await.unwrap().is_allowed());
    let left = async || limiter.peek("ann", 0).await.unwrap().outcomes()[0].remaining();
    let before = left().await;
    let wait_for_limit = async |expected| {
        for _ in 0..2_000 {
            if left().await == expected {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("{} are left, not {expected}", left().await);
    };
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.wait("ann", 1).await.map(drop) }
    });
    wait_for_limit(before - 1).await;
    // A wait that is dropped before it receives the reply of Redis stays charged.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    rules.replace([daily("other", 5)]).unwrap();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    rules.replace([queue()]).unwrap();
    wait_for_limit(before).await;
}

on_both_stores!(
    charges_for_replaced_limits_of_another_number_are_an_error,
    a_limiter_applies_the_current_limits,
    a_receipt_refunds_the_limits_that_remain,
    a_cancelled_wait_refunds_the_limits_that_it_was_charged_to,
);
