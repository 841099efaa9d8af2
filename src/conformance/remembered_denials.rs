//! Denials that a store remembers.

use std::sync::Arc;
use std::time::Duration;

use super::random::new_key;
use super::trace::{START, limiter};
use crate::algorithm::TokenBucket;
use crate::limit::Limit;
use crate::store::Store;
use crate::time::{ManualClock, Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

/// Checks that requests that differ from a denied one in their limit, key or cost are allowed.
pub(super) async fn check<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let store = Arc::new(new_store(ManualClock::new(Timestamp::from_micros(START))).await);
    let small = Limit::new("small", TokenBucket::new(5, 1, DAY));
    let large = Limit::new("large", TokenBucket::new(50, 1, DAY));
    let [both, large] = [vec![small, large.clone()], vec![large]].map(|limits| limiter(limits, store.clone()));
    let (key, other) = (new_key(), new_key());
    for is_allowed in [true, false] {
        let decision = both.acquire(key, 3).await.expect("a decision");
        assert_eq!(decision.is_allowed(), is_allowed, "a request for 3 of 5 tokens");
    }
    let requests =
        [("another limit", &large, key, 3), ("another key", &both, other, 3), ("a smaller cost", &both, key, 2)];
    for (difference, limiter, key, cost) in requests {
        // An explanation asks the store for a remembered denial first.
        let explanation = limiter.explain(key, cost).await;
        assert!(explanation.is_allowed(), "a denial is remembered for {difference}: {explanation}");
        let decision = limiter.acquire(key, cost).await.expect("a decision");
        assert!(decision.is_allowed(), "a denial is repeated for {difference}: {decision:?}");
    }
}
