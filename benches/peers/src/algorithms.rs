//! Measures every algorithm and feature of this crate in memory, beside the token bucket of the comparison.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, MemoryStore, RateLimitLayer,
    SlidingLog, SlidingWindow, SlidingWindowCounter, TokenBucket, key,
};

use crate::app::App;
use crate::subject::Memory;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

pub const BUCKET: &str = "token bucket";

/// Every algorithm allows for years, except the log, which stores each request and denies after 100.
pub fn algorithms() -> [(&'static str, Algorithm); 9] {
    [
        (BUCKET, bucket().into()),
        ("token bucket, at intervals", bucket().at_intervals().into()),
        ("fixed window", FixedWindow::new(u32::MAX, DAY).into()),
        ("calendar window", CalendarWindow::daily(u32::MAX).in_zone("Europe/Berlin").into()),
        ("sliding window counter", SlidingWindowCounter::new(u32::MAX, DAY).into()),
        ("sliding window", SlidingWindow::new(u32::MAX, DAY).into()),
        ("sliding log", SlidingLog::new(100, MINUTE).into()),
        ("leaky bucket", LeakyBucket::new(1 << 28, 6, MINUTE).into()),
        ("leaky bucket queue", LeakyBucketQueue::new(1 << 28, 6, MINUTE).into()),
    ]
}

pub fn bucket() -> TokenBucket {
    TokenBucket::new(1 << 28, 6, MINUTE)
}

/// Returns as many token buckets for one request.
pub fn buckets(limits: usize) -> impl Iterator<Item = Limit> {
    (1..=limits).map(|limit| Limit::new(format!("limit-{limit}"), bucket()))
}

/// The same in front of an application, keyed by the client's address.
pub fn layered(limits: usize, headers: bool) -> App {
    let layer = RateLimitLayer::builder(buckets(limits).map(|limit| limit.by(key::peer_ip())));
    let layer = if headers { layer } else { layer.headers([]) };
    App::Axum(App::hello().layer(layer.build().keep_body()))
}

/// A token bucket in front of an application, and a concurrency limit beside it if `has_slots`.
pub fn with_slots(has_slots: bool) -> App {
    let slots = has_slots.then(|| Limit::concurrent("streams", 10));
    let limits = buckets(1).chain(slots).map(|limit| limit.by(key::peer_ip()));
    App::Axum(App::hello().layer(RateLimitLayer::builder(limits).headers([]).build()))
}

pub fn in_memory(limits: impl IntoIterator<Item = Limit>) -> Box<dyn Memory> {
    Box::new(Limiter::builder(limits).store(MemoryStore::new().max_keys(2_000_000)).build())
}
