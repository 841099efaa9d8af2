//! Limits of each algorithm with the same size.

use std::time::Duration;

pub use crate::patient::Patient;
use tower_ratelimit::key::Key;
use tower_ratelimit::store::StoreFuture;
use tower_ratelimit::{
    Algorithm, CalendarWindow, Decision, FixedWindow, LeakyBucket, LeakyBucketQueue, Limiter, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};

/// Charges one key, with a cost for each limit.
pub fn acquire_costs(limiter: &Limiter, key: impl Key + Sync, costs: &[u64]) -> StoreFuture<Decision> {
    let charges: Vec<(&(dyn Key + Sync), u64)> = costs.iter().map(|cost| (&key as _, *cost)).collect();
    limiter.acquire_charges(&charges)
}

/// Returns the name of an algorithm, without its numbers: `a token bucket`.
pub fn kind(algorithm: &Algorithm) -> String {
    let text = algorithm.to_string();
    text.split_once(" of ").map_or("", |(kind, _)| kind).to_owned()
}

/// Returns every algorithm, with `tokens` at once and per `period`. The window of a calendar is about as long, and at
/// least a day.
pub fn all(tokens: u32, period: Duration) -> [(&'static str, Algorithm); 9] {
    let calendar = match period.as_secs().div_ceil(86_400) {
        0 | 1 => CalendarWindow::daily(tokens),
        2..=7 => CalendarWindow::weekly(tokens, Weekday::Monday),
        8..=31 => CalendarWindow::monthly(tokens),
        _ => CalendarWindow::yearly(tokens),
    };
    [
        ("fixed_window", FixedWindow::new(tokens, period).into()),
        ("calendar_window", calendar.into()),
        ("sliding_log", SlidingLog::new(tokens, period).into()),
        ("sliding_window", SlidingWindow::new(tokens, period).into()),
        ("sliding_window_counter", SlidingWindowCounter::new(tokens, period).into()),
        ("token_bucket", TokenBucket::new(tokens, tokens, period).into()),
        ("token_bucket-at-intervals", TokenBucket::new(tokens, tokens, period).at_intervals().into()),
        ("leaky_bucket", LeakyBucket::new(tokens, tokens, period).into()),
        ("leaky_bucket_queue", LeakyBucketQueue::new(tokens - 1, tokens, period).into()),
    ]
}
