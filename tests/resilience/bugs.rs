//! Bugs of other rate limiters with slow or failing stores. See `src/resilience/fallback.rs` for a fallback map
//! without bounds.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{OnStoreError, RateLimitLayer};

use crate::limited::{LOCALLY, acquire, limiter, ms, ten, visit};
use support::faulty_store::{FaultyStore, Mode};

/// aisix#1147: replies had no timeout, so a stopped server delayed requests for 180 s.
#[tokio::test(start_paused = true)]
async fn a_stopped_server_delays_no_request_beyond_the_deadline() {
    for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
        let store = FaultyStore::new(Mode::Works);
        let layer = RateLimitLayer::builder([ten()]).store(store.clone()).on_store_error(policy).build();
        assert_eq!(visit(&layer).await.status, 200);
        store.set(Mode::Hangs);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            let (one, other) = tokio::join!(visit(&layer), visit(&layer));
            assert!(one.after.max(other.after) <= ms(51), "{one:?}, {other:?}");
            tokio::time::sleep(ms(10)).await;
        }
    }
}

/// envoyproxy/ratelimit#462: each request failed open after its own timeout of 10 s.
#[tokio::test(start_paused = true)]
async fn an_outage_costs_a_few_requests_their_deadline_and_the_others_nothing() {
    let limiter = limiter(&FaultyStore::new(Mode::Hangs))
        .deadline(Duration::from_secs(10))
        .on_store_error(OnStoreError::Allow)
        .build();
    let start = Instant::now();
    for _ in 0..1_000 {
        assert!(acquire(&limiter).await.0.is_ok());
    }
    assert_eq!(start.elapsed().as_secs(), 5 * 10);
}
