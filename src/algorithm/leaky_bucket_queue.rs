//! A leaky bucket as a queue.

use super::gcra::Gcra;
use super::macros::bucket_constructors;
use super::settings::{Settings, bucket_settings};
use super::size;
use super::state_period::StatePeriod;

/// A queue in which up to `waiting` tokens wait, and which `amount` tokens leave per `interval`, evenly spaced and
/// first in, first out. A request that finds the queue empty proceeds at once, one that finds it full is denied, and
/// any other is delayed.
///
/// - **Admits at most** `waiting` + 1 + `amount` · span / `interval` tokens in any span. Of these, at most 1 + `amount`
///   · span / `interval` tokens proceed in any span, no two closer together than `interval` / `amount`.
/// - **Keeps** 24 bytes per key: the instant at which the next slot is free, that of the last charge, and the rate.
/// - **Choose it** to shape traffic to a steady rate rather than cut it off, in front of services or in clients.
///
/// A delayed request waits in its own future, which holds the service that was ready for it. Put a concurrency limit
/// outside this layer, or waiting requests occupy its permits. A request that is dropped while it waits, because
/// its client has disconnected, gives its slot back if none has queued behind it. Otherwise the slot passes unused, and
/// the others keep the instants that they were promised.
///
/// If the rate is changed, requests that wait proceed as promised, and a new one finds the same number of tokens in the
/// queue, at the new rate. With a faster rate it may proceed before the last one that waits.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/leaky_bucket_queue.svg"))]
///
/// ```
/// use tower_ratelimit::LeakyBucketQueue;
///
/// // One request per second proceeds, and five may wait.
/// let queue = LeakyBucketQueue::per_second(1).waiting(5);
/// # let _ = queue;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucketQueue {
    pub(crate) capacity: u32,
    pub(crate) amount: u32,
    pub(crate) interval: u64,
}

bucket_constructors!(
    LeakyBucketQueue, waiting, try_waiting,
    new: "Creates a queue in which `capacity` tokens may wait, and which `amount` tokens leave per `interval`.",
    unit: "Creates a queue in which `rate` tokens, at least 1, may wait, and which as many leave",
    set: "Sets the capacity: the tokens that may wait."
);

impl LeakyBucketQueue {
    const fn from_checked(capacity: u32, amount: u32, interval: u64) -> Self {
        Self { capacity, amount, interval }
    }

    /// Returns the largest number of tokens in the queue: those that may [wait](Self::waiting), and the one that
    /// proceeds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity as u64 + 1
    }

    pub(super) fn gcra(&self) -> Gcra {
        Gcra { capacity: self.capacity(), amount: self.amount, interval: self.interval, is_queue: true }
    }
}

impl Settings for LeakyBucketQueue {
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
