//! The documentation of `Penalty`, sentence by sentence.

use std::time::Duration;

use support::limits::acquire_costs;
use tower_ratelimit::{ConfigError, FixedWindow, LeakyBucketQueue, Limit, Penalty, SlidingLog, TokenBucket, Verdict};

use crate::bad_input::panic_of;
use crate::penalties::backend::{DAY, MICRO, MINUTE, One, SECOND, on_each_backend, reporter};

#[tokio::test]
async fn the_nth_strike_begins_a_lockout_of_exactly_its_length() {
    on_each_backend(async |backend| {
        // One token per second, so the limit alone would allow requests during most of a lockout.
        let penalty = Penalty::after(3, MINUTE).locked_out_for(10 * SECOND);
        let limiter = backend.limiter([Limit::new("bucket", TokenBucket::new(1, 1, SECOND)).penalty(penalty)]).build();
        let ask = async || limiter.acquire("key", 1).await.unwrap();
        assert!(ask().await.is_allowed());
        for _ in 0..2 {
            let denied = ask().await;
            assert_eq!((denied.retry_after(), denied.is_locked_out()), (Some(SECOND), false), "{}", backend.name);
        }
        let third = ask().await;
        assert!(third.is_locked_out() && third.outcomes()[0].is_locked_out());
        assert_eq!(third.retry_after(), Some(10 * SECOND), "{}", backend.name);
        assert_eq!((third.outcomes()[0].remaining(), third.outcomes()[0].more_after()), (0, Some(10 * SECOND)));
        assert_eq!(third.outcomes()[0].reset_after(), 20 * SECOND, "as long as it was, it is remembered");
        // None of these lengthens the lockout.
        for left in (1..10).rev() {
            backend.advance(SECOND);
            let refused = ask().await;
            assert_eq!(
                (refused.retry_after(), refused.is_locked_out()),
                (Some(left * SECOND), true),
                "{}",
                backend.name
            );
            assert_eq!(refused.outcomes()[0].remaining(), 0, "the bucket is full by now");
            assert_eq!(refused.outcomes()[0].more_after(), Some(left * SECOND));
        }
        backend.advance(SECOND - MICRO);
        let refused = ask().await;
        assert_eq!((refused.retry_after(), refused.is_locked_out()), (Some(MICRO), true), "{}", backend.name);
        backend.advance(MICRO);
        let allowed = ask().await;
        assert!(allowed.is_allowed() && !allowed.is_locked_out() && !allowed.outcomes()[0].is_locked_out());
        assert_eq!(allowed.outcomes()[0].reset_after(), 10 * SECOND);
    })
    .await;
}

#[tokio::test]
async fn strikes_count_together_within_a_span_that_begins_with_the_first() {
    on_each_backend(async |backend| {
        let one = One::exhausted(backend, Penalty::after(3, MINUTE).locked_out_for(SECOND)).await;
        one.strike().await;
        backend.advance(30 * SECOND);
        one.strike().await;
        // The span has ended, so this is the first strike of another, although the second is only 30 seconds old.
        backend.advance(30 * SECOND);
        one.strike().await;
        backend.advance(MINUTE - MICRO);
        one.strike().await;
        one.begin(SECOND).await;
        // Earlier strikes have expired.
        one.strike().await;
        one.strike().await;
        one.begin(SECOND).await;
    })
    .await;
}

#[tokio::test]
async fn each_lockout_doubles_up_to_the_longest() {
    on_each_backend(async |backend| {
        let (reported, report) = reporter();
        let penalty = Penalty::after(1, MINUTE).locked_out_for(SECOND).doubling_up_to(5 * SECOND);
        let mut one = One::exhausted(backend, penalty).await;
        one.limiter = One::limiter(backend, penalty).observe(report).build();
        for seconds in [1, 2, 4, 5, 5, 5] {
            one.begin(seconds * SECOND).await;
        }
        assert_eq!(*reported.lock().unwrap(), ["one 1 1s", "one 2 2s", "one 3 4s", "one 4 5s", "one 5 5s", "one 6 5s"]);
    })
    .await;
}

#[tokio::test]
async fn a_penalty_level_lasts_as_long_as_its_lockout() {
    on_each_backend(async |backend| {
        let penalty = Penalty::after(1, MINUTE).locked_out_for(SECOND).doubling_up_to(MINUTE);
        let one = One::exhausted(backend, penalty).await;
        one.begin(SECOND).await;
        backend.advance(SECOND - MICRO);
        one.begin(2 * SECOND).await;
        backend.advance(2 * SECOND - MICRO);
        one.begin(4 * SECOND).await;
        backend.advance(4 * SECOND);
        one.begin(SECOND).await;
    })
    .await;
}

#[tokio::test]
async fn how_long_a_penalty_level_lasts_is_configurable() {
    on_each_backend(async |backend| {
        let penalty =
            Penalty::after(2, MINUTE).locked_out_for(SECOND).doubling_up_to(MINUTE).remembered_for(10 * SECOND);
        let one = One::exhausted(backend, penalty).await;
        one.strike().await;
        one.begin(SECOND).await;
        backend.advance(9 * SECOND);
        // The first strike was earlier. The lockout begins one µs before the level expires.
        one.strike().await;
        backend.advance(SECOND - MICRO);
        one.begin(2 * SECOND).await;
        backend.advance(9 * SECOND);
        one.strike().await;
        backend.advance(SECOND);
        one.begin(SECOND).await;
    })
    .await;
}

/// Strikes that count for longer than the level is kept, and vice versa.
#[tokio::test]
async fn strikes_and_levels_expire_independently() {
    on_each_backend(async |backend| {
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
            let one = One::exhausted(backend, penalty.remembered_for(kept * SECOND)).await;
            one.strike().await;
            one.begin(SECOND).await;
            one.strike().await;
            backend.advance(then);
            match begins {
                Some(seconds) => one.begin(seconds * SECOND).await,
                None => one.strike().await,
            }
            one.limiter.reset("key").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn the_announced_reset_is_when_the_state_expires() {
    on_each_backend(async |backend| {
        let penalty = Penalty::after(2, 10 * MINUTE).locked_out_for(SECOND).remembered_for(MINUTE);
        let limiter = backend.limiter([Limit::new("bucket", TokenBucket::new(1, 1, SECOND)).penalty(penalty)]).build();
        let reset_after = async || limiter.peek("key", 0).await.unwrap().outcomes()[0].reset_after();
        assert_eq!(reset_after().await, Duration::ZERO);
        let _ = limiter.acquire("key", 1).await.unwrap();
        assert_eq!(reset_after().await, SECOND);
        let _ = limiter.acquire("key", 1).await.unwrap();
        assert_eq!(reset_after().await, 10 * MINUTE, "{}", backend.name);
        let _ = limiter.acquire("key", 1).await.unwrap();
        assert_eq!(reset_after().await, SECOND + MINUTE, "{}", backend.name);
        backend.advance(SECOND + MINUTE - MICRO);
        assert_eq!(reset_after().await, MICRO);
        backend.advance(MICRO);
        assert_eq!(reset_after().await, Duration::ZERO, "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn only_denials_of_the_limit_itself_are_strikes() {
    on_each_backend(async |backend| {
        let (reported, report) = reporter();
        let penalty = Penalty::after(2, MINUTE).locked_out_for(MINUTE);
        let limiter = backend
            .limiter([
                Limit::new("small", FixedWindow::new(1, DAY)),
                Limit::new("large", FixedWindow::new(5, DAY)).penalty(penalty),
            ])
            .observe(report)
            .build();
        let ask = async |cost| acquire_costs(&limiter, "key", &[1, cost]).await.unwrap();
        assert!(ask(1).await.is_allowed());
        for _ in 0..4 {
            // The small limit denies. The large one allows, or has a cost of 0.
            assert!(!ask(1).await.is_locked_out() && !ask(0).await.is_locked_out());
        }
        // A peek is not a strike, and neither is a request with a cost of 0.
        for _ in 0..4 {
            assert!(!limiter.peek("key", 9).await.unwrap().is_allowed());
        }
        assert!(!limiter.peek("key", 0).await.unwrap().outcomes()[1].is_locked_out(), "{}", backend.name);
        // A cost over the capacity is a strike, although no wait can help.
        assert_eq!(ask(6).await.retry_after(), None);
        let second = ask(6).await;
        assert_eq!((second.retry_after(), second.is_locked_out()), (None, true), "{}", backend.name);
        assert_eq!(*reported.lock().unwrap(), ["large 1 60s"]);
        assert_eq!(ask(1).await.outcomes()[1].verdict(), Verdict::Deny { retry_after: Some(MINUTE) });
    })
    .await;
}

#[tokio::test]
async fn a_locked_out_key_is_not_charged_to_other_limits() {
    on_each_backend(async |backend| {
        let penalty = Penalty::after(1, MINUTE).locked_out_for(MINUTE);
        let limiter = backend
            .limiter([
                Limit::new("large", FixedWindow::new(100, DAY)),
                Limit::new("strict", TokenBucket::new(1, 1, SECOND)).penalty(penalty),
                Limit::new("log", SlidingLog::new(100, DAY)),
            ])
            .build();
        let left = async || {
            let outcomes = limiter.peek("key", 0).await.unwrap();
            outcomes.outcomes().iter().map(|outcome| outcome.remaining()).collect::<Vec<_>>()
        };
        assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
        assert_eq!(left().await, [99, 0, 99]);
        assert!(limiter.acquire("key", 1).await.unwrap().is_locked_out());
        backend.advance(2 * SECOND);
        for _ in 0..3 {
            let refused = limiter.acquire("key", 1).await.unwrap();
            assert_eq!(refused.retry_after(), Some(58 * SECOND), "{}", backend.name);
            let says: Vec<_> = refused.outcomes().iter().map(|outcome| outcome.verdict().is_allowed()).collect();
            assert_eq!(says, [true, false, true]);
        }
        assert_eq!(left().await, [99, 0, 99], "{}", backend.name);
        // Denials by other limits alone are not strikes, and a cost of 0 is allowed.
        assert!(acquire_costs(&limiter, "key", &[1, 0, 1]).await.unwrap().is_allowed());
        assert_eq!(left().await, [98, 0, 98], "{}", backend.name);
        backend.advance(58 * SECOND);
        assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
        assert_eq!(left().await, [97, 0, 97]);
    })
    .await;
}

/// Another key and another limit are not affected.
#[tokio::test]
async fn a_lockout_is_of_one_key_under_one_limit() {
    on_each_backend(async |backend| {
        let limit = |name| Limit::new(name, FixedWindow::new(1, DAY)).penalty(Penalty::after(1, MINUTE));
        let [one, other] = ["one", "other"].map(|name| backend.limiter([limit(name)]).build());
        for _ in 0..2 {
            let _ = one.acquire("key", 1).await.unwrap();
        }
        assert!(one.acquire("key", 1).await.unwrap().is_locked_out());
        assert!(one.acquire("another", 1).await.unwrap().is_allowed());
        assert!(other.acquire("key", 1).await.unwrap().is_allowed());
        assert!(!other.acquire("key", 0).await.unwrap().outcomes()[0].is_locked_out(), "{}", backend.name);
        assert!(
            backend.limiter([limit("one")]).build().acquire("key", 1).await.unwrap().is_locked_out(),
            "a twin shares it"
        );
    })
    .await;
}

#[tokio::test]
async fn the_longer_of_two_waits_is_announced() {
    on_each_backend(async |backend| {
        let one = One::exhausted(backend, Penalty::after(1, MINUTE).locked_out_for(MINUTE)).await;
        let begun = one.ask().await;
        assert!(begun.is_locked_out());
        assert_eq!((begun.retry_after(), begun.outcomes()[0].more_after()), (Some(DAY), Some(DAY)));
        backend.advance(DAY - SECOND);
        // The limit's own wait is shorter than the lockout that begins now.
        let begun = one.ask().await;
        assert_eq!(begun.retry_after(), Some(MINUTE), "{}", backend.name);
        backend.advance(MINUTE - MICRO);
        assert!(!one.ask().await.is_allowed());
        backend.advance(MICRO);
        assert!(one.ask().await.is_allowed(), "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn a_reset_clears_a_penalty_and_a_refund_does_not() {
    on_each_backend(async |backend| {
        let limiter = backend
            .limiter([Limit::new("one", FixedWindow::new(1, DAY))
                .penalty(Penalty::after(2, MINUTE).locked_out_for(SECOND).doubling_up_to(MINUTE))])
            .build();
        let ask = async || limiter.acquire("key", 1).await.unwrap();
        let receipt = ask().await.into_receipt();
        assert!(!ask().await.is_locked_out());
        assert!(ask().await.is_locked_out());
        limiter.refund(receipt).await.unwrap();
        assert!(ask().await.is_locked_out(), "{}", backend.name);
        limiter.reset("key").await.unwrap();
        assert!(ask().await.is_allowed(), "{}", backend.name);
        // Strikes and levels, too.
        assert!(!ask().await.is_locked_out());
        limiter.reset("key").await.unwrap();
        assert!(ask().await.is_allowed());
        assert!(!ask().await.is_locked_out(), "{}", backend.name);
        assert_eq!(ask().await.retry_after(), Some(DAY));
        backend.advance(DAY - SECOND);
        let outcome = limiter.peek("key", 0).await.unwrap();
        assert_eq!(outcome.outcomes()[0].reset_after(), SECOND, "the level was forgotten: it would be longer");
    })
    .await;
}

#[tokio::test]
async fn a_shadow_limit_has_no_penalty() {
    on_each_backend(async |backend| {
        let (reported, report) = reporter();
        let limit = Limit::new("one", FixedWindow::new(1, DAY)).penalty(Penalty::after(1, MINUTE));
        for limiter in [backend.limiter([limit.clone().shadow()]), backend.limiter([limit]).shadow()] {
            let limiter = limiter.observe(report.clone()).build();
            for _ in 0..5 {
                let decision = limiter.acquire("key", 1).await.unwrap();
                assert!(decision.is_allowed() && !decision.outcomes()[0].is_locked_out(), "{}", backend.name);
            }
        }
        assert!(reported.lock().unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn soft_limits_and_queues_can_have_penalties() {
    on_each_backend(async |backend| {
        let penalty = Penalty::after(1, MINUTE).locked_out_for(MINUTE);
        let soft = backend.limiter([Limit::new("soft", FixedWindow::new(2, DAY)).soft(50).penalty(penalty)]).build();
        for _ in 0..3 {
            assert!(soft.acquire("key", 1).await.unwrap().is_allowed(), "overage is room");
        }
        assert!(soft.acquire("key", 1).await.unwrap().is_locked_out(), "{}", backend.name);
        let queue =
            backend.limiter([Limit::new("queue", LeakyBucketQueue::new(1, 1, SECOND)).penalty(penalty)]).build();
        for delay in [0, 1] {
            assert_eq!(queue.acquire("key", 1).await.unwrap().delay(), delay * SECOND);
        }
        assert_eq!(queue.acquire("key", 1).await.unwrap().retry_after(), Some(MINUTE), "{}", backend.name);
        backend.advance(MINUTE);
        assert_eq!(queue.acquire("key", 1).await.unwrap().delay(), Duration::ZERO);
    })
    .await;
}

/// A clock that steps back shortens no lockout, and nothing panics.
#[tokio::test]
async fn a_clock_that_steps_back_shortens_nothing() {
    on_each_backend(async |backend| {
        let one = One::exhausted(backend, Penalty::after(2, MINUTE).locked_out_for(MINUTE)).await;
        backend.advance(10 * MINUTE);
        let at = backend.now();
        one.strike().await;
        backend.set(at - 5 * 60_000_000);
        let begun = one.ask().await;
        assert!(begun.is_locked_out(), "the span was not over");
        backend.set(at - 6 * 60_000_000);
        let refused = one.limiter.peek("key", 1).await.unwrap();
        assert!(refused.is_locked_out(), "{}", backend.name);
        backend.set(0);
        assert!(one.ask().await.is_locked_out());
        backend.set(at - 4 * 60_000_000 - 1);
        assert!(one.is_locked_out().await);
        backend.set(at - 4 * 60_000_000);
        assert!(!one.is_locked_out().await, "{}", backend.name);
    })
    .await;
}

/// A request that waits is not denied.
#[tokio::test]
async fn waiting_is_not_a_strike() {
    on_each_backend(async |backend| {
        let one = One::exhausted(backend, Penalty::after(1, MINUTE)).await;
        for _ in 0..3 {
            assert!(one.limiter.wait_at_most("key", 1, SECOND).await.is_err());
        }
        assert!(!one.is_locked_out().await, "{}", backend.name);
        assert!(one.ask().await.is_locked_out());
    })
    .await;
}

#[test]
fn implausible_settings_are_errors() {
    let error = |penalty: Result<Penalty, ConfigError>| penalty.unwrap_err().to_string();
    assert_eq!(
        error(Penalty::try_after(0, MINUTE)),
        "a lockout begins after 0 denials: use 1 to 1,000, or leave the penalty out"
    );
    assert!(Penalty::try_after(1_000, MINUTE).is_ok());
    assert!(error(Penalty::try_after(1_001, MINUTE)).starts_with("a lockout begins after 1001 denials"));
    assert_eq!(
        error(Penalty::try_after(1, Duration::ZERO)),
        "a penalty's span is 0ns: use whole microseconds, from 1 µs to 366 days"
    );
    let penalty = Penalty::after(1, MINUTE);
    assert_eq!(
        panic_of(|| penalty.locked_out_for(367 * DAY)),
        "a lockout is 31708800s: use whole microseconds, from 1 µs to 366 days"
    );
    assert!(panic_of(|| penalty.doubling_up_to(Duration::from_nanos(1))).contains("use whole microseconds"));
    assert!(panic_of(|| penalty.remembered_for(Duration::ZERO)).starts_with("the memory of a lockout is 0"));
    assert_eq!(
        panic_of(|| penalty.doubling_up_to(SECOND)),
        "the first lockout lasts 60s, longer than the longest, 1s: shorten the first, or lengthen the longest"
    );
    let order = panic_of(|| penalty.doubling_up_to(MINUTE).locked_out_for(MINUTE + MICRO));
    assert!(order.starts_with("the first lockout lasts"), "{order}");
}

#[test]
#[should_panic(expected = "a lockout begins after 0 denials: use 1 to 1,000")]
fn a_penalty_after_0_denials_panics() {
    let _ = Penalty::after(0, MINUTE);
}

/// Also in a constant.
const _: Penalty = Penalty::after(5, MINUTE).locked_out_for(SECOND).doubling_up_to(DAY).remembered_for(DAY);
