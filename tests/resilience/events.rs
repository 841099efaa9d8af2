//! Events of stores, as observers receive them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::sleep;
use tower_ratelimit::{CircuitBreaker, DecidedBy, Event, OnStoreError, RateLimitLayer};

use crate::limited::{Events, LOCALLY, acquire, limiter, ms, ten, visit, without_breaker};
use support::faulty_store::{FaultyStore, Mode, Operation};

#[tokio::test(start_paused = true)]
async fn each_request_that_the_store_does_not_decide_is_one_failure() {
    for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
        let (store, events) = (FaultyStore::new(Mode::Works), Events::default());
        // Requests that fail together count as one failure.
        let breaker = CircuitBreaker::new().failures(1);
        let limiter =
            limiter(&store).on_store_error(policy).circuit_breaker(breaker).observe(events.observer()).build();
        let mut undecided = 0;
        for mode in [Mode::Works, Mode::Fails, Mode::Works, Mode::FailsAtOnce, Mode::Hangs, Mode::Works, Mode::Hangs] {
            store.set(mode);
            let tasks: Vec<_> = (0..30)
                .map(|_| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move { acquire(&limiter).await.0 })
                })
                .collect();
            for task in tasks {
                undecided += usize::from(task.await.expect("a result") != Ok(DecidedBy::Store));
            }
            sleep(ms(40)).await;
        }
        assert!(undecided > 100);
        assert_eq!(events.count("failed"), undecided, "{policy:?}");
        let fallbacks = ["Rejected", "Allowed", "DecidedLocally"].map(|fallback| events.count(fallback));
        let expected = match policy {
            OnStoreError::Reject => [undecided, 0, 0],
            OnStoreError::Allow => [0, undecided, 0],
            _ => [0, 0, undecided],
        };
        assert_eq!(fallbacks, expected);
        assert!(events.count("failed: BreakerOpen") > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_reported_from_start_to_end() {
    let (store, events) = (FaultyStore::new(Mode::Hangs), Events::default());
    let limiter = limiter(&store).observe(events.observer()).build();
    for _ in 0..6 {
        assert!(acquire(&limiter).await.0.is_err());
    }
    sleep(ms(150)).await;
    // A failed trial changes nothing.
    assert!(acquire(&limiter).await.0.is_err());
    sleep(ms(300)).await;
    store.set(Mode::Works);
    assert!(acquire(&limiter).await.0.is_ok());
    let timed_out = ["failed: TimedOut", "Rejected"];
    let kept_away = ["failed: BreakerOpen", "Rejected"];
    let mut expected = timed_out.repeat(5);
    // The fifth failure opens the breaker.
    expected.insert(9, "breaker: Open");
    expected.extend([kept_away, timed_out].concat());
    expected.push("breaker: Closed");
    assert_eq!(events.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_reason_is_reported() {
    let reported = Arc::new(AtomicUsize::new(0));
    let counted = reported.clone();
    let layer = RateLimitLayer::builder([ten()])
        .store(FaultyStore::new(Mode::Fails))
        .observe(move |event| {
            if let Event::StoreFailed { error, .. } = event {
                let source = std::error::Error::source(error).expect("a source");
                assert_eq!(source.to_string(), "redis://secret@10.0.0.7 is gone");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build();
    assert_eq!(visit(&layer).await.status, 503);
    assert_eq!(visit(&layer.cost(2)).await.status, 503, "routes have the same observer");
    assert_eq!(reported.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn refunds_and_resets_are_reported_too() {
    let (store, events) = (FaultyStore::new(Mode::Works), Events::default());
    let limiter = without_breaker(&store).observe(events.observer()).build();
    let receipt = limiter.acquire("key", 1).await.expect("a decision").into_receipt();
    store.set(Mode::Fails);
    assert!(limiter.refund(receipt).await.is_err());
    assert!(limiter.reset("key").await.is_err());
    assert!(limiter.peek("key", 1).await.is_err());
    assert_eq!(events.all(), ["failed: Failed", "failed: Failed", "failed: Failed", "Rejected"]);
    assert_eq!((store.asked(Operation::Refund), store.asked(Operation::Reset)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_working_store_reports_no_events() {
    let (store, events) = (FaultyStore::new(Mode::Works), Events::default());
    let limiter = limiter(&store).observe(events.observer()).build();
    for _ in 0..20 {
        assert!(acquire(&limiter).await.0.is_ok());
    }
    assert_eq!(events.all(), [] as [&str; 0]);
}
