//! A bucket of tokens that refills over time.

use super::gcra::Gcra;
use super::interval_bucket::IntervalBucket;
use super::macros::bucket_constructors;
use super::settings::{Settings, bucket_settings};
use super::size;
use super::state_period::StatePeriod;

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
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/token_bucket.svg"))]
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
pub struct TokenBucket {
    pub(crate) capacity: u32,
    pub(crate) amount: u32,
    pub(crate) interval: u64,
    refill: Refill,
}

/// The way in which a [`TokenBucket`] regains tokens.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Refill {
    /// Continuously, in fractions of a token.
    #[default]
    Continuous,
    /// All tokens of an interval at once, at its end. Intervals begin when a full bucket is first used.
    Interval,
}

bucket_constructors!(
    TokenBucket, burst, try_burst,
    new: "Creates a bucket of `capacity` tokens, which regains `amount` tokens per `interval`.",
    unit: "Creates a bucket of `rate` tokens, at least 1, which regains as many",
    set: "Sets the capacity: the tokens that are allowed at once."
);

impl TokenBucket {
    const fn from_checked(capacity: u32, amount: u32, interval: u64) -> Self {
        Self { capacity, amount, interval, refill: Refill::Continuous }
    }

    /// Refills the bucket at the end of each interval rather than continuously. See [`Refill::Interval`].
    #[must_use]
    pub const fn at_intervals(self) -> Self {
        self.refill(Refill::Interval)
    }

    /// Sets how tokens come back. Defaults to [`Refill::Continuous`].
    #[must_use]
    pub const fn refill(mut self, refill: Refill) -> Self {
        self.refill = refill;
        self
    }

    /// Returns the capacity of the bucket, in tokens.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// Returns how tokens come back.
    pub(super) const fn refills(&self) -> Refill {
        self.refill
    }

    pub(super) fn gcra(&self) -> Gcra {
        Gcra { capacity: self.capacity(), amount: self.amount, interval: self.interval, is_queue: false }
    }

    pub(super) fn interval_bucket(&self) -> IntervalBucket {
        IntervalBucket { capacity: self.capacity(), amount: self.amount, interval: self.interval }
    }
}

impl Settings for TokenBucket {
    fn state_period(&self) -> StatePeriod {
        StatePeriod::Micros(self.interval)
    }

    fn window(&self) -> u64 {
        match self.refill {
            Refill::Continuous => self.gcra().window(),
            Refill::Interval => self.interval_bucket().window(),
        }
    }

    fn share(self, parts: u32) -> Self {
        match self.refill {
            Refill::Continuous => {
                let (capacity, amount, interval) = size::share_of_bucket(self.size(), self.interval, parts);
                Self { capacity, amount, interval, ..self }
            }
            Refill::Interval => {
                let (amount, interval) = size::share_of_refill(self.amount, self.interval, parts);
                Self { capacity: size::share_of_tokens(self.capacity, parts), amount, interval, ..self }
            }
        }
    }

    bucket_settings!();
}
