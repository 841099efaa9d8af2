//! Atomicity: a request that any limit denies is charged to none of them.

use crate::rule::{every_rule, one_of_each};
use crate::subject::Subject;
use crate::trace::{Trace, traces};
use proptest::prelude::*;
use support::calls::Outcomes;
use support::model::ExpectedOutcome;
use support::rule::{DAY, Rule};
use support::time::MIDNIGHT;

/// Also with more limits than fit into the inline buffers.
#[test]
fn the_last_of_many_limits_is_decided() {
    const WIDE: Rule = Rule::FixedWindow { limit: 1_000, period: DAY };
    for rule in one_of_each(3) {
        for limits in 2..=20 {
            let subject = Subject::new(&[vec![WIDE; limits - 1], vec![rule]].concat());
            subject.set(1_000_003);
            let asked = || subject.acquire_costs(&vec![1; limits]).is_allowed();
            let alone = Subject::new(&[rule]);
            alone.set(1_000_003);
            for request in 0..=rule.capacity() + 1 {
                let expected = alone.acquire_costs(&[1]).is_allowed();
                assert_eq!(asked(), expected, "{rule:?}, request {request} of {limits} limits");
            }
        }
    }
}

/// Returns the remaining tokens, without the effect of the last decision.
fn left(levels: &[ExpectedOutcome]) -> Vec<(u64, Option<u128>, u128)> {
    levels.iter().map(|level| (level.remaining, level.more_after, level.reset_after)).collect()
}

fn takes_nothing(trace: &Trace) -> Result<(), TestCaseError> {
    let subject = Subject::new(&trace.rules);
    for step in trace.run() {
        let before = left(&subject.set(step.at).levels());
        let decision = subject.acquire_costs(&step.costs);
        if decision.is_allowed() && step.costs.iter().any(|&cost| cost > 0) {
            continue;
        }
        let charged = !decision.into_receipt().is_empty();
        prop_assert!(!charged, "a receipt for nothing");
        prop_assert_eq!(&left(&subject.levels()), &before);
        // Repeated peeks do not differ.
        for _ in 0..100 {
            let _ = subject.acquire_costs(&step.costs);
        }
        prop_assert_eq!(left(&subject.levels()), before);
    }
    Ok(())
}

proptest! {
    #![proptest_config(support::cases(400))]

    #[test]
    fn denials_take_nothing(trace in traces(every_rule(), 3, 20)) {
        takes_nothing(&trace)?;
    }

    /// At any position of the limit that denies, the others keep their tokens.
    #[test]
    fn no_other_limit_is_charged_whichever_denies(others in prop::collection::vec(every_rule(), 3), denying in 0usize..3) {
        let subject = Subject::new(&others);
        subject.set(1_000_003);
        let cost = |index: usize| if index == denying { others[index].capacity() + 1 } else { 1 };
        let costs: Vec<u64> = (0..3).map(cost).collect();
        let decision = subject.acquire_costs(&costs);
        prop_assert!(!decision.is_allowed());
        prop_assert_eq!(decision.remaining(), others.iter().map(|rule| rule.capacity()).collect::<Vec<_>>());
        prop_assert_eq!(decision.verdicts(), [0, 1, 2].map(|index| index != denying));
    }
}

#[test]
fn a_peek_decides_as_an_acquire_would_and_takes_nothing() {
    for rule in one_of_each(3) {
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        for left in (0..=3).rev() {
            for _ in 0..3 {
                assert_eq!(subject.peek(1).is_allowed(), left > 0, "{rule:?} with {left} left");
                assert_eq!(subject.peek(left).remaining()[0], left, "{rule:?}");
                assert!(!subject.peek(left + 1).is_allowed(), "{rule:?} with {left} left");
            }
            assert!(subject.peek(1).into_receipt().is_empty());
            let (peeked, acquired) = (subject.peek(1), subject.acquire(1));
            assert_eq!(peeked.verdict(), acquired.verdict(), "{rule:?}");
        }
    }
}

#[test]
fn cost_zero_is_allowed_by_a_limit_that_is_used_up_and_takes_nothing() {
    for rule in one_of_each(2) {
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        let untouched = subject.acquire(0);
        assert!(untouched.is_allowed() && untouched.outcomes()[0].reset_after().is_zero(), "{rule:?}");
        assert!(subject.acquire(2).is_allowed());
        for _ in 0..10 {
            let decision = subject.acquire(0);
            assert!(decision.is_allowed() && decision.delay().is_zero(), "{rule:?}");
            assert_eq!(decision.remaining()[0], 0, "{rule:?}");
        }
    }
}
