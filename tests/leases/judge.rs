//! Judges admitted requests by the limit that the user configured. It knows nothing of leases.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, Rounding, SlidingLog, SlidingWindow, SlidingWindowCounter,
    TokenBucket,
};

/// A limit, by its numbers. Spans are in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) kind: Kind,
    pub(crate) tokens: u64,
    /// The tokens that a bucket regains per span.
    pub(crate) amount: u64,
    pub(crate) span: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    TokenBucket,
    LeakyBucket,
    IntervalBucket,
    FixedWindow,
    CalendarWindow,
    SlidingLog,
    SlidingWindow,
    CounterUp,
    CounterDown,
}

pub(crate) const KINDS: [Kind; 9] = [
    Kind::TokenBucket,
    Kind::LeakyBucket,
    Kind::IntervalBucket,
    Kind::FixedWindow,
    Kind::CalendarWindow,
    Kind::SlidingLog,
    Kind::SlidingWindow,
    Kind::CounterUp,
    Kind::CounterDown,
];

/// The buckets of a sliding window.
const BUCKETS: u64 = 10;

const DAY: u64 = 86_400_000_000;

impl Rule {
    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self.kind, Kind::TokenBucket | Kind::LeakyBucket | Kind::IntervalBucket)
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        let (tokens, amount, span) = (self.tokens as u32, self.amount as u32, Duration::from_micros(self.span));
        let counter = SlidingWindowCounter::new(tokens, span);
        match self.kind {
            Kind::TokenBucket => TokenBucket::new(tokens, amount, span).into(),
            Kind::LeakyBucket => LeakyBucket::new(tokens, amount, span).into(),
            Kind::IntervalBucket => TokenBucket::new(tokens, amount, span).at_intervals().into(),
            Kind::FixedWindow => FixedWindow::new(tokens, span).into(),
            Kind::CalendarWindow => CalendarWindow::daily(tokens).into(),
            Kind::SlidingLog => SlidingLog::new(tokens, span).into(),
            Kind::SlidingWindow => SlidingWindow::new(tokens, span).buckets(BUCKETS as u32).into(),
            Kind::CounterUp => counter.into(),
            Kind::CounterDown => counter.rounding(Rounding::Down).into(),
        }
    }

    /// Returns by how many tokens requests exceed the limit at most. Each has an instant of the store's clock, in µs and in
    /// ascending order, and a cost.
    pub(crate) fn excess(&self, admitted: &[(u64, u64)]) -> u64 {
        assert!(admitted.is_sorted_by_key(|(at, _)| *at));
        match self.kind {
            Kind::TokenBucket | Kind::LeakyBucket => self.excess_of_bucket(admitted),
            Kind::IntervalBucket => self.excess_of_intervals(admitted),
            Kind::FixedWindow => self.excess_of_windows(admitted, self.span, 1),
            Kind::CalendarWindow => self.excess_of_windows(admitted, DAY, 1),
            Kind::SlidingLog => self.excess_of_windows(admitted, 1, self.span),
            Kind::SlidingWindow => self.excess_of_windows(admitted, self.span / BUCKETS, BUCKETS),
            Kind::CounterUp | Kind::CounterDown => self.excess_of_counters(admitted),
        }
    }

    /// Returns by how many tokens requests surely exceed a token bucket or a fixed window, if only the span is known in
    /// which each was admitted: its first and last instant.
    pub(crate) fn sure_excess(&self, admitted: &[(u64, u64)]) -> u64 {
        let mut admitted = admitted.to_vec();
        if self.kind == Kind::FixedWindow {
            admitted.retain(|(first, last)| first / self.span == last / self.span);
            admitted.sort_unstable();
            return self.excess(&admitted.iter().map(|(first, _)| (*first, 1)).collect::<Vec<_>>());
        }
        assert_eq!(self.kind, Kind::TokenBucket);
        admitted.sort_unstable_by_key(|(_, last)| *last);
        let excess_since = |&(since, _): &(u64, u64)| {
            let mut sum = 0;
            let later = &admitted[admitted.partition_point(|(_, last)| *last < since)..];
            let excess = later.iter().filter(|(first, _)| *first >= since).map(|(_, last)| {
                sum += self.span;
                sum.saturating_sub(self.tokens * self.span + (last - since) * self.amount)
            });
            excess.max().unwrap_or(0)
        };
        admitted.iter().map(excess_since).max().unwrap_or(0).div_ceil(self.span)
    }

    /// In units of 1/`span` of a token.
    fn excess_of_bucket(&self, admitted: &[(u64, u64)]) -> u64 {
        let (mut level, mut last, mut most) = (0_u128, 0, 0);
        for &(at, cost) in admitted {
            level = level.saturating_sub(u128::from(at - last) * u128::from(self.amount));
            level += u128::from(cost) * u128::from(self.span);
            (last, most) = (at, level.max(most));
        }
        most.div_ceil(self.span.into()).saturating_sub(self.tokens.into()) as u64
    }

    /// As many refills as an interval of this length can contain.
    fn excess_of_intervals(&self, admitted: &[(u64, u64)]) -> u64 {
        let excess = |first: usize| {
            let mut sum = 0;
            admitted[first..].iter().map(move |&(at, cost)| {
                sum += cost;
                let refills = (at - admitted[first].0) / self.span + 1;
                sum.saturating_sub(self.tokens + refills * self.amount)
            })
        };
        (0..admitted.len()).flat_map(excess).max().unwrap_or(0)
    }

    /// The tokens of so many consecutive buckets of a width.
    fn excess_of_windows(&self, admitted: &[(u64, u64)], width: u64, buckets: u64) -> u64 {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for &(at, cost) in admitted {
            sum += cost;
            while admitted[first].0 / width + buckets <= at / width {
                sum -= admitted[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most.saturating_sub(self.tokens)
    }

    fn excess_of_counters(&self, admitted: &[(u64, u64)]) -> u64 {
        let (mut window, mut previous, mut current, mut most) = (0, 0, 0, 0);
        for &(at, cost) in admitted {
            let now = at / self.span;
            if now != window {
                previous = if now == window + 1 { current } else { 0 };
                (window, current) = (now, 0);
            }
            current += cost;
            let covered = self.span - at % self.span;
            let weighted = match self.kind {
                Kind::CounterUp => (previous * covered).div_ceil(self.span),
                _ => previous * covered / self.span,
            };
            most = most.max(weighted + current);
        }
        most.saturating_sub(self.tokens)
    }
}

#[test]
fn the_judge_finds_a_token_too_many() {
    for kind in KINDS {
        let rule = Rule { kind, tokens: 5, amount: 5, span: 1_000 };
        let (most, start) = (if kind == Kind::IntervalBucket { 10 } else { 5 }, 10 * DAY);
        assert_eq!(rule.excess(&[(start, most)]), 0, "{kind:?}");
        assert_eq!(rule.excess(&[(start, most), (start + 1, 1)]), 1, "{kind:?}");
    }
}

#[test]
fn only_requests_that_were_surely_admitted_within_a_span_are_counted_there() {
    for (kind, start) in [(Kind::TokenBucket, 10_000), (Kind::FixedWindow, 10_997)] {
        let rule = Rule { kind, tokens: 2, amount: 5, span: 1_000 };
        let spans = [(start, start + 1), (start, start + 2), (start + 2, start + 2)];
        assert_eq!(rule.sure_excess(&spans), 1, "{kind:?}");
        // The last one may have been admitted in the next window, or when the bucket had regained a token.
        assert_eq!(rule.sure_excess(&[spans[0], spans[1], (start + 2, start + 200)]), 0, "{kind:?}");
    }
}
