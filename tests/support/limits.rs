//! One limit of each algorithm, of the same size.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, SlidingLog, SlidingWindow, SlidingWindowCounter, TokenBucket,
};

/// Every algorithm, set to allow `tokens` at once, and as many in each `period`.
pub(crate) fn all(tokens: u32, period: Duration) -> [(&'static str, Algorithm); 8] {
    [
        ("fixed_window", FixedWindow::new(tokens, period).into()),
        ("sliding_log", SlidingLog::new(tokens, period).into()),
        ("sliding_window", SlidingWindow::new(tokens, period).into()),
        ("sliding_window_counter", SlidingWindowCounter::new(tokens, period).into()),
        ("token_bucket", TokenBucket::new(tokens, tokens, period).into()),
        ("token_bucket-at-intervals", TokenBucket::new(tokens, tokens, period).at_intervals().into()),
        ("leaky_bucket", LeakyBucket::new(tokens, tokens, period).into()),
        ("leaky_bucket_queue", LeakyBucketQueue::new(tokens - 1, tokens, period).into()),
    ]
}
