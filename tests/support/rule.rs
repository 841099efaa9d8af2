//! Limits as plain numbers.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Rounding, SlidingLog, SlidingWindow, SlidingWindowCounter,
    TokenBucket,
};

use crate::dates::Dates;

/// One limit with the parameters of `src/guide/semantics.md`. Spans are in µs.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    FixedWindow {
        limit: u32,
        period: u64,
    },
    Calendar {
        limit: u32,
        dates: Dates,
    },
    SlidingLog {
        limit: u32,
        period: u64,
    },
    SlidingWindow {
        limit: u32,
        width: u64,
        buckets: u32,
    },
    /// `weight` is in percent.
    Counter {
        limit: u32,
        period: u64,
        rounding: Rounding,
        weight: u32,
    },
    Bucket {
        kind: Kind,
        capacity: u32,
        amount: u32,
        interval: u64,
    },
}

/// The algorithms that have a capacity and an amount per interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Tokens,
    TokensAtIntervals,
    Meter,
    /// Lets so many more pass at once.
    Queue {
        burst: u32,
    },
}

/// A day in µs.
pub const DAY: u64 = 86_400_000_000;
pub const LONGEST: u64 = 366 * DAY;

impl Rule {
    pub fn algorithm(self) -> Algorithm {
        let us = Duration::from_micros;
        match self {
            Self::FixedWindow { limit, period } => FixedWindow::new(limit, us(period)).into(),
            Self::Calendar { limit, dates } => dates.of(limit).into(),
            Self::SlidingLog { limit, period } => SlidingLog::new(limit, us(period)).into(),
            Self::SlidingWindow { limit, width, buckets } => {
                SlidingWindow::new(limit, us(width * u64::from(buckets))).buckets(buckets).into()
            }
            Self::Counter { limit, period, rounding, weight } => {
                SlidingWindowCounter::new(limit, us(period)).rounding(rounding).weight(weight).into()
            }
            Self::Bucket { kind, capacity, amount, interval } => match kind {
                Kind::Tokens => TokenBucket::new(capacity, amount, us(interval)).into(),
                Kind::TokensAtIntervals => TokenBucket::new(capacity, amount, us(interval)).at_intervals().into(),
                Kind::Meter => LeakyBucket::new(capacity, amount, us(interval)).into(),
                Kind::Queue { burst } => LeakyBucketQueue::new(capacity, amount, us(interval)).burst(burst).into(),
            },
        }
    }

    /// Returns the largest cost that can ever be allowed.
    pub fn capacity(self) -> u64 {
        match self {
            Self::FixedWindow { limit, .. }
            | Self::Calendar { limit, .. }
            | Self::SlidingLog { limit, .. }
            | Self::SlidingWindow { limit, .. }
            | Self::Counter { limit, .. } => u64::from(limit),
            Self::Bucket { kind: Kind::Queue { burst }, capacity, .. } => u64::from(capacity) + 1 + u64::from(burst),
            Self::Bucket { capacity, .. } => u64::from(capacity),
        }
    }

    /// Returns the period, or the time in which a whole bucket refills, in µs.
    pub fn span(self) -> u128 {
        match self {
            Self::FixedWindow { period, .. } | Self::SlidingLog { period, .. } | Self::Counter { period, .. } => {
                u128::from(period)
            }
            Self::Calendar { dates, .. } => u128::from(dates.days().1 * DAY),
            Self::SlidingWindow { width, buckets, .. } => u128::from(width) * u128::from(buckets),
            Self::Bucket { kind, amount, interval, .. } => {
                let [capacity, amount, interval] = [self.capacity().into(), amount.into(), u128::from(interval)];
                match kind {
                    Kind::TokensAtIntervals => capacity.div_ceil(amount) * interval,
                    _ => (capacity * interval).div_ceil(amount),
                }
            }
        }
    }

    /// Returns the span at whose multiples the state changes, in µs.
    pub fn unit(self) -> u64 {
        match self {
            Self::FixedWindow { period, .. } | Self::SlidingLog { period, .. } | Self::Counter { period, .. } => period,
            Self::Calendar { .. } => DAY,
            Self::SlidingWindow { width, .. } => width,
            Self::Bucket { interval, .. } => interval,
        }
    }
}

/// Returns a limit of each algorithm, with `limit` tokens per `period`, or per day if that is the shortest period.
pub fn each(limit: u32, period: u64) -> Vec<Rule> {
    let bucket = |kind, capacity| Rule::Bucket { kind, capacity, amount: limit, interval: period };
    vec![
        Rule::FixedWindow { limit, period },
        Rule::Calendar { limit, dates: Dates::Days },
        Rule::SlidingLog { limit, period },
        Rule::SlidingWindow { limit, width: period / 10, buckets: 10 },
        Rule::Counter { limit, period, rounding: Rounding::Up, weight: 100 },
        Rule::Counter { limit, period, rounding: Rounding::Down, weight: 40 },
        bucket(Kind::Tokens, limit),
        bucket(Kind::TokensAtIntervals, limit),
        bucket(Kind::Meter, limit),
        // One request proceeds, and the others wait.
        bucket(Kind::Queue { burst: 0 }, limit.max(2) - 1),
    ]
}
