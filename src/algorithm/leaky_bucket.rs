//! A leaky bucket as a meter.

use super::gcra::Gcra;
use super::macros::bucket_constructors;
use super::settings::{Settings, bucket_settings};
use super::size;
use super::state_period::StatePeriod;

/// A bucket that holds up to `capacity` tokens, is empty at first, and leaks `amount` tokens per `interval`,
/// continuously. A request adds its cost, and is denied if the bucket would overflow.
///
/// - **Admits at most** `capacity` + `amount` · span / `interval` tokens in any span.
/// - **Keeps** 24 bytes per key: the instant at which the bucket is empty again, that of the last charge, and the rate.
/// - **Choose it** when you think in levels rather than allowances. It is the mirror image of a continuous
///   [`TokenBucket`](crate::TokenBucket), and decides alike. To delay requests rather than deny them, use a
///   [`LeakyBucketQueue`](crate::LeakyBucketQueue).
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/leaky_bucket.svg"))]
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::LeakyBucket;
///
/// // Holds three tokens, and leaks one every 20 seconds.
/// let bucket = LeakyBucket::new(3, 1, Duration::from_secs(20));
/// # let _ = bucket;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucket {
    pub(crate) capacity: u32,
    pub(crate) amount: u32,
    pub(crate) interval: u64,
}

bucket_constructors!(
    LeakyBucket, burst, try_burst,
    new: "Creates a bucket for `capacity` tokens, from which `amount` tokens leak per `interval`.",
    unit: "Creates a bucket for `rate` tokens, at least 1, from which as many leak",
    set: "Sets the capacity: the tokens that fit into the bucket."
);

impl LeakyBucket {
    const fn from_checked(capacity: u32, amount: u32, interval: u64) -> Self {
        Self { capacity, amount, interval }
    }

    /// Returns the capacity of the bucket, in tokens.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    pub(super) fn gcra(&self) -> Gcra {
        Gcra { capacity: self.capacity(), amount: self.amount, interval: self.interval, is_queue: false }
    }
}

impl Settings for LeakyBucket {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Micros(self.interval)
    }

    fn window(&self) -> u64 {
        self.gcra().window()
    }

    fn share(self, parts: u32) -> Self {
        let (capacity, amount, interval) = size::share_of_bucket(self.size(), self.interval, parts);
        Self { capacity, amount, interval }
    }

    bucket_settings!();
}
