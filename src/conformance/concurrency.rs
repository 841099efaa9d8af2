//! Concurrent requests.

use std::time::Duration;

use super::random::new_key;
use super::trace::{START, limiter};
use crate::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::Store;
use crate::time::{ManualClock, Timestamp};

const TASKS: usize = 16;
const REQUESTS: usize = 8;
const DAY: Duration = Duration::from_secs(86_400);

/// Checks that concurrent requests for one key are allowed exactly as many tokens as there are.
pub(super) async fn check_one_limit<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let limits: [fn() -> Limit; 3] = [
        || Limit::new("window", FixedWindow::new(50, DAY)),
        || Limit::new("bucket", TokenBucket::new(50, 1, DAY)),
        || Limit::new("log", SlidingLog::new(50, DAY)),
    ];
    for limit in limits {
        let store = new_store(ManualClock::new(Timestamp::from_micros(START))).await;
        let limiter = limiter(vec![limit()], store);
        let allowed = count_allowed(&limiter, new_key()).await;
        assert_eq!(allowed, 50, "allowed of {} concurrent requests: {:?}", TASKS * REQUESTS, limit());
    }
}

/// Checks that a request denied by one limit charges no other, also if requests are concurrent.
pub(super) async fn check_two_limits<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let large = || Limit::new("large", FixedWindow::new(60, DAY));
    let small = || Limit::new("small", TokenBucket::new(40, 1, DAY));
    let store = new_store(ManualClock::new(Timestamp::from_micros(START))).await;
    let limiter = limiter(vec![large(), small()], store);
    let key = new_key();
    assert_eq!(count_allowed(&limiter, key).await, 40, "allowed by both limits");
    let left = limiter.peek(key, 0).await.expect("a decision");
    let remaining: Vec<u64> = left.outcomes().iter().map(|outcome| outcome.remaining()).collect();
    assert_eq!(remaining, [20, 0], "remaining after requests that one limit denied");
}

/// Returns how many concurrent requests for `key` are allowed.
async fn count_allowed(limiter: &Limiter, key: u64) -> usize {
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..REQUESTS {
                    allowed += usize::from(limiter.acquire(key, 1).await.expect("a decision").is_allowed());
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.expect("a task that ends");
    }
    allowed
}
