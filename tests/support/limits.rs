//! One limit of each algorithm, of the same size; and who waits for a slow store.
#![allow(dead_code, reason = "each test uses some of it")]

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, CalendarWindow, CircuitBreaker, FixedWindow, LeakyBucket, LeakyBucketQueue, Limiter, RedisConfig,
    SlidingLog, SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};

/// Every algorithm, set to allow `tokens` at once, and as many in each `period`: or in a calendar's window of
/// about as long, or a day.
pub(crate) fn all(tokens: u32, period: Duration) -> [(&'static str, Algorithm); 9] {
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

/// Who waits however long it takes, where a test is not about that: machines stand still for seconds.
pub(crate) trait Patient {
    fn patient(self) -> Self;
}

/// How long something may take that is bound to happen.
const LONG: Duration = Duration::from_secs(30);

impl Patient for Limiter {
    fn patient(self) -> Self {
        self.deadline(LONG).circuit_breaker(CircuitBreaker::off())
    }
}

impl Patient for RedisConfig {
    fn patient(self) -> Self {
        self.connect_timeout(LONG).response_timeout(LONG)
    }
}
