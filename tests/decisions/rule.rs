//! Random limits.

use proptest::prelude::*;
use support::dates::Dates;
use support::rule::{Kind, LONGEST, Rule, each};
use tower_ratelimit::Rounding;

/// Returns a limit of each algorithm, with `limit` tokens per second, or per day if that is the shortest period.
pub(crate) fn one_of_each(limit: u32) -> Vec<Rule> {
    each(limit, 1_000_000)
}

/// Returns limits of a few tokens and a few µs, so that edge cases are frequent.
pub(crate) fn small_rule() -> impl Strategy<Value = Rule> {
    rule((1u32..=6).boxed(), (1u64..=40).boxed(), (1u32..=6).boxed())
}

/// Returns limits from the whole range, with its ends more often than at random.
fn any_rule() -> impl Strategy<Value = Rule> {
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

/// Returns limits of every size.
pub(crate) fn every_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![small_rule(), any_rule()]
}

/// Returns the buckets among these limits.
pub(crate) fn buckets(rules: impl Strategy<Value = Rule>) -> impl Strategy<Value = Rule> {
    rules.prop_filter("is a bucket", |rule| matches!(rule, Rule::Bucket { .. }))
}

/// A queue without a burst.
const QUEUE: Kind = Kind::Queue { burst: 0 };

fn rule(
    tokens: BoxedStrategy<u32>,
    span: BoxedStrategy<u64>,
    buckets: BoxedStrategy<u32>,
) -> impl Strategy<Value = Rule> {
    let window = (tokens.clone(), span.clone());
    let rounding = prop::sample::select(vec![Rounding::Up, Rounding::Down]);
    let kind = prop::sample::select(vec![Kind::Tokens, Kind::TokensAtIntervals, Kind::Meter, QUEUE]);
    let burst = prop_oneof![2 => Just(0), 3 => tokens.clone()];
    let weight = prop_oneof![2 => Just(100), 3 => 1u32..=100];
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
        2 => (window, rounding, weight).prop_map(|((limit, period), rounding, weight)| {
            Rule::Counter { limit, period, rounding, weight }
        }),
        4 => (kind, tokens.clone(), tokens, span, burst).prop_map(|(kind, capacity, amount, interval, burst)| {
            // No bucket may take longer than 2^52 µs to drain.
            let (tokens, span) = (u128::from(amount), u128::from(interval));
            let most = match kind {
                Kind::TokensAtIntervals => (1 << 52) / span * tokens,
                _ => ((1 << 52) * tokens / span).min(1 << 32) - u128::from(kind == QUEUE),
            };
            let capacity = u128::from(capacity).min(most) as u32;
            let kind = match kind {
                Kind::Queue { .. } => Kind::Queue { burst: u128::from(burst).min(most - u128::from(capacity)) as u32 },
                kind => kind,
            };
            Rule::Bucket { kind, capacity, amount, interval }
        }),
    ]
}
