//! Circuit breakers: a failing store is not called, and a trial after each pause detects its recovery.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};
use tower_ratelimit::{CircuitBreaker, DecidedBy, Event, Limiter, OnStoreError, RateLimitLayer, StoreErrorKind};

use crate::limited::{Events, LOCALLY, acquire, limiter, ms, recovers, ten, visit, without_breaker};
use support::faulty_store::{FaultyStore, Mode, Operation};

/// Returns a limiter whose breaker has just opened.
async fn opened(store: &FaultyStore) -> Limiter {
    let limiter = limiter(store).build();
    for _ in 0..5 {
        assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::TimedOut));
    }
    limiter
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_after_the_configured_number_of_failures() {
    for (mode, kind) in [(Mode::Hangs, StoreErrorKind::TimedOut), (Mode::Fails, StoreErrorKind::Failed)] {
        for failures in [None, Some(1), Some(3)] {
            let store = FaultyStore::new(mode);
            let breaker = failures.map_or(CircuitBreaker::new(), |failures| CircuitBreaker::new().failures(failures));
            let limiter = limiter(&store).circuit_breaker(breaker).build();
            let failures = failures.unwrap_or(5) as usize;
            for _ in 0..failures {
                assert_eq!(acquire(&limiter).await.0, Err(kind));
            }
            for _ in 0..100 {
                assert_eq!(acquire(&limiter).await, (Err(StoreErrorKind::BreakerOpen), Duration::ZERO));
            }
            assert_eq!(store.asked(Operation::Decide), failures, "the pause is not over");
            assert_eq!(store.asked(Operation::Peek), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_resets_the_count_of_failures() {
    let store = FaultyStore::new(Mode::Works);
    let limiter = limiter(&store).build();
    for _ in 0..5 {
        store.set(Mode::Fails);
        for _ in 0..4 {
            assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::Failed));
        }
        store.set(Mode::Works);
        assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
    }
}

/// Concurrent requests wait for the same call, which may hang.
#[tokio::test(start_paused = true)]
async fn requests_that_fail_together_are_one_failure() {
    for (mode, kind) in [(Mode::Hangs, StoreErrorKind::TimedOut), (Mode::Fails, StoreErrorKind::Failed)] {
        let store = FaultyStore::new(mode);
        let limiter = limiter(&store).build();
        for _ in 0..5 {
            let together: Vec<_> = (0..100).map(|_| limiter.acquire("key", 1)).collect();
            let tasks: Vec<_> = together.into_iter().map(tokio::spawn).collect();
            for task in tasks {
                assert_eq!(task.await.expect("an answer").expect_err("it fails").kind(), kind);
            }
        }
        assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::BreakerOpen));
        assert_eq!(store.asked(Operation::Decide), 500);
    }
}

/// Under any load, five failures that each began after the previous one.
#[tokio::test(start_paused = true)]
async fn under_load_the_breaker_opens_after_as_many_timeouts() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = limiter(&store).build();
    let start = Instant::now();
    while acquire_in_background(&limiter).is_none() {
        sleep(ms(1)).await;
    }
    let took = start.elapsed();
    assert!((ms(250)..=ms(270)).contains(&took), "{took:?}");
}

/// Returns the error, if it is ready at once.
fn acquire_in_background(limiter: &Limiter) -> Option<StoreErrorKind> {
    match limiter.acquire("key", 1).into_ready() {
        Ok(answer) => Some(answer.expect_err("it fails").kind()),
        Err(pending) => {
            tokio::spawn(pending);
            None
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_breaker_is_open_policies_decide_at_once() {
    let store = FaultyStore::new(Mode::Hangs);
    for (policy, status) in [(OnStoreError::Reject, 503), (OnStoreError::Allow, 200), (LOCALLY, 200)] {
        let layer = RateLimitLayer::builder([ten()]).store(store.clone()).on_store_error(policy).build();
        for _ in 0..5 {
            assert_eq!(visit(&layer).await.status, status);
        }
        let reported = visit(&layer).await;
        assert_eq!((reported.status.as_u16(), reported.after), (status, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn the_breaker_closes_soon_after_the_store_is_back() {
    for down in [ms(0), ms(1_000), ms(5_000), ms(60_000)] {
        let store = FaultyStore::new(Mode::Hangs);
        let limiter = opened(&store).await;
        let start = Instant::now();
        while start.elapsed() < down {
            assert_rejected_or_tried(acquire(&limiter).await);
            sleep(ms(5)).await;
        }
        store.set(Mode::Works);
        let took = recovers(&limiter, ms(5)).await;
        assert!(took <= ms(1_100), "{took:?} after {down:?}");
        for _ in 0..5 {
            assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
        }
    }
}

/// Only the trial waits for a store that hangs.
#[track_caller]
fn assert_rejected_or_tried((decided, after): (Result<DecidedBy, StoreErrorKind>, Duration)) -> bool {
    let is_trial = decided == Err(StoreErrorKind::TimedOut);
    let expected = if is_trial { ms(50)..=ms(51) } else { Duration::ZERO..=Duration::ZERO };
    assert!(is_trial || decided == Err(StoreErrorKind::BreakerOpen), "{decided:?}");
    assert!(expected.contains(&after), "{after:?}");
    is_trial
}

/// For observers, it stays open.
#[tokio::test(start_paused = true)]
async fn a_failed_trial_begins_a_longer_pause() {
    let store = FaultyStore::new(Mode::Fails);
    let events = Events::default();
    let limiter = limiter(&store).observe(events.observer()).build();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        assert!(acquire(&limiter).await.0.is_err());
        sleep(ms(1)).await;
    }
    // At first 50 to 100 ms apart, and finally 500 to 1,000 ms.
    let tried = store.asked(Operation::Decide) - 5;
    assert!((19..=45).contains(&tried), "{tried} tries in 20 s");
    assert_eq!((events.count("breaker: Open"), events.count("breaker")), (1, 1));
    store.set(Mode::Works);
    assert!(recovers(&limiter, ms(1)).await <= ms(1_100));
    assert_eq!((events.count("breaker: Closed"), events.count("breaker")), (1, 2));
}

/// Even after an outage with the longest pauses.
#[tokio::test(start_paused = true)]
async fn a_second_outage_begins_with_a_short_pause() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = limiter(&store).circuit_breaker(CircuitBreaker::new().longest_pause(Duration::from_secs(60))).build();
    for _ in 0..3 {
        store.set(Mode::Hangs);
        for _ in 0..5 {
            assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::TimedOut));
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(300) {
            assert_rejected_or_tried(acquire(&limiter).await);
            sleep(ms(10)).await;
        }
        store.set(Mode::Works);
        recovers_within(&limiter, Duration::from_secs(61)).await;
        // The first pause of the next outage is short.
        store.set(Mode::Hangs);
        for _ in 0..5 {
            assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::TimedOut));
        }
        store.set(Mode::Works);
        recovers_within(&limiter, ms(110)).await;
    }
}

async fn recovers_within(limiter: &Limiter, longest: Duration) {
    let start = Instant::now();
    while acquire(limiter).await.0.is_err() {
        assert!(start.elapsed() <= longest, "it has not recovered after {longest:?}");
        sleep(ms(5)).await;
    }
}

/// From its start until its end, or its deadline.
#[tokio::test(start_paused = true)]
async fn there_is_no_second_trial_while_one_is_under_way() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = opened(&store).await;
    sleep(ms(101)).await;
    assert_eq!(acquire_in_background(&limiter), None, "the trial");
    for after in 0..50 {
        assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::BreakerOpen));
        assert_eq!(store.asked(Operation::Decide), 6, "after {after} ms");
        sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_of_a_thousand_at_a_time_is_the_trial() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = opened(&store).await;
    let start = Instant::now();
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut trials = 0;
                for _ in 0..100 {
                    trials += usize::from(assert_rejected_or_tried(acquire(&limiter).await));
                    sleep(ms(50)).await;
                }
                trials
            })
        })
        .collect();
    let mut trials = 0;
    for task in tasks {
        trials += task.await.expect("nobody else waits");
    }
    assert_eq!(store.asked(Operation::Decide), 5 + trials);
    assert_eq!(store.most_at_once(Operation::Decide), 1);
    assert!((5..=15).contains(&trials), "{trials} trials in {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn only_one_of_a_thousand_requests_is_the_trial() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = opened(&store).await;
    sleep(ms(200)).await;
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { acquire(&limiter).await.0 })
        })
        .collect();
    let mut timed_out = 0;
    for task in tasks {
        match task.await.expect("a result") {
            Err(StoreErrorKind::TimedOut) => timed_out += 1,
            other => assert_eq!(other, Err(StoreErrorKind::BreakerOpen)),
        }
    }
    assert_eq!((timed_out, store.asked(Operation::Decide)), (1, 6));
}

/// The processes of a fleet do not try at the same instant.
#[tokio::test(start_paused = true)]
async fn breaker_pauses_have_jitter() {
    let mut pauses = Vec::new();
    for _ in 0..20 {
        let store = FaultyStore::new(Mode::Hangs);
        let limiter = opened(&store).await;
        let start = Instant::now();
        while acquire_in_background(&limiter) == Some(StoreErrorKind::BreakerOpen) {
            sleep(ms(1)).await;
        }
        pauses.push(start.elapsed().as_millis());
    }
    assert!(pauses.iter().all(|pause| (50..=101).contains(pause)), "{pauses:?}");
    pauses.sort_unstable();
    pauses.dedup();
    assert!(pauses.len() >= 5, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_canceled_trial_the_next_request_is_the_trial() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = opened(&store).await;
    sleep(ms(200)).await;
    let trying = tokio::spawn({
        let limiter = limiter.clone();
        async move { acquire(&limiter).await }
    });
    sleep(ms(1)).await;
    assert_eq!(store.asked(Operation::Decide), 6);
    trying.abort();
    assert!(trying.await.expect_err("it was given up").is_cancelled());
    store.set(Mode::Works);
    assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
    assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
}

/// A decision may be neither awaited nor dropped.
#[tokio::test(start_paused = true)]
async fn after_an_unused_trial_the_next_request_is_the_trial() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = opened(&store).await;
    store.set(Mode::Works);
    sleep(ms(200)).await;
    let held = limiter.acquire("key", 1);
    assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::BreakerOpen), "one at a time");
    assert!(recovers(&limiter, ms(5)).await <= ms(200));
    // Its late reply is ignored.
    store.set(Mode::Hangs);
    drop(held);
    store.set(Mode::Works);
    assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
}

/// The same for a trial in a runtime that has stopped.
#[test]
fn a_hanging_trial_is_replaced_by_the_next() {
    let [first, second] = [(); 2].map(|()| Builder::new_current_thread().enable_time().build().expect("a runtime"));
    let store = FaultyStore::new(Mode::Fails);
    let settings = CircuitBreaker::new().failures(1).longest_pause(Duration::from_nanos(1));
    let limiter = limiter(&store).circuit_breaker(settings).build();
    assert_eq!(first.block_on(acquire(&limiter)).0, Err(StoreErrorKind::Failed));
    store.set(Mode::Works);
    std::thread::sleep(ms(1));
    let trying = first.spawn(limiter.acquire("key", 1));
    assert_eq!(second.block_on(acquire(&limiter)).0, Err(StoreErrorKind::BreakerOpen));
    assert!(second.block_on(recovers(&limiter, ms(5))) < Duration::from_secs(30));
    assert!(!trying.is_finished());
}

/// A store that works has reported it.
#[tokio::test(start_paused = true)]
async fn an_error_of_one_request_closes_the_breaker() {
    let (store, events) = (FaultyStore::new(Mode::Hangs), Events::default());
    let limiter = limiter(&store).observe(events.observer()).build();
    for _ in 0..5 {
        assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::TimedOut));
    }
    store.set(Mode::FailsOne);
    sleep(ms(200)).await;
    assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::Failed));
    assert_eq!((events.count("breaker: Open"), events.count("breaker: Closed")), (1, 1));
}

/// A cached denial says nothing about whether the store works.
#[tokio::test(start_paused = true)]
async fn a_remembered_denial_does_not_close_the_breaker() {
    let (store, events) = (FaultyStore::new(Mode::Hangs), Events::default());
    let limiter = limiter(&store).observe(events.observer()).build();
    for _ in 0..5 {
        assert!(acquire(&limiter).await.0.is_err());
    }
    store.set(Mode::Remembered);
    for _ in 0..200 {
        let _ = acquire(&limiter).await;
        sleep(ms(5)).await;
    }
    // The request after a trial that showed nothing is the next trial.
    for _ in 0..5 {
        assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::RememberedDenial));
    }
    assert_eq!(events.count("breaker: Closed"), 0);
    store.set(Mode::Works);
    assert_eq!(acquire(&limiter).await.0, Ok(DecidedBy::Store));
    assert_eq!(events.count("breaker: Closed"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_store_does_not_keep_the_breaker_open() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = opened(&store).await;
    store.set(Mode::Panics);
    sleep(ms(200)).await;
    let trying = tokio::spawn({
        let limiter = limiter.clone();
        async move { acquire(&limiter).await }
    });
    assert!(trying.await.expect_err("it has panicked").is_panic());
    assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::BreakerOpen), "the panic failed the trial");
    store.set(Mode::Works);
    assert!(recovers(&limiter, ms(5)).await <= ms(1_100));
}

#[tokio::test(start_paused = true)]
async fn without_a_breaker_every_request_waits_for_the_store() {
    let store = FaultyStore::new(Mode::Hangs);
    let limiter = without_breaker(&store).build();
    for asked in 1..=20 {
        assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::TimedOut));
        assert_eq!(store.asked(Operation::Decide), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_ready_at_once_is_always_called() {
    let store = FaultyStore::new(Mode::FailsAtOnce);
    let limiter = limiter(&store).build();
    for asked in 1..=20 {
        assert_eq!(acquire(&limiter).await, (Err(StoreErrorKind::Failed), Duration::ZERO));
        assert_eq!(store.asked(Operation::Decide), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn clones_and_routes_share_a_breaker() {
    let store = FaultyStore::new(Mode::Hangs);
    let layer = RateLimitLayer::builder([ten()]).store(store.clone()).build();
    let (clone, route) = (layer.clone(), layer.cost(3));
    for layer in [&layer, &clone, &layer, &clone] {
        assert_eq!(visit(layer).await.after.as_millis() / 10, 5);
    }
    assert_eq!(visit(&route).await.after.as_millis() / 10, 5);
    for layer in [&layer, &clone] {
        assert_eq!(visit(layer).await.after, Duration::ZERO);
    }
    assert_eq!(visit(&route).await.after, Duration::ZERO);
}

#[test]
fn a_trial_may_begin_without_a_runtime() {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let store = FaultyStore::new(Mode::Fails);
    let settings = CircuitBreaker::new().failures(1).longest_pause(Duration::from_nanos(1));
    let limiter = limiter(&store).circuit_breaker(settings).build();
    assert_eq!(runtime.block_on(acquire(&limiter)).0, Err(StoreErrorKind::Failed));
    store.set(Mode::Works);
    std::thread::sleep(ms(1));
    let answer = limiter.acquire("key", 1);
    let decision = runtime.block_on(answer).expect("a decision");
    assert_eq!(decision.decided_by(), DecidedBy::Store);
    // This request was the trial, which closed the breaker.
    let answer = limiter.acquire("key", 1);
    assert_eq!(runtime.block_on(answer).expect("a decision").decided_by(), DecidedBy::Store);
    assert_eq!((store.asked(Operation::Decide), store.asked(Operation::Peek)), (3, 0));
}

/// Neither does a panic of the user's code.
#[tokio::test(start_paused = true)]
async fn a_panicking_observer_leaves_the_breaker_usable() {
    let store = FaultyStore::new(Mode::Hangs);
    let panics = Arc::new(AtomicBool::new(false));
    let observer_panics = panics.clone();
    let observer = move |_: &Event<'_>| assert!(!observer_panics.load(Ordering::Relaxed), "the observer panics");
    let limiter = limiter(&store).observe(observer).build();
    for _ in 0..5 {
        assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::TimedOut));
    }
    panics.store(true, Ordering::Relaxed);
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| drop(limiter.acquire("key", 1))));
    assert!(caught.is_err());
    panics.store(false, Ordering::Relaxed);
    store.set(Mode::Works);
    assert!(recovers(&limiter, ms(5)).await <= ms(1_100));
}
