//! Announced waits are exact. Each is tried on a copy of the same history.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use support::store_fixture::midnight;
use tower_ratelimit::{Limit, Limiter, MemoryStore, Timestamp};

use crate::rule::every_rule;
use crate::subject::{KEY, Subject};
use crate::trace::{Step, Trace, traces};
use support::calls::Now;
use support::model::Answer;
use support::rule::{Kind, Rule};

/// Returns a new store with the same history.
fn replayed(rules: &[Rule], steps: &[Step]) -> Subject {
    let subject = Subject::new(rules);
    for step in steps {
        let _ = subject.set(step.at).acquire_costs(&step.costs);
    }
    subject
}

/// Returns the instant `wait` µs later, unless it is out of range.
fn later(at: u64, wait: u128) -> Option<u64> {
    let then = u64::try_from(u128::from(at) + wait).ok()?;
    (then <= Timestamp::MAX.as_micros()).then_some(then)
}

fn are_exact(trace: &Trace) -> Result<(), TestCaseError> {
    let subject = Subject::new(&trace.rules);
    let steps = trace.run();
    for (index, step) in steps.iter().enumerate() {
        let answer = Answer::from(&subject.set(step.at).acquire_costs(&step.costs));
        let copy = || replayed(&trace.rules, &steps[..=index]);

        if let Some(wait) = answer.retry_after {
            prop_assert!(wait > 0, "a denial that a retry at once would lift");
            if let Some(then) = later(step.at, wait) {
                prop_assert!(!copy().set(then - 1).acquire_costs(&step.costs).is_allowed(), "{step:?}: too long");
                prop_assert!(copy().set(then).acquire_costs(&step.costs).is_allowed(), "{step:?}: too short");
            }
        }
        for (limit, reported) in answer.limits.iter().enumerate() {
            if let Some(then) = reported.more_after.and_then(|wait| later(step.at, wait)) {
                prop_assert_eq!(copy().set(then - 1).levels()[limit].remaining, reported.remaining);
                prop_assert!(copy().set(then).levels()[limit].remaining > reported.remaining, "{step:?}: {reported:?}");
            } else if reported.more_after.is_none() {
                prop_assert_eq!(reported.remaining, trace.rules[limit].capacity());
            }
            if let Some(then) = later(step.at, reported.reset_after).filter(|_| reported.reset_after > 0) {
                prop_assert_eq!(copy().set(then - 1).levels()[limit].reset_after, 1);
                prop_assert_eq!(copy().set(then).levels()[limit].reset_after, 0);
            }
        }
    }
    Ok(())
}

/// After the announced reset, a key gets the same decisions as a new one, whatever requests follow.
fn key_is_unused_after_reset(before: &Trace, after: &Trace) -> Result<(), TestCaseError> {
    let subject = Subject::new(&before.rules);
    let steps = before.run();
    let mut last = None;
    for step in &steps {
        last = Some((step.at, Answer::from(&subject.set(step.at).acquire_costs(&step.costs))));
    }
    let (at, answer) = last.expect("a trace has a step");
    let longest = answer.limits.iter().map(|limit| limit.reset_after).max().unwrap_or(0);
    let Some(reset) = later(at, longest) else { return Ok(()) };

    // The requests that follow, for the same limits, begin at that instant.
    for step in after.against(&before.rules, reset).run() {
        subject.set(step.at);
        let seen = Answer::from(&subject.acquire_costs(&step.costs));
        let never_seen = Answer::from(&subject.acquire_as("another key", &step.costs));
        prop_assert_eq!(seen, never_seen);
    }
    Ok(())
}

proptest! {
    #![proptest_config(support::cases(200))]

    #[test]
    fn waits_are_exact(trace in traces(every_rule(), 3, 15)) {
        are_exact(&trace)?;
    }

    #[test]
    fn limits_reset_when_announced(before in traces(every_rule(), 3, 15), after in traces(every_rule(), 1, 10)) {
        key_is_unused_after_reset(&before, &after)?;
    }
}

/// A key is unused at the latest when its bucket would have drained at the rate at which it was charged.
#[test]
fn a_slower_limit_announces_the_instant_at_which_the_faster_one_has_drained() {
    for kind in [Kind::Tokens, Kind::TokensAtIntervals, Kind::Meter, Kind::Queue { burst: 0 }] {
        let rule = |capacity, amount| Rule::Bucket { kind, capacity, amount, interval: 1_000_000 };
        let clock = midnight();
        let store = Arc::new(MemoryStore::new().clock(clock.clone()));
        let [faster, slower] = [rule(100, 10), rule(10, 1)]
            .map(|rule| Limiter::builder(Limit::new("changed", rule.algorithm())).store(Arc::clone(&store)).build());
        let ask = |limiter: &Limiter, cost| limiter.acquire(KEY, cost).now();
        assert!(ask(&faster, 100).is_allowed());
        assert_eq!(ask(&slower, 1).retry_after(), Some(Duration::from_secs(10)), "{kind:?}");
        clock.advance(Duration::from_secs(10));
        assert!(ask(&slower, 10).is_allowed(), "{kind:?}");
    }
}
