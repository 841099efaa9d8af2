//! Clocks that step back: no panic, no overflow, and no limit admits more.

use std::time::Duration;

use proptest::prelude::*;
use support::limits::all;
use tower_ratelimit::{Clock, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use crate::bounds::{Admitted, respects_span};
use crate::rule::{every_rule, one_of_each};
use crate::subject::Subject;
use support::model::{Answer, Model};
use support::rule::Rule;

pub(crate) const NOON: u64 = 1_767_268_800_000_000;

/// A movement of the clock before a request, forward or back, in thousandths of the limit's span; and the cost of the
/// request, in thousandths of the capacity.
pub(crate) type Step = (i64, u64);

pub(crate) fn steps(furthest_back: i64) -> impl Strategy<Value = Vec<Step>> {
    let on = prop_oneof![0i64..=100, 0i64..=1_200];
    let moves = prop_oneof![3 => on, 2 => -furthest_back..=0];
    prop::collection::vec((moves, prop_oneof![Just(0u64), 0u64..=1_000]), 1..40)
}

pub(crate) fn cost(rule: Rule, thousandths: u64) -> u64 {
    (rule.capacity() * thousandths / 1_000).max(1)
}

pub(crate) fn moved(rule: Rule, at: u64, thousandths: i64) -> u64 {
    let by = (rule.span() * u128::from(thousandths.unsigned_abs())).div_ceil(1_000);
    let by = u64::try_from(by).unwrap_or(u64::MAX);
    let to = if thousandths < 0 { at.saturating_sub(by) } else { at.saturating_add(by) };
    to.min(Timestamp::MAX.as_micros())
}

/// A clock that steps back by any span allows nothing that a clock standing still would deny.
fn time_waits(rule: Rule, steps: &[Step]) -> Result<(), TestCaseError> {
    let subject = Subject::new(&[rule]);
    let mut standing_still = Model::new(rule);
    let (mut at, mut latest) = (NOON, 0);
    for &(by, thousandths) in steps {
        at = moved(rule, at, by);
        let cost = cost(rule, thousandths);
        if subject.set(at).acquire(cost).is_allowed() {
            latest = latest.max(at);
            prop_assert!(
                standing_still.has_capacity(latest.into(), cost),
                "{cost} at {at}, when time stood at {latest}"
            );
            standing_still.charge(latest, cost);
        }
    }
    Ok(())
}

/// After a step back by any span, the announced waits are exact: a retry at that instant is allowed, and an earlier one
/// is denied.
fn waits_suffice(rule: Rule, steps: &[Step]) -> Result<(), TestCaseError> {
    let subject = Subject::new(&[rule]);
    let mut at = NOON;
    for &(by, thousandths) in steps {
        at = moved(rule, at, by);
        let cost = cost(rule, thousandths);
        let answer = Answer::from(&subject.set(at).acquire(cost));
        if let Some(wait) = answer.retry_after {
            let then = u128::from(at) + wait;
            let Some(then) = u64::try_from(then).ok().filter(|&then| then <= Timestamp::MAX.as_micros()) else { break };
            prop_assert!(!subject.set(then - 1).acquire(cost).is_allowed(), "{rule:?}: allowed before {wait}");
            prop_assert!(subject.set(then).acquire(cost).is_allowed(), "{rule:?}: denied after {wait}");
            at = then;
        }
    }
    Ok(())
}

/// In real time, no more is admitted than the limit allows.
fn real_time_counts(rule: Rule, steps: &[Step]) -> Result<(), TestCaseError> {
    let subject = Subject::new(&[rule]);
    let (mut at, mut really) = (NOON, NOON);
    let mut admitted: Vec<Admitted> = Vec::new();
    for &(by, thousandths) in steps {
        let to = moved(rule, at, by);
        let Some(passed) = really.checked_add(to.saturating_sub(at)) else { break };
        really = passed;
        at = to;
        let cost = cost(rule, thousandths);
        if subject.set(at).acquire(cost).is_allowed() {
            admitted.push(Admitted { at: really, cost, delay: 0 });
        }
    }
    respects_span(rule, &admitted)
}

proptest! {
    #![proptest_config(support::cases(600))]

    #[test]
    fn a_clock_that_steps_back_stands_still(rule in every_rule(), steps in steps(20_000)) {
        time_waits(rule, &steps)?;
    }

    #[test]
    fn the_announced_waits_suffice(rule in every_rule(), steps in steps(20_000)) {
        waits_suffice(rule, &steps)?;
    }

    #[test]
    fn limits_count_real_time(rule in every_rule(), steps in steps(20_000)) {
        real_time_counts(rule, &steps)?;
    }

    /// The clock jumps between arbitrary instants, with charges and refunds in between.
    #[test]
    fn no_instant_panics(rule in every_rule(), steps in prop::collection::vec((instant(), 0u64..=1_000), 1..30)) {
        let subject = Subject::new(&[rule]);
        let mut receipts = Vec::new();
        for (at, thousandths) in steps {
            subject.set(at);
            receipts.push(subject.acquire(cost(rule, thousandths)).into_receipt());
            prop_assert!(subject.remaining() <= rule.capacity());
            if thousandths % 3 == 0 {
                subject.refund(receipts.swap_remove(thousandths as usize % receipts.len()));
            }
            prop_assert!(subject.remaining() <= rule.capacity());
        }
    }
}

fn instant() -> impl Strategy<Value = u64> {
    let last = Timestamp::MAX.as_micros();
    prop_oneof![0u64..3, NOON..NOON + 100, last - 3..=last, 0..=last]
}

/// Several steps back to one instant do not multiply a limit: no state is lost.
#[test]
fn a_clock_that_steps_back_and_forth_admits_no_excess() {
    for rule in one_of_each(5) {
        let subject = Subject::new(&[rule]);
        let mut allowed = 0;
        for at in [NOON, NOON - 3_000_000, NOON, NOON - 3_000_000, NOON, NOON - 3_600_000_000, NOON] {
            allowed += (0..10).filter(|_| subject.set(at).acquire(1).is_allowed()).count();
        }
        assert_eq!(allowed as u64, rule.capacity(), "{rule:?}");
    }
}

/// A charge that no longer counts is not refunded, even if the clock steps back to an instant at which it counts.
#[test]
fn a_late_refund_returns_nothing_to_a_clock_that_steps_back() {
    for rule in one_of_each(5) {
        let subject = Subject::new(&[rule]);
        let decision = subject.set(NOON).acquire(3);
        let end = NOON + u64::try_from(subject.levels()[0].reset_after).unwrap();
        subject.set(end).refund(decision.into_receipt());
        assert_eq!(subject.remaining(), rule.capacity(), "{rule:?}");
        assert_eq!(subject.set(NOON).remaining(), rule.capacity() - 3, "{rule:?}");
    }
}

/// The store has dropped what has expired for longer than a second.
#[tokio::test]
async fn usage_that_has_just_expired_counts_again_after_a_step_back() {
    let minute = Duration::from_secs(60);
    for (name, limit) in all(10, minute) {
        let clock = ManualClock::new(Timestamp::from_micros(NOON));
        // Of one shard, which is soon swept.
        let store = MemoryStore::new().max_keys(2_000).clock(clock.clone());
        let limiter = Limiter::builder(Limit::new("limit", limit)).store(store).build();
        let full = limiter.acquire("key", 10).await.unwrap();
        clock.advance(full.outcomes()[0].reset_after() + Duration::from_secs(1) - Duration::from_micros(1));
        for key in 0..1_000 {
            let _ = limiter.acquire(key, 1).await.unwrap();
        }
        let now = clock.now().as_micros();
        clock.set(Timestamp::from_micros(now - 1_000_000));
        assert_eq!(limiter.peek("key", 10).await.unwrap().retry_after(), Some(Duration::from_micros(1)), "{name}");
    }
}
