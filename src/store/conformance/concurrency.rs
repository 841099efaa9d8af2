//! Concurrent requests, and requests whose callers give up.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::trace::{START, limiter, new_key};
use crate::algorithm::{FixedWindow, SlidingLog, TokenBucket};
use crate::decision::Decision;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::{Store, StoreFuture};
use crate::time::{ManualClock, Timestamp};

const TASKS: usize = 16;
const REQUESTS: usize = 8;
const DAY: Duration = Duration::from_secs(86_400);

/// Checks that concurrent requests are allowed exactly what the limits allow.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_concurrency<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    check_one_limit(new_store).await;
    check_two_limits(new_store).await;
}

/// Checks that concurrent requests for one key are allowed exactly as many tokens as there are.
async fn check_one_limit<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
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
async fn check_two_limits<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
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

/// The most times that a request is polled before it is dropped.
const MAX_POLLS: u32 = 64;

/// The most times that a check waits for refunds in the background, for 10 ms each.
const MAX_WAITS: u32 = 500;

/// Checks that a request whose caller gives up charges all its limits or none. A store may refund charges in the
/// background, within five seconds.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_cancellation<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let limits = vec![
        Limit::new("window", FixedWindow::new(10, DAY)),
        Limit::new("bucket", TokenBucket::new(10, 1, DAY)),
        Limit::new("other", FixedWindow::new(10, DAY)),
    ];
    let store = new_store(ManualClock::new(Timestamp::from_micros(START))).await;
    let limiter = limiter(limits, store);
    for polls in 1..=MAX_POLLS {
        let key = new_key();
        let is_ready = drop_after(polls, limiter.acquire(key, 1)).await;
        let mut remaining = remaining(&limiter, key).await;
        for _ in 0..MAX_WAITS {
            if is_uniform(&remaining) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            remaining = self::remaining(&limiter, key).await;
        }
        assert!(
            is_uniform(&remaining),
            "remaining after a request that was dropped after {polls} polls: {remaining:?}"
        );
        if is_ready {
            break;
        }
    }
}

/// Polls a request up to `polls` times, then drops it. Returns whether it was ready.
async fn drop_after(polls: u32, mut acquiring: StoreFuture<Decision>) -> bool {
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut acquiring).poll(context))).await;
        if polled.is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

async fn remaining(limiter: &Limiter, key: u64) -> Vec<u64> {
    let decision = limiter.peek(key, 0).await.expect("a decision");
    decision.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

fn is_uniform(remaining: &[u64]) -> bool {
    remaining.windows(2).all(|pair| pair[0] == pair[1])
}
