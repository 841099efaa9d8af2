//! Limits of buckets.

use std::time::Duration;

use super::super::settings::{Algorithm, Kind, Refill};
use crate::error::ConfigError;
use crate::error::validation::{self, DAY, HOUR, MINUTE, SECOND, checked};

/// The constructors, and the setter of the capacity, of a limit with a capacity and an amount per interval. The
/// literals are sentences of their documentation.
macro_rules! constructors {
    ($name:ident, $kind:expr, $set:ident, new: $new:literal, unit: $unit_doc:literal, set: $set_doc:literal) => {
        impl $name {
            #[doc = $new]
            ///
            /// Both numbers of tokens are at least 1, and the interval is 1 µs to 366 days. All tokens must drain
            /// within 2^52 µs, 142 years.
            ///
            /// # Panics
            ///
            /// Panics if an argument is out of its range, or `interval` is not in whole microseconds. In a constant,
            /// this is a compile-time error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(capacity: u32, amount: u32, interval: Duration) -> Self {
                Self(checked!(Algorithm::bucket($kind, capacity, amount, interval)))
            }

            /// Fallible version of [`new`](Self::new), for values that are read at runtime.
            ///
            /// # Errors
            ///
            /// Returns an error if `capacity` or `amount` is 0, `interval` is 0, longer than 366 days, or not in whole
            /// microseconds, or the tokens do not drain within 142 years.
            pub fn try_new(capacity: u32, amount: u32, interval: Duration) -> Result<Self, ConfigError> {
                Ok(Self(Algorithm::bucket($kind, capacity, amount, interval)?))
            }

            constructors!(@unit per_second, SECOND, "second", $unit_doc, $set);
            constructors!(@unit per_minute, MINUTE, "minute", $unit_doc, $set);
            constructors!(@unit per_hour, HOUR, "hour", $unit_doc, $set);
            constructors!(@unit per_day, DAY, "day", $unit_doc, $set);

            #[doc = concat!($set_doc, " At least 1. It may be less than the amount.")]
            ///
            /// # Panics
            ///
            /// Panics if `capacity` is 0, or takes more than 142 years to drain. In a constant, this is a compile-time
            /// error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn $set(self, capacity: u32) -> Self {
                Self(checked!(self.0.with_capacity(stringify!($set), capacity)))
            }
        }

        impl From<$name> for Algorithm {
            fn from(limit: $name) -> Self {
                limit.0
            }
        }
    };
    (@unit $name:ident, $interval:ident, $unit:literal, $unit_doc:literal, $set:ident) => {
        #[doc = concat!($unit_doc, " per ", $unit, ". [`", stringify!($set), "`](Self::", stringify!($set), ")")]
        /// sets another capacity.
        ///
        /// # Panics
        ///
        /// Panics if `rate` is 0. In a constant, this is a compile-time error. [`try_new`](Self::try_new) returns an
        /// error instead.
        #[must_use]
        #[track_caller]
        pub const fn $name(rate: u32) -> Self {
            Self::new(checked!(validation::tokens("rate", rate)), rate, $interval)
        }
    };
}

/// A bucket of `capacity` tokens, full at first, which regains `amount` tokens per `interval`: continuously, or
/// [all at once](Self::at_intervals) at the end of each interval.
///
/// - **Admits at most** `capacity` + `amount` · span / `interval` tokens in any span: a burst of the whole bucket, then
///   the refill rate. With refills at intervals, span / `interval` rounds up.
/// - **Keeps** 24 bytes per key: the instant at which the bucket is full again, that of the last charge, and the rate.
/// - **Choose it** when bursts are welcome and the average rate is what counts. It is the usual choice for APIs. With
///   refills at intervals, it expresses rules such as "10 attempts, and one more every hour".
///
/// A continuous bucket is decided by the generic cell rate algorithm (GCRA, ITU-T I.371).
///
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/token_bucket.svg"))]
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::TokenBucket;
///
/// // 10 requests per second on average, in bursts of up to 20.
/// let api = TokenBucket::per_second(10).burst(20);
/// assert_eq!(api, TokenBucket::new(20, 10, Duration::from_secs(1)));
///
/// // $200 at once, and $50 back per day: continuously, or all of it when a day has passed.
/// let continuous = TokenBucket::per_day(50).burst(200);
/// let daily = TokenBucket::per_day(50).burst(200).at_intervals();
///
/// // 3 per minute, all of which come back together.
/// let strict = TokenBucket::per_minute(3).at_intervals();
/// # let _ = (continuous, daily, strict);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TokenBucket(Algorithm);

constructors!(
    TokenBucket, Kind::TokenBucket(Refill::Continuous), burst,
    new: "Creates a bucket of `capacity` tokens, which regains `amount` tokens per `interval`.",
    unit: "Creates a bucket of `rate` tokens, at least 1, which regains as many",
    set: "Sets the capacity: the tokens that are allowed at once."
);

impl TokenBucket {
    /// Refills the bucket at the end of each interval rather than continuously. See [`Refill::Interval`].
    ///
    /// # Panics
    ///
    /// Panics if the bucket is not full after 142 years of whole intervals. In a constant, this is a compile-time
    /// error. [`try_refill`](Self::try_refill) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn at_intervals(self) -> Self {
        self.refill(Refill::Interval)
    }

    /// Sets how tokens come back. Defaults to [`Refill::Continuous`].
    ///
    /// # Panics
    ///
    /// As [`at_intervals`](Self::at_intervals).
    #[must_use]
    #[track_caller]
    pub const fn refill(self, refill: Refill) -> Self {
        Self(checked!(self.0.with_refill(refill)))
    }

    /// Fallible version of [`refill`](Self::refill).
    ///
    /// # Errors
    ///
    /// Returns an error if the bucket is not full after 142 years of whole intervals.
    pub fn try_refill(self, refill: Refill) -> Result<Self, ConfigError> {
        Ok(Self(self.0.with_refill(refill)?))
    }
}

/// A bucket that holds up to `capacity` tokens, is empty at first, and leaks `amount` tokens per `interval`,
/// continuously. A request adds its cost, and is denied if the bucket would overflow.
///
/// - **Admits at most** `capacity` + `amount` · span / `interval` tokens in any span.
/// - **Keeps** 24 bytes per key: the instant at which the bucket is empty again, that of the last charge, and the rate.
/// - **Choose it** when you think in levels rather than allowances. It is the mirror image of a continuous
///   [`TokenBucket`], and decides alike. To delay requests rather than deny them, use a
///   [`LeakyBucketQueue`].
///
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/leaky_bucket.svg"))]
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
pub struct LeakyBucket(Algorithm);

constructors!(
    LeakyBucket, Kind::LeakyBucket, burst,
    new: "Creates a bucket for `capacity` tokens, from which `amount` tokens leak per `interval`.",
    unit: "Creates a bucket for `rate` tokens, at least 1, from which as many leak",
    set: "Sets the capacity: the tokens that fit into the bucket."
);

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
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/leaky_bucket_queue.svg"))]
///
/// ```
/// use tower_ratelimit::LeakyBucketQueue;
///
/// // One request per second proceeds, and five may wait.
/// let queue = LeakyBucketQueue::per_second(1).waiting(5);
/// # let _ = queue;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucketQueue(Algorithm);

constructors!(
    LeakyBucketQueue, Kind::LeakyBucketQueue, waiting,
    new: "Creates a queue in which `capacity` tokens may wait, and which `amount` tokens leave per `interval`.",
    unit: "Creates a queue in which `rate` tokens, at least 1, may wait, and which as many leave",
    set: "Sets the capacity: the tokens that may wait."
);
