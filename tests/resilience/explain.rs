//! Explanations during an outage: they name the policy in effect, and do not affect the breaker.

use std::time::Duration;

use tower_ratelimit::explain::{Conclusion, Explanation};
use tower_ratelimit::{DecidedBy, Limiter, OnStoreError, StoreErrorKind};

use crate::limited::{Events, LOCALLY, acquire, limiter};
use support::faulty_store::{FaultyStore, Mode, Operation};

/// Returns whether an explanation agrees with the decision that follows.
async fn agrees(limiter: &Limiter) -> Explanation {
    let explanation = limiter.explain("key", 1).await;
    let decided = acquire(limiter).await.0;
    let expected = explanation.decided_by.ok_or_else(|| explanation.conclusion.clone());
    match (decided, expected) {
        (Ok(decided), Ok(expected)) => assert_eq!(decided, expected, "{explanation}"),
        (Err(_), Err(Conclusion::StoreFailed)) => {}
        (decided, _) => panic!("{decided:?} after {explanation}"),
    }
    explanation
}

#[tokio::test(start_paused = true)]
async fn the_policy_in_effect_is_named() {
    for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
        let store = FaultyStore::new(Mode::Works);
        let limiter = limiter(&store).on_store_error(policy).build();
        agrees(&limiter).await;
        for mode in [Mode::Fails, Mode::Hangs, Mode::FailsAtOnce] {
            store.set(mode);
            let explanation = agrees(&limiter).await;
            let (named, text) = match policy {
                OnStoreError::Reject => (None, ", not decided: "),
                OnStoreError::Allow => (Some(DecidedBy::Unlimited), ", not counted: "),
                _ => (Some(DecidedBy::Local), ", decided by the local share of the limits: "),
            };
            assert_eq!(explanation.decided_by, named, "{policy:?}: {explanation}");
            assert!(explanation.store_error.is_some() && explanation.to_string().contains(text), "{explanation}");
            assert!(!explanation.to_string().contains("breaker"), "{explanation}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_named_and_the_store_is_not_called() {
    for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
        let store = FaultyStore::new(Mode::Fails);
        let limiter = limiter(&store).on_store_error(policy).build();
        for _ in 0..5 {
            let _ = acquire(&limiter).await;
        }
        let asked = [Operation::Decide, Operation::Peek].map(|op| store.asked(op));
        let explanation = agrees(&limiter).await;
        assert!(
            explanation.store_error.as_ref().is_some_and(|error| error.contains("breaker is open")),
            "{explanation}"
        );
        assert_eq!([Operation::Decide, Operation::Peek].map(|op| store.asked(op)), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn an_explanation_that_fails_does_not_open_the_breaker() {
    let store = FaultyStore::new(Mode::Fails);
    let limiter = limiter(&store).on_store_error(OnStoreError::Reject).build();
    for _ in 0..20 {
        let _ = limiter.explain("key", 1).await;
    }
    assert_eq!(acquire(&limiter).await.0, Err(StoreErrorKind::Failed), "the store is asked");
}

/// After the pause, the next request would be the trial. Meanwhile, others would be rejected.
#[tokio::test(start_paused = true)]
async fn an_explanation_is_not_the_trial() {
    let (store, events) = (FaultyStore::new(Mode::Fails), Events::default());
    let limiter = limiter(&store).on_store_error(OnStoreError::Reject).observe(events.observer()).build();
    for _ in 0..5 {
        let _ = acquire(&limiter).await;
    }
    store.set(Mode::Works);
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..3 {
        let explanation = limiter.explain("key", 1).await;
        assert_eq!(explanation.decided_by, Some(DecidedBy::Store), "{explanation}");
    }
    assert_eq!(events.count("breaker: Closed"), 0);
    let trial = limiter.acquire("key", 1);
    let explanation = limiter.explain("key", 1).await;
    assert!(explanation.store_error.as_ref().is_some_and(|error| error.contains("breaker is open")), "{explanation}");
    assert_eq!(trial.await.expect("a decision").decided_by(), DecidedBy::Store);
    assert_eq!(events.count("breaker: Closed"), 1);
}
