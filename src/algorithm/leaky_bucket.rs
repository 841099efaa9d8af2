//! A bucket that leaks: the meter.

use super::drain::Drain;
use super::shape::bucket_constructors;

/// A bucket that holds `capacity` tokens, empty at first. A request pours its cost in, `amount`
/// leak out evenly per `interval`, and what would spill over is denied.
///
/// - **Admits at most**: `capacity` + `amount` · span / interval in any span.
/// - **Remembers**: 16 bytes a key: the instant at which the bucket is empty again.
/// - **Choose it when** you think in levels rather than allowances: it is a
///   [`TokenBucket`](crate::TokenBucket) seen from the other side, and decides alike. To smooth
///   traffic instead of cutting it off, use a [`LeakyBucketQueue`](crate::LeakyBucketQueue).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::LeakyBucket;
///
/// // Three at once; then one leaks every 20 seconds.
/// let bucket = LeakyBucket::new(3, 1, Duration::from_secs(20));
/// # let _ = bucket;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucket {
    pub(crate) capacity: u32,
    pub(crate) amount: u32,
    pub(crate) interval: u64,
}

bucket_constructors!(LeakyBucket, burst, "in the bucket at most", "leak out");

impl LeakyBucket {
    const fn of(capacity: u32, amount: u32, interval: u64) -> Self {
        Self { capacity, amount, interval }
    }

    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.capacity)
    }

    pub(super) fn window(&self) -> u128 {
        self.drain().span()
    }

    pub(super) fn share(self, parts: u32) -> Self {
        self.even_share(parts)
    }

    pub(super) fn drain(&self) -> Drain {
        Drain::new(self.capacity(), self.amount, self.interval)
    }
}
