//! Overrides of single keys, with the same tests on every store.
#![allow(clippy::unwrap_used)]

mod expiry;
mod fleet;
mod keys;
mod races;
mod requests;
mod sizes;
mod stores;
mod thresholds;

use support::limits::{all, kind};
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, LimitHandle, Limiter, Timestamp, TokenBucket,
};

/// Returns the same limit with another capacity, and a bucket with the same rate, because another rate converts its
/// backlog.
fn holding(limit: Algorithm, tokens: u32) -> Algorithm {
    let window = limit.window_at(Timestamp::EPOCH);
    let (_, size) = all(tokens, window).into_iter().find(|(_, of)| kind(of) == kind(&limit)).unwrap();
    // All buckets that `all` creates regain their capacity within their interval.
    let (amount, interval) = (limit.capacity() as u32, window);
    match kind(&limit).as_str() {
        "a token bucket" => TokenBucket::new(tokens, amount, interval).into(),
        "a token bucket (at intervals)" => TokenBucket::new(tokens, amount, interval).at_intervals().into(),
        "a leaky bucket" => LeakyBucket::new(tokens, amount, interval).into(),
        "a leaky bucket queue" => LeakyBucketQueue::new(tokens - 1, amount, interval).into(),
        _ => size,
    }
}

/// Returns an overridable limit per day.
fn daily(tokens: u32) -> Limit {
    Limit::new("daily", FixedWindow::per_day(tokens)).overridable()
}

/// Returns the remaining tokens of a limiter's first limit.
async fn left(limiter: &Limiter, key: &str) -> u64 {
    limiter.peek(key, 1).await.unwrap().outcomes()[0].remaining()
}

/// Sets an override of a limiter's first limit, without an expiry.
async fn set(limiter: &Limiter, key: &str, size: impl Into<Algorithm>) {
    first(limiter).set_override(key, size, None).await.unwrap();
}

/// Returns the handle of a limiter's first limit.
fn first(limiter: &Limiter) -> LimitHandle {
    limiter.limit(limiter.limits()[0].name()).unwrap()
}
