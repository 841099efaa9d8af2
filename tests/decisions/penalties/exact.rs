//! The documentation of `Penalty`, sentence by sentence.

use std::time::Duration;

use support::calls::{Calls, Outcomes};
use support::event_log::EventLog;
use support::limits::acquire_costs;
use support::store_fixture::{StoreFixture, on_both_stores};
use support::time::{DAY, MICRO, MINUTE, SECOND};
use tower_ratelimit::{
    Decision, FixedWindow, LeakyBucketQueue, Limit, Limiter, Penalty, SlidingLog, TokenBucket, Verdict,
};

use crate::bad_input::panic_of;
use crate::penalties::ExhaustedKey;

on_both_stores!(
    the_nth_strike_begins_a_lockout_of_exactly_its_length,
    strikes_count_together_within_a_span_that_begins_with_the_first,
    each_lockout_doubles_up_to_the_longest,
    a_penalty_level_lasts_as_long_as_its_lockout,
    how_long_a_penalty_level_lasts_is_configurable,
    strikes_and_levels_expire_independently,
    the_announced_reset_is_when_the_state_expires,
    only_denials_of_the_limit_itself_are_strikes,
    a_locked_out_key_is_not_charged_to_other_limits,
    a_lockout_is_of_one_key_under_one_limit,
    the_longer_of_two_waits_is_announced,
    a_reset_clears_a_penalty_and_a_refund_does_not,
    a_shadow_limit_has_no_penalty,
    soft_limits_and_queues_can_have_penalties,
    a_clock_that_steps_back_shortens_nothing,
    waiting_is_not_a_strike,
);

/// Returns a limiter with one token per second, which alone would allow requests during most of a lockout.
fn bucket(fixture: &StoreFixture, penalty: Penalty) -> Limiter {
    fixture.limiter(Limit::new("bucket", TokenBucket::new(1, 1, SECOND)).penalty(penalty))
}

/// Returns the wait of a denial, whether its key is locked out, the remaining tokens, and when more are back.
fn denial(decision: &Decision) -> (Option<Duration>, bool, u64, Option<Duration>) {
    let outcome = &decision.outcomes()[0];
    assert_eq!(decision.is_locked_out(), outcome.is_locked_out());
    (decision.retry_after(), decision.is_locked_out(), outcome.remaining(), outcome.more_after())
}

async fn the_nth_strike_begins_a_lockout_of_exactly_its_length(fixture: StoreFixture) {
    let limiter = bucket(&fixture, Penalty::after(3, MINUTE).locked_out_for(10 * SECOND));
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    assert!(ask().await.is_allowed());
    for _ in 0..2 {
        assert_eq!(denial(&ask().await), (Some(SECOND), false, 0, Some(SECOND)));
    }
    let third = ask().await;
    assert_eq!(denial(&third), (Some(10 * SECOND), true, 0, Some(10 * SECOND)));
    assert_eq!(third.outcomes()[0].reset_after(), 20 * SECOND, "the level is kept for as long as the lockout");
    // None of these lengthens the lockout.
    for left in (1..10).rev() {
        fixture.advance(SECOND);
        assert_eq!(denial(&ask().await), (Some(left * SECOND), true, 0, Some(left * SECOND)));
    }
    fixture.advance(SECOND - MICRO);
    assert_eq!(denial(&ask().await), (Some(MICRO), true, 0, Some(MICRO)));
    fixture.advance(MICRO);
    let allowed = ask().await;
    assert_eq!((allowed.is_allowed(), denial(&allowed)), (true, (None, false, 0, Some(SECOND))));
    assert_eq!(allowed.outcomes()[0].reset_after(), 10 * SECOND);
}

async fn strikes_count_together_within_a_span_that_begins_with_the_first(fixture: StoreFixture) {
    let key = ExhaustedKey::new(&fixture, Penalty::after(3, MINUTE).locked_out_for(SECOND)).await;
    // The third is the first strike of another span, although the second is only 30 seconds old.
    for wait in [Duration::ZERO, 30 * SECOND, 30 * SECOND, MINUTE - MICRO] {
        fixture.advance(wait);
        key.strike().await;
    }
    key.begin(SECOND).await;
    // Earlier strikes have expired.
    key.strike().await;
    key.strike().await;
    key.begin(SECOND).await;
}

async fn each_lockout_doubles_up_to_the_longest(fixture: StoreFixture) {
    let penalty = Penalty::after(1, MINUTE).locked_out_for(SECOND).doubling_up_to(5 * SECOND);
    let key = ExhaustedKey::new(&fixture, penalty).await;
    for seconds in [1, 2, 4, 5, 5, 5] {
        key.begin(seconds * SECOND).await;
    }
    assert_eq!(key.events.take(), ["one 1 1s", "one 2 2s", "one 3 4s", "one 4 5s", "one 5 5s", "one 6 5s"]);
}

async fn a_penalty_level_lasts_as_long_as_its_lockout(fixture: StoreFixture) {
    let penalty = Penalty::after(1, MINUTE).locked_out_for(SECOND).doubling_up_to(MINUTE);
    let key = ExhaustedKey::new(&fixture, penalty).await;
    for (wait, seconds) in [(Duration::ZERO, 1), (SECOND - MICRO, 2), (2 * SECOND - MICRO, 4), (4 * SECOND, 1)] {
        fixture.advance(wait);
        key.begin(seconds * SECOND).await;
    }
}

async fn how_long_a_penalty_level_lasts_is_configurable(fixture: StoreFixture) {
    let penalty = Penalty::after(2, MINUTE).locked_out_for(SECOND).doubling_up_to(MINUTE).remembered_for(10 * SECOND);
    let key = ExhaustedKey::new(&fixture, penalty).await;
    // The first strike is earlier than the lockout, which begins one µs before the level expires, or when it does.
    for (before_strike, before_lockout, seconds) in
        [(Duration::ZERO, Duration::ZERO, 1), (9 * SECOND, SECOND - MICRO, 2), (9 * SECOND, SECOND, 1)]
    {
        fixture.advance(before_strike);
        key.strike().await;
        fixture.advance(before_lockout);
        key.begin(seconds * SECOND).await;
    }
}

/// Strikes that count for longer than the level is kept, and vice versa.
async fn strikes_and_levels_expire_independently(fixture: StoreFixture) {
    // The time of the next strike after the end of the lockout, and the lockout that it begins.
    for (within, kept, then, begins) in [
        (10, 60, 10 * SECOND - MICRO, Some(2)),
        (10, 60, 10 * SECOND, None),
        (60, 10, 10 * SECOND - MICRO, Some(2)),
        (60, 10, 10 * SECOND, Some(1)),
        (60, 10, 60 * SECOND, None),
        (10, 10, 10 * SECOND - MICRO, Some(2)),
        (10, 10, 10 * SECOND, None),
    ] {
        let penalty = Penalty::after(2, within * SECOND).locked_out_for(SECOND).doubling_up_to(MINUTE);
        let key = ExhaustedKey::new(&fixture, penalty.remembered_for(kept * SECOND)).await;
        key.strike().await;
        key.begin(SECOND).await;
        key.strike().await;
        fixture.advance(then);
        match begins {
            Some(seconds) => key.begin(seconds * SECOND).await,
            None => key.strike().await,
        }
        key.limiter.reset("key").await.unwrap();
    }
}

async fn the_announced_reset_is_when_the_state_expires(fixture: StoreFixture) {
    let limiter = bucket(&fixture, Penalty::after(2, 10 * MINUTE).locked_out_for(SECOND).remembered_for(MINUTE));
    let reset_after = async || limiter.peek("key", 0).await.unwrap().outcomes()[0].reset_after();
    assert_eq!(reset_after().await, Duration::ZERO);
    for (allowed, reset) in [(true, SECOND), (false, 10 * MINUTE), (false, SECOND + MINUTE)] {
        assert_eq!((limiter.allows("key", 1).await, reset_after().await), (allowed, reset));
    }
    fixture.advance(SECOND + MINUTE - MICRO);
    assert_eq!(reset_after().await, MICRO);
    fixture.advance(MICRO);
    assert_eq!(reset_after().await, Duration::ZERO);
}

async fn only_denials_of_the_limit_itself_are_strikes(fixture: StoreFixture) {
    let events = EventLog::default();
    let limiter = fixture
        .limiter_builder([
            Limit::new("small", FixedWindow::new(1, DAY)),
            Limit::new("large", FixedWindow::new(5, DAY)).penalty(Penalty::after(2, MINUTE).locked_out_for(MINUTE)),
        ])
        .observe(events.observer())
        .build();
    let ask = async |cost| acquire_costs(&limiter, "key", &[1, cost]).await.unwrap();
    assert!(ask(1).await.is_allowed());
    for _ in 0..4 {
        // The small limit denies. The large one allows, or has a cost of 0.
        assert!(!ask(1).await.is_locked_out() && !ask(0).await.is_locked_out());
        // Nor is a peek a strike.
        assert!(!limiter.peek("key", 9).await.unwrap().is_allowed());
    }
    assert!(!limiter.peek("key", 0).await.unwrap().outcomes()[1].is_locked_out());
    // A cost over the capacity is a strike, although no wait can help.
    for is_locked_out in [false, true] {
        let denied = ask(6).await;
        assert_eq!((denied.retry_after(), denied.is_locked_out()), (None, is_locked_out));
    }
    assert_eq!(events.take(), ["large 1 60s"]);
    assert_eq!(ask(1).await.outcomes()[1].verdict(), Verdict::Deny { retry_after: Some(MINUTE) });
}

async fn a_locked_out_key_is_not_charged_to_other_limits(fixture: StoreFixture) {
    let strict =
        Limit::new("strict", TokenBucket::new(1, 1, SECOND)).penalty(Penalty::after(1, MINUTE).locked_out_for(MINUTE));
    let (large, log) = (Limit::new("large", FixedWindow::new(100, DAY)), Limit::new("log", SlidingLog::new(100, DAY)));
    let limiter = fixture.limiter([large, strict, log]);
    assert!(limiter.allows("key", 1).await);
    assert_eq!(limiter.left("key").await, [99, 0, 99]);
    assert!(limiter.acquire("key", 1).await.unwrap().is_locked_out());
    fixture.advance(2 * SECOND);
    for _ in 0..3 {
        let denied = limiter.acquire("key", 1).await.unwrap();
        assert_eq!((denied.retry_after(), denied.verdicts()), (Some(58 * SECOND), vec![true, false, true]));
    }
    assert_eq!(limiter.left("key").await, [99, 0, 99]);
    // Denials by other limits alone are not strikes, and a cost of 0 is allowed.
    assert!(acquire_costs(&limiter, "key", &[1, 0, 1]).await.unwrap().is_allowed());
    assert_eq!(limiter.left("key").await, [98, 0, 98]);
    fixture.advance(58 * SECOND);
    assert!(limiter.allows("key", 1).await);
    assert_eq!(limiter.left("key").await, [97, 0, 97]);
}

/// Another limiter of the same limit shares it. Another key and another limit are not affected.
async fn a_lockout_is_of_one_key_under_one_limit(fixture: StoreFixture) {
    let [one, same, other] = ["one", "one", "other"]
        .map(|name| fixture.limiter(Limit::new(name, FixedWindow::new(1, DAY)).penalty(Penalty::after(1, MINUTE))));
    for (limiter, is_locked_out) in [(&one, false), (&one, true), (&one, true), (&same, true), (&other, false)] {
        assert_eq!(limiter.acquire("key", 1).await.unwrap().is_locked_out(), is_locked_out);
    }
    assert!(one.allows("another", 1).await && one.peek("key", 0).await.unwrap().outcomes()[0].is_locked_out());
    assert!(!other.peek("key", 0).await.unwrap().outcomes()[0].is_locked_out());
}

async fn the_longer_of_two_waits_is_announced(fixture: StoreFixture) {
    let key = ExhaustedKey::new(&fixture, Penalty::after(1, MINUTE).locked_out_for(MINUTE)).await;
    assert_eq!(denial(&key.ask().await), (Some(DAY), true, 0, Some(DAY)));
    fixture.advance(DAY - SECOND);
    // The limit's own wait is shorter than the lockout that begins now.
    assert_eq!(key.ask().await.retry_after(), Some(MINUTE));
    fixture.advance(MINUTE - MICRO);
    assert!(!key.ask().await.is_allowed());
    fixture.advance(MICRO);
    assert!(key.ask().await.is_allowed());
}

async fn a_reset_clears_a_penalty_and_a_refund_does_not(fixture: StoreFixture) {
    let penalty = Penalty::after(2, MINUTE).locked_out_for(SECOND).doubling_up_to(MINUTE);
    let limiter = fixture.limiter(Limit::new("one", FixedWindow::new(1, DAY)).penalty(penalty));
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    let receipt = ask().await.into_receipt();
    assert_eq!([ask().await.is_locked_out(), ask().await.is_locked_out()], [false, true]);
    limiter.refund(receipt).await.unwrap();
    assert!(ask().await.is_locked_out());
    // The lockout, and then the strike.
    for _ in 0..2 {
        limiter.reset("key").await.unwrap();
        assert!(ask().await.is_allowed());
        assert!(!ask().await.is_locked_out());
    }
    assert_eq!(ask().await.retry_after(), Some(DAY));
    fixture.advance(DAY - SECOND);
    let outcome = limiter.peek("key", 0).await.unwrap();
    assert_eq!(outcome.outcomes()[0].reset_after(), SECOND, "a level that is kept would expire later");
}

async fn a_shadow_limit_has_no_penalty(fixture: StoreFixture) {
    let events = EventLog::default();
    let limit = Limit::new("one", FixedWindow::new(1, DAY)).penalty(Penalty::after(1, MINUTE));
    for limiter in [fixture.limiter_builder(limit.clone().shadow()), fixture.limiter_builder(limit).shadow()] {
        let limiter = limiter.observe(events.observer()).build();
        for _ in 0..5 {
            let decision = limiter.acquire("key", 1).await.unwrap();
            assert!(decision.is_allowed() && !decision.outcomes()[0].is_locked_out());
        }
    }
    assert_eq!(events.take(), ["shadow one"; 9]);
}

async fn soft_limits_and_queues_can_have_penalties(fixture: StoreFixture) {
    let penalty = Penalty::after(1, MINUTE).locked_out_for(MINUTE);
    let soft = fixture.limiter(Limit::new("soft", FixedWindow::new(2, DAY)).soft(50).penalty(penalty));
    for _ in 0..3 {
        assert!(soft.allows("key", 1).await, "overage is capacity");
    }
    assert!(soft.acquire("key", 1).await.unwrap().is_locked_out());
    let queue = fixture.limiter(Limit::new("queue", LeakyBucketQueue::new(1, 1, SECOND)).penalty(penalty));
    let ask = async || queue.acquire("key", 1).await.unwrap();
    assert_eq!([ask().await.delay(), ask().await.delay()], [Duration::ZERO, SECOND]);
    assert_eq!(ask().await.retry_after(), Some(MINUTE));
    fixture.advance(MINUTE);
    assert_eq!(ask().await.delay(), Duration::ZERO);
}

/// A clock that steps back shortens no lockout, and nothing panics.
async fn a_clock_that_steps_back_shortens_nothing(fixture: StoreFixture) {
    const MINUTE_MICROS: u64 = 60_000_000;
    let key = ExhaustedKey::new(&fixture, Penalty::after(2, MINUTE).locked_out_for(MINUTE)).await;
    fixture.advance(10 * MINUTE);
    let at = fixture.now();
    key.strike().await;
    // The span of the strikes has not ended. The lockout begins 5 minutes back.
    for now in [at - 5 * MINUTE_MICROS, at - 6 * MINUTE_MICROS, 0] {
        fixture.set(now);
        assert!(key.limiter.peek("key", 1).await.unwrap().is_locked_out() == (now != at - 5 * MINUTE_MICROS));
        assert!(key.ask().await.is_locked_out());
    }
    fixture.set(at - 4 * MINUTE_MICROS - 1);
    assert!(key.is_locked_out().await);
    fixture.set(at - 4 * MINUTE_MICROS);
    assert!(!key.is_locked_out().await);
}

/// A request that waits is not denied.
async fn waiting_is_not_a_strike(fixture: StoreFixture) {
    let key = ExhaustedKey::new(&fixture, Penalty::after(1, MINUTE)).await;
    for _ in 0..3 {
        assert!(key.limiter.wait_at_most("key", 1, SECOND).await.is_err());
    }
    assert!(!key.is_locked_out().await);
    assert!(key.ask().await.is_locked_out());
}

#[test]
fn implausible_settings_are_errors() {
    let denials = |denials| Penalty::try_after(denials, MINUTE).map_err(|error| error.to_string());
    let text =
        |denials| Err(format!("a lockout begins after {denials} denials: use 1 to 1,000, or leave the penalty out"));
    assert_eq!((denials(0), denials(1_001)), (text(0), text(1_001)));
    assert!(denials(1_000).is_ok());
    let units = "use whole microseconds, from 1 µs to 366 days";
    let span = Penalty::try_after(1, Duration::ZERO).unwrap_err().to_string();
    assert_eq!(span, format!("a penalty's span is 0 seconds: {units}"));
    let penalty = Penalty::after(1, MINUTE);
    assert_eq!(panic_of(|| penalty.locked_out_for(367 * DAY)), format!("a lockout is 367 days: {units}"));
    assert!(panic_of(|| penalty.doubling_up_to(Duration::from_nanos(1))).contains(units));
    assert!(panic_of(|| penalty.remembered_for(Duration::ZERO)).starts_with("the memory of a lockout is 0"));
    assert_eq!(
        panic_of(|| penalty.doubling_up_to(SECOND)),
        "the first lockout lasts 1 minute, longer than the longest, 1 second: shorten the first, or lengthen the longest"
    );
    let order = panic_of(|| penalty.doubling_up_to(MINUTE).locked_out_for(MINUTE + MICRO));
    assert!(order.starts_with("the first lockout lasts"), "{order}");
    assert!(panic_of(|| Penalty::after(0, MINUTE)).starts_with("a lockout begins after 0 denials"));
}

/// Also in a constant.
const _: Penalty = Penalty::after(5, MINUTE).locked_out_for(SECOND).doubling_up_to(DAY).remembered_for(DAY);
