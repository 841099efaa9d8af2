//! Bugs with costs, denials and refunds.

use std::time::Duration;

use support::calls::Calls;
use support::limits::acquire_costs;
use tower_ratelimit::{FixedWindow, Limit, Limiter, TokenBucket, Verdict};

use super::{DAY, MIDNIGHT, MINUTE, SECOND, allowed_of, tokens};
use crate::rule::one_of_each;
use crate::subject::Subject;
use support::rule::Rule;

/// upstash ratelimit-js, sliding window: of a limit of 10, 7 and 7 were charged, the second with a denial.
/// Also APISIX, which compares `cur >= limit` without the cost.
#[test]
fn check_ignores_cost() {
    for rule in one_of_each(10) {
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        assert!(subject.acquire(7).is_allowed(), "{rule:?}");
        let denied = subject.acquire(7);
        assert!(!denied.is_allowed(), "{rule:?}");
        assert_eq!(denied.outcomes()[0].remaining(), 3, "{rule:?}");
        assert!(subject.acquire(3).is_allowed(), "{rule:?}");
    }
}

/// upstash, token bucket: a denied request of cost 100 left −99 tokens, and each further one 100 fewer.
#[test]
fn denied_cost_digs_deeper() {
    for rule in one_of_each(10) {
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        for _ in 0..5 {
            let denied = subject.acquire(100);
            assert_eq!(denied.verdict(), Verdict::Deny { retry_after: None }, "{rule:?}: it can never pass");
            assert_eq!(denied.outcomes()[0].remaining(), 10, "{rule:?}");
        }
        assert!(subject.acquire(10).is_allowed(), "{rule:?}");
    }
}

/// axum-governor `decide.rs:85`, flask-limiter, langfuse#14280, APISIX, Kong: limits were decided in turn, and the
/// earlier ones stayed charged.
#[test]
fn earlier_limits_charged_on_a_later_denial() {
    for denying in one_of_each(1) {
        for other in one_of_each(5) {
            let subject = Subject::new(&[other, denying, other]);
            subject.set(MIDNIGHT);
            let _ = subject.acquire_costs(&[0, denying.capacity(), 0]);
            for _ in 0..3 {
                assert!(!subject.acquire(1).is_allowed());
            }
            let left: Vec<u64> = subject.levels().iter().map(|level| level.remaining).collect();
            assert_eq!(left, [5, 0, 5], "{other:?} paid for what {denying:?} denied");
        }
    }
}

/// limits#112, flask-limiter#448: requests of different costs found the wrong entry.
#[test]
fn variable_costs_break_the_log() {
    let subject = Subject::new(&[Rule::SlidingLog { limit: 10, period: MINUTE }]);
    for (second, cost) in [(0, 5), (10, 1), (20, 3)] {
        assert!(subject.set(MIDNIGHT + second * SECOND).acquire(cost).is_allowed());
    }
    let wait = |cost| subject.set(MIDNIGHT + 30 * SECOND).peek(cost).retry_after();
    assert_eq!(wait(1), None);
    assert_eq!(wait(2), Some(Duration::from_secs(30)));
    assert_eq!(wait(6), Some(Duration::from_secs(30)));
    assert_eq!(wait(7), Some(Duration::from_secs(40)));
    assert_eq!(wait(8), Some(Duration::from_secs(50)));
}

/// upstash, sliding window with a negative rate; rate-limiter-flexible, `reward`: a refund to an unused key allowed 15
/// requests of 10.
#[test]
fn refund_on_a_fresh_key_banks_credit() {
    for rule in one_of_each(10) {
        let subject = Subject::new(&[rule]);
        let receipt = subject.set(MIDNIGHT).acquire(5).into_receipt();
        // As if the key had never been used.
        subject.set(MIDNIGHT + 10 * SECOND).refund(receipt);
        assert_eq!(subject.remaining(), 10, "{rule:?}");
        assert_eq!(allowed_of(20, &subject, MIDNIGHT + 10 * SECOND), 10, "{rule:?}");
    }
}

/// limits, `incr_expire`: after a refund to 0, the next request began a window, so 58 s became 60 s.
#[test]
fn refund_restarts_the_window() {
    for windows in one_of_each(10).into_iter().filter(|rule| !matches!(rule, Rule::Bucket { .. })) {
        let subject = Subject::new(&[windows]);
        let _ = subject.set(MIDNIGHT).acquire(2);
        let receipt = subject.set(MIDNIGHT + 400_000).acquire(3).into_receipt();
        let before = subject.levels()[0].reset_after;
        subject.refund(receipt);
        assert!(subject.levels()[0].reset_after <= before, "{windows:?}");
        let again = subject.acquire(3);
        assert_eq!(again.outcomes()[0].reset_after().as_micros(), before, "{windows:?}");
    }
    let subject = Subject::new(&[Rule::FixedWindow { limit: 10, period: MINUTE }]);
    let receipt = subject.set(MIDNIGHT).acquire(1).into_receipt();
    subject.set(MIDNIGHT + 2 * SECOND).refund(receipt);
    assert_eq!(subject.acquire(1).outcomes()[0].reset_after(), Duration::from_secs(58));
}

/// actix-extensible-rate-limit `redis.rs:145`, express-rate-limit 8.6.0: a refund after the end of the window reduced
/// the count of the new one, even below 0.
#[test]
fn refund_after_window_roll_decrements_the_new_window() {
    let subject = Subject::new(&[Rule::FixedWindow { limit: 10, period: MINUTE }]);
    let receipt = subject.set(MIDNIGHT).acquire(5).into_receipt();
    let _ = subject.set(MIDNIGHT + MINUTE).acquire(4);
    subject.refund(receipt);
    assert_eq!(subject.remaining(), 6);

    // If the previous window still counts, the refund reduces its count.
    let counter = Rule::Counter { limit: 10, period: MINUTE, rounding: Default::default(), weight: 100 };
    let subject = Subject::new(&[counter]);
    let receipt = subject.set(MIDNIGHT).acquire(6).into_receipt();
    let _ = subject.set(MIDNIGHT + MINUTE + MINUTE / 2).acquire(4);
    assert_eq!(subject.remaining(), 3);
    subject.refund(receipt);
    assert_eq!(subject.remaining(), 6);
}

/// tokio-rate-limit `limiter.rs:38`: only whole requests per second, and no burst below the rate.
#[test]
fn a_burst_may_be_smaller_than_the_rate() {
    assert_eq!(TokenBucket::per_minute(10), TokenBucket::new(10, 10, Duration::from_secs(60)));
    let subject = Subject::new(&[tokens(10, 10, MINUTE)]);
    assert_eq!(allowed_of(20, &subject, MIDNIGHT), 10);
    assert_eq!(allowed_of(20, &subject, MIDNIGHT + 6 * SECOND), 1);

    assert_eq!(TokenBucket::per_second(100).burst(5), TokenBucket::new(5, 100, Duration::from_secs(1)));
    let subject = Subject::new(&[tokens(5, 100, SECOND)]);
    assert_eq!(allowed_of(20, &subject, MIDNIGHT), 5);
    assert_eq!(allowed_of(20, &subject, MIDNIGHT + SECOND / 100), 1);
    assert_eq!(allowed_of(20, &subject, MIDNIGHT + DAY), 5);
}

/// throttle-kit `backend.rs:78`: the remaining tokens were reported as 1, 2, 3.
#[test]
fn remaining_counts_up() {
    for rule in one_of_each(4) {
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        let reported: Vec<u64> = (0..5).map(|_| subject.acquire(1).outcomes()[0].remaining()).collect();
        assert_eq!(reported, [3, 2, 1, 0, 0], "{rule:?}");
    }
}

/// envoyproxy/ratelimit and CVE-2026-25480: concatenated parts of keys collided. traefik#11753: limits collided,
/// because their names were not part of the key.
#[tokio::test]
async fn keys_and_limits_collide() {
    let limiter = Limiter::new(Limit::new("a", FixedWindow::per_day(1)));
    for key in [("a", "b_c"), ("a_b", "c"), ("", "a_b_c"), ("a_b_c", "")] {
        assert!(limiter.allows(key, 1).await, "{key:?} was somebody else");
        assert!(!limiter.allows(key, 1).await);
    }
    let limiter = Limiter::new(["a", "b", "ab"].map(|name| Limit::new(name, FixedWindow::per_day(1))));
    for costs in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        assert!(acquire_costs(&limiter, "key", &costs).await.unwrap().is_allowed(), "{costs:?}");
    }
}
