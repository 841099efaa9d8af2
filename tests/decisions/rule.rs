//! Limits as plain numbers, and random limits.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Rounding, SlidingLog, SlidingWindow, SlidingWindowCounter,
    TokenBucket,
};

use crate::dates::Dates;

/// One limit with the parameters of `src/guide/semantics.md`. Spans are in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    FixedWindow { limit: u32, period: u64 },
    Calendar { limit: u32, dates: Dates },
    SlidingLog { limit: u32, period: u64 },
    SlidingWindow { limit: u32, width: u64, buckets: u32 },
    Counter { limit: u32, period: u64, rounding: Rounding },
    Bucket { kind: Kind, capacity: u32, amount: u32, interval: u64 },
}

/// The algorithms that have a capacity and an amount per interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Tokens,
    TokensAtIntervals,
    Meter,
    Queue,
}

pub(crate) const DAY: u64 = 86_400_000_000;
pub(crate) const LONGEST: u64 = 366 * DAY;

impl Rule {
    pub(crate) fn algorithm(self) -> Algorithm {
        let us = Duration::from_micros;
        match self {
            Self::FixedWindow { limit, period } => FixedWindow::new(limit, us(period)).into(),
            Self::Calendar { limit, dates } => dates.of(limit).into(),
            Self::SlidingLog { limit, period } => SlidingLog::new(limit, us(period)).into(),
            Self::SlidingWindow { limit, width, buckets } => {
                SlidingWindow::new(limit, us(width * u64::from(buckets))).buckets(buckets).into()
            }
            Self::Counter { limit, period, rounding } => {
                SlidingWindowCounter::new(limit, us(period)).rounding(rounding).into()
            }
            Self::Bucket { kind, capacity, amount, interval } => match kind {
                Kind::Tokens => TokenBucket::new(capacity, amount, us(interval)).into(),
                Kind::TokensAtIntervals => TokenBucket::new(capacity, amount, us(interval)).at_intervals().into(),
                Kind::Meter => LeakyBucket::new(capacity, amount, us(interval)).into(),
                Kind::Queue => LeakyBucketQueue::new(capacity, amount, us(interval)).into(),
            },
        }
    }

    /// Returns the largest cost that can ever be allowed.
    pub(crate) fn capacity(self) -> u64 {
        match self {
            Self::FixedWindow { limit, .. }
            | Self::Calendar { limit, .. }
            | Self::SlidingLog { limit, .. }
            | Self::SlidingWindow { limit, .. }
            | Self::Counter { limit, .. } => u64::from(limit),
            Self::Bucket { kind: Kind::Queue, capacity, .. } => u64::from(capacity) + 1,
            Self::Bucket { capacity, .. } => u64::from(capacity),
        }
    }

    /// Returns the period, or the time in which a whole bucket refills, in µs.
    pub(crate) fn span(self) -> u128 {
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
    pub(crate) fn unit(self) -> u64 {
        match self {
            Self::FixedWindow { period, .. } | Self::SlidingLog { period, .. } | Self::Counter { period, .. } => period,
            Self::Calendar { .. } => DAY,
            Self::SlidingWindow { width, .. } => width,
            Self::Bucket { interval, .. } => interval,
        }
    }
}

/// Returns a limit of each algorithm, with `limit` tokens per second, or per day if that is the shortest period.
pub(crate) fn one_of_each(limit: u32) -> Vec<Rule> {
    const SECOND: u64 = 1_000_000;
    let bucket = |kind, capacity| Rule::Bucket { kind, capacity, amount: limit, interval: SECOND };
    vec![
        Rule::FixedWindow { limit, period: SECOND },
        Rule::Calendar { limit, dates: Dates::Days },
        Rule::SlidingLog { limit, period: SECOND },
        Rule::SlidingWindow { limit, width: SECOND / 10, buckets: 10 },
        Rule::Counter { limit, period: SECOND, rounding: Rounding::Up },
        Rule::Counter { limit, period: SECOND, rounding: Rounding::Down },
        bucket(Kind::Tokens, limit),
        bucket(Kind::TokensAtIntervals, limit),
        bucket(Kind::Meter, limit),
        // One request proceeds, and the others wait.
        bucket(Kind::Queue, limit.max(2) - 1),
    ]
}

/// Returns limits of a few tokens and a few µs, so that edge cases are frequent.
pub(crate) fn small_rule() -> impl Strategy<Value = Rule> {
    rule((1u32..=6).boxed(), (1u64..=40).boxed(), (1u32..=6).boxed())
}

/// Returns limits from the whole range, with its ends more often than at random.
pub(crate) fn any_rule() -> impl Strategy<Value = Rule> {
    let tokens = prop_oneof![
        3 => 1u32..=10,
        1 => Just(u32::MAX),
        1 => u32::MAX - 3..=u32::MAX,
        2 => any::<u32>().prop_map(|tokens| tokens.max(1)),
    ];
    let span = prop_oneof![
        2 => 1u64..=10,
        2 => prop::sample::select(vec![999, 1_000, 999_983, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000]),
        1 => LONGEST - 3..=LONGEST,
        2 => 1..=LONGEST,
    ];
    let buckets = prop_oneof![3 => 1u32..=60, 1 => any::<u32>().prop_map(|buckets| buckets.max(1))];
    rule(tokens.boxed(), span.boxed(), buckets.boxed())
}

/// Returns the buckets among these limits.
pub(crate) fn buckets(rules: impl Strategy<Value = Rule>) -> impl Strategy<Value = Rule> {
    rules.prop_filter("is a bucket", |rule| matches!(rule, Rule::Bucket { .. }))
}

fn rule(
    tokens: BoxedStrategy<u32>,
    span: BoxedStrategy<u64>,
    buckets: BoxedStrategy<u32>,
) -> impl Strategy<Value = Rule> {
    let window = (tokens.clone(), span.clone());
    let rounding = prop::sample::select(vec![Rounding::Up, Rounding::Down]);
    let kind = prop::sample::select(vec![Kind::Tokens, Kind::TokensAtIntervals, Kind::Meter, Kind::Queue]);
    let dates =
        prop_oneof![Just(Dates::Days), Just(Dates::Weeks), (1u8..=31).prop_map(Dates::Months), Just(Dates::Years)];
    prop_oneof![
        1 => (tokens.clone(), dates).prop_map(|(limit, dates)| Rule::Calendar { limit, dates }),
        1 => window.clone().prop_map(|(limit, period)| Rule::FixedWindow { limit, period }),
        1 => window.clone().prop_map(|(limit, period)| Rule::SlidingLog { limit, period }),
        1 => (window.clone(), buckets).prop_map(|((limit, width), buckets)| {
            let width = width.min(LONGEST / u64::from(buckets));
            Rule::SlidingWindow { limit, width, buckets }
        }),
        2 => (window, rounding).prop_map(|((limit, period), rounding)| Rule::Counter { limit, period, rounding }),
        4 => (kind, tokens.clone(), tokens, span).prop_map(|(kind, capacity, amount, interval)| {
            // No bucket may take longer than 2^52 µs to drain.
            let (tokens, span) = (u128::from(amount), u128::from(interval));
            let most = match kind {
                Kind::TokensAtIntervals => (1 << 52) / span * tokens,
                _ => (1 << 52) * tokens / span - u128::from(kind == Kind::Queue),
            };
            let capacity = u128::from(capacity).min(most) as u32;
            Rule::Bucket { kind, capacity, amount, interval }
        }),
    ]
}
