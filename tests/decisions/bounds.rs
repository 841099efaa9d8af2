//! Upper bounds: no sequence of requests exceeds what the documentation of a limit allows.

use proptest::prelude::*;

use crate::rule::{every_rule, small_rule};
use crate::subject::Subject;
use crate::trace::{Trace, traces};
use support::rule::{DAY, Kind, Rule};

/// The admitted requests: their times, costs and delays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) cost: u64,
    pub(crate) delay: u128,
}

/// Returns the most tokens that the rule admits from one instant to another `span` µs later, both included.
pub(crate) fn most_within(rule: Rule, span: u64) -> Option<u128> {
    let span = u128::from(span);
    let capacity = u128::from(rule.capacity());
    match rule {
        Rule::FixedWindow { period, .. } | Rule::Counter { period, .. } => {
            (span < period.into()).then_some(2 * capacity)
        }
        Rule::Calendar { dates, .. } => (span < u128::from(dates.days().0 * DAY)).then_some(2 * capacity),
        Rule::SlidingLog { period, .. } => (span < period.into()).then_some(capacity),
        Rule::SlidingWindow { width, buckets, .. } => {
            (span <= u128::from(width) * u128::from(buckets - 1)).then_some(capacity)
        }
        // Up to an interval's tokens are refilled at the last instant.
        Rule::Bucket { kind: Kind::TokensAtIntervals, amount, interval, .. } => {
            Some(capacity + u128::from(amount) * span.div_ceil(interval.into()))
        }
        Rule::Bucket { amount, interval, .. } => Some(capacity + u128::from(amount) * span / u128::from(interval)),
    }
}

/// Returns the most tokens admitted in one aligned window, and the index of the window that contains `at`.
fn aligned(rule: Rule, at: u64) -> Option<(u64, i128)> {
    match rule {
        Rule::FixedWindow { limit, period } | Rule::Counter { limit, period, .. } => {
            Some((limit.into(), (at / period).into()))
        }
        Rule::Calendar { limit, dates } => Some((limit.into(), dates.start(at.into()))),
        _ => None,
    }
}

/// Fails if more was admitted between any two instants than the rule allows.
pub(crate) fn respects_span(rule: Rule, admitted: &[Admitted]) -> Result<(), TestCaseError> {
    for (index, first) in admitted.iter().enumerate() {
        let mut sum = 0;
        for last in &admitted[index..] {
            sum += u128::from(last.cost);
            let Some(most) = most_within(rule, last.at - first.at) else { break };
            prop_assert!(sum <= most, "{rule:?} admitted {sum}, not {most}, from {} to {}", first.at, last.at);
        }
    }
    Ok(())
}

/// Fails if more was admitted in any span or in a window than the rule allows.
pub(crate) fn respects_bound(rule: Rule, admitted: &[Admitted]) -> Result<(), TestCaseError> {
    respects_span(rule, admitted)?;
    for first in admitted {
        if let Some((most, _)) = aligned(rule, first.at) {
            let same = |other: &&Admitted| aligned(rule, other.at) == aligned(rule, first.at);
            let sum: u128 = admitted.iter().filter(same).map(|admitted| u128::from(admitted.cost)).sum();
            prop_assert!(sum <= most.into(), "{rule:?} admitted {sum} in the window of {}", first.at);
        }
    }
    Ok(())
}

/// Requests of a queue proceed one after the other, no closer together than the rate allows, but for its burst.
fn are_spaced(rule: Rule, admitted: &[Admitted]) -> Result<(), TestCaseError> {
    let Rule::Bucket { kind: Kind::Queue { burst }, amount, interval, .. } = rule else { return Ok(()) };
    let goes_on = |admitted: &Admitted| u128::from(admitted.at) + admitted.delay;
    for (index, first) in admitted.iter().enumerate() {
        let mut tokens = 0;
        for pair in admitted[index..].windows(2) {
            tokens += u128::from(pair[0].cost);
            let apart = goes_on(&pair[1]) - goes_on(first);
            // Instants are rounded up to whole µs, so two of them can seem closer by less than 1 µs.
            let spaced = tokens.saturating_sub(burst.into());
            prop_assert!((apart + 1) * u128::from(amount) > spaced * u128::from(interval), "{first:?}, {pair:?}");
        }
    }
    Ok(())
}

fn admits_at_most(trace: &Trace) -> Result<(), TestCaseError> {
    let subject = Subject::new(&trace.rules);
    let mut admitted = Vec::new();
    for step in trace.run() {
        let decision = subject.set(step.at).acquire_costs(&step.costs);
        if decision.is_allowed() && step.costs[0] > 0 {
            admitted.push(Admitted { at: step.at, cost: step.costs[0], delay: decision.delay().as_micros() });
        }
    }
    respects_bound(trace.rules[0], &admitted)?;
    are_spaced(trace.rules[0], &admitted)
}

proptest! {
    #![proptest_config(support::cases(400))]

    #[test]
    fn limits_never_admit_more_than_allowed(trace in traces(every_rule(), 1, 40)) {
        admits_at_most(&trace)?;
    }

    /// A client that always retries gets exactly what the rule allows.
    #[test]
    fn a_greedy_client_gets_exactly_the_limit(rule in small_rule(), start in 0u64..1_000) {
        let subject = Subject::new(&[rule]);
        let mut admitted = Vec::new();
        for at in start..start + 150 {
            while let decision = subject.set(at).acquire(1) && decision.is_allowed() {
                admitted.push(Admitted { at, cost: 1, delay: decision.delay().as_micros() });
            }
        }
        respects_bound(rule, &admitted)?;
        are_spaced(rule, &admitted)?;
        let first_burst = admitted.iter().filter(|admitted| admitted.at == start).count() as u64;
        prop_assert_eq!(first_burst, rule.capacity());
    }
}
