//! Requests whose callers give up.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use super::random::new_key;
use super::trace::{START, limiter};
use crate::algorithm::{FixedWindow, TokenBucket};
use crate::decision::Decision;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::{Store, StoreFuture};
use crate::time::{ManualClock, Timestamp};

const DAY: Duration = Duration::from_secs(86_400);

/// The most times that a request is polled before it is dropped.
const MAX_POLLS: u32 = 64;

/// The most times that a check waits for refunds in the background, for 10 ms each.
const MAX_WAITS: u32 = 500;

/// Checks that a request that is dropped at any step charges all its limits or none.
pub(super) async fn check<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
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
