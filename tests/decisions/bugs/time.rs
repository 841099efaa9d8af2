//! Bugs of instants, periods and rounding.

use std::time::Duration;

use tower_ratelimit::{TokenBucket, Verdict};

use super::{DAY, MIDNIGHT, MINUTE, SECOND, allowed_in_a_second, allowed_of, tokens};
use crate::rule::{Kind, LONGEST, Rule, one_of_each};
use crate::subject::Subject;

/// One of each that is as new after a second or two.
fn by_the_second(limit: u32) -> impl Iterator<Item = Rule> {
    one_of_each(limit).into_iter().filter(|rule| !matches!(rule, Rule::Calendar { .. }))
}

/// axum_gcra `gcra.rs:310`: a key that was idle, but not forgotten, got one more than the burst.
#[test]
fn burst_plus_one_after_idling() {
    for limit in [1, 5] {
        for rule in by_the_second(limit).filter(|rule| rule.capacity() == u64::from(limit)) {
            let subject = Subject::new(&[rule]);
            assert_eq!(allowed_of(20, &subject, MIDNIGHT), u64::from(limit), "{rule:?}");
            for idle in [10 * SECOND, 25 * SECOND, DAY] {
                assert_eq!(allowed_of(20, &subject, MIDNIGHT + idle), u64::from(limit), "{rule:?} after {idle}");
            }
        }
    }
}

/// axum-limit `sliding_window.rs:42`: it rolled one window after the other; seven idle days at
/// 1 ms took 0.8 s. Here a loop over 2^61 windows would never end.
#[test]
fn one_roll_per_missed_window() {
    for rule in one_of_each(3) {
        let short = match rule {
            Rule::FixedWindow { limit, .. } => Rule::FixedWindow { limit, period: 1 },
            Rule::Calendar { .. } => rule,
            Rule::SlidingLog { limit, .. } => Rule::SlidingLog { limit, period: 1 },
            Rule::SlidingWindow { limit, .. } => Rule::SlidingWindow { limit, width: 1, buckets: 10 },
            Rule::Counter { limit, rounding, .. } => Rule::Counter { limit, period: 1, rounding },
            Rule::Bucket { kind, capacity, amount, .. } => Rule::Bucket { kind, capacity, amount, interval: 1 },
        };
        let subject = Subject::new(&[short]);
        assert_eq!(allowed_of(9, &subject, 1), short.capacity(), "{short:?}");
        assert_eq!(allowed_of(9, &subject, 1 << 61), short.capacity(), "{short:?}");
    }
}

/// throttle-kit `backend.rs:173`: intervals cut to whole ms, so that 503 a second let 990
/// pass; redis-cell#50, #11: a period below a second was none, and 6,000 a second no limit at all.
#[test]
fn interval_cut_to_milliseconds() {
    for rate in [503, 999, 1_001, 6_000, 8_000] {
        // With room for two, nothing is lost between two requests.
        let bucket = tokens(2, rate, SECOND);
        assert_eq!(allowed_in_a_second(&Subject::new(&[bucket]), rate.into()), u64::from(rate), "{rate} a second");
    }
}

/// redis-cell#11, actix-extensible `redis.rs:122`: EXPIRE 0.
#[test]
fn sub_second_period_floored() {
    for period in [1, 999, 1_500, 999_999] {
        for rule in [
            Rule::FixedWindow { limit: 2, period },
            Rule::SlidingLog { limit: 2, period },
            Rule::Counter { limit: 2, period, rounding: Default::default() },
            tokens(2, 2, period),
        ] {
            let subject = Subject::new(&[rule]);
            let start = MIDNIGHT - MIDNIGHT % period;
            assert_eq!(allowed_of(5, &subject, start), 2, "{rule:?}");
            assert_eq!(allowed_of(5, &subject, start + 2 * period), 2, "{rule:?}");
        }
    }
}

/// upstash#39 (sliding(1) never admitted), resilience4j#824 (one more, or less, at the edge).
#[test]
fn limit_one_all_algorithms() {
    for rule in one_of_each(1).into_iter().filter(|rule| rule.capacity() == 1) {
        let subject = Subject::new(&[rule]);
        let mut at = MIDNIGHT;
        for _ in 0..50 {
            assert_eq!(allowed_of(3, &subject, at), 1, "{rule:?} at {at}");
            let wait = subject.acquire(1).retry_after().expect("a wait that helps").as_micros() as u64;
            assert_eq!(allowed_of(3, &subject, at + wait - 1), 0, "{rule:?} at {at}");
            at += wait;
        }
    }
}

/// valkey-go#173, gubernator: instants in doubles lose their microseconds.
#[test]
fn epoch_2100_no_f64_cancellation() {
    let epoch = 4_102_444_800 * SECOND;
    for rule in one_of_each(1_000_000).into_iter().filter(|rule| matches!(rule, Rule::Bucket { .. })) {
        let subject = Subject::new(&[rule]);
        let _ = subject.set(epoch).acquire(rule.capacity());
        if let Rule::Bucket { kind: Kind::Tokens | Kind::Meter | Kind::Queue, .. } = rule {
            for n in 1..100 {
                assert_eq!(allowed_of(3, &subject, epoch + n), 1, "{rule:?}, {n} µs later");
            }
        }
    }
    let subject = Subject::new(&[Rule::SlidingLog { limit: 1, period: 3 }]);
    let allowed: Vec<u64> = (0..7).map(|micros| allowed_of(1, &subject, epoch + micros)).collect();
    assert_eq!(allowed, [1, 0, 0, 1, 0, 0, 1]);
}

/// Sets of timestamps, by which requests of one instant are one.
#[test]
fn many_requests_in_one_instant_all_count() {
    for rule in one_of_each(100) {
        assert_eq!(allowed_of(150, &Subject::new(&[rule]), MIDNIGHT), rule.capacity(), "{rule:?}");
    }
}

/// throttle-kit `sliding_window.rs:41`: no window, while the machine was up for less than one.
#[test]
fn window_off_while_uptime_shorter_than_window() {
    for rule in one_of_each(3) {
        for at in [0, 1, 999_999] {
            assert_eq!(allowed_of(9, &Subject::new(&[rule]), at), rule.capacity(), "{rule:?} at {at}");
        }
    }
    let year = Rule::SlidingLog { limit: 3, period: LONGEST };
    let subject = Subject::new(&[year]);
    assert_eq!(allowed_of(9, &subject, 0), 3);
    assert_eq!(allowed_of(9, &subject, LONGEST - 1), 0);
    assert_eq!(allowed_of(9, &subject, LONGEST), 3);
}

/// A bucket that has to fill up first denies the first users of a day.
#[test]
fn starts_empty() {
    for rule in one_of_each(5) {
        let subject = Subject::new(&[rule]);
        assert!(subject.set(0).acquire(rule.capacity()).is_allowed(), "{rule:?}");
    }
}

/// tower_governor, actix-governor#49: `per_second(5)` was one in five seconds.
#[test]
fn per_second_means_per_second() {
    let subject = Subject::new(&[tokens(5, 5, SECOND)]);
    assert_eq!(TokenBucket::per_second(5), TokenBucket::new(5, 5, Duration::from_secs(1)));
    assert_eq!(allowed_in_a_second(&subject, 5), 5);
}

/// throttle-kit `sqlite.rs:94`: a request every few µs threw away the fraction that had come in between.
#[test]
fn fractions_of_tokens_lost() {
    // One in 333,333.3 µs, asked for each 7 µs, for ten seconds.
    let subject = Subject::new(&[tokens(1, 3, SECOND)]);
    let allowed: u64 = (0..=10 * SECOND / 7).map(|n| allowed_of(1, &subject, MIDNIGHT + n * 7)).sum();
    // Each waits for the next multiple of 7, and what it missed is not lost but full.
    assert_eq!(allowed, 30);
}

/// redis-rate `scripts.rs:55`: a wait of 0.9 s was told as 0; axum-governor `respond.rs:63`: 1.99 s
/// as 1; httprate#47: the window's length, whatever was left of it.
#[test]
fn waits_below_a_second_are_zero_seconds() {
    for rule in by_the_second(1).filter(|rule| rule.capacity() == 1) {
        let subject = Subject::new(&[rule]);
        let _ = subject.set(MIDNIGHT).acquire(1);
        let Verdict::Deny { retry_after: Some(wait) } = subject.set(MIDNIGHT + 100_001).acquire(1).verdict() else {
            panic!("{rule:?} has room");
        };
        let longer = if matches!(rule, Rule::Counter { .. }) { SECOND } else { 0 };
        assert!((1..=899_999 + longer).contains(&(wait.as_micros() as u64)), "{rule:?} tells {wait:?}");
    }
}

/// effect#8093, filtermail#167 (where a jump back made governor reject): a step back added to waits,
/// and they were not even true. Here the usual clock never steps back. Another that does is waited
/// for, as anything sooner would be more than the limit; and not a microsecond longer.
#[test]
fn backward_clock_inflates_waits() {
    for rule in one_of_each(2) {
        let subject = Subject::new(&[rule]);
        let _ = subject.set(MIDNIGHT + DAY).acquire(rule.capacity());
        let wait = subject.acquire(1).retry_after().expect("a wait that helps");
        let after_a_day_back = subject.set(MIDNIGHT).acquire(1).retry_after().expect("a wait that helps");
        assert_eq!(after_a_day_back, wait + Duration::from_micros(DAY), "{rule:?}");
        assert_eq!(allowed_of(1, &subject, MIDNIGHT + after_a_day_back.as_micros() as u64), 1, "{rule:?}");
    }
}

/// haproxy#1196: a wrong time base, so that counters of some periods never turned over.
#[test]
fn windows_of_some_periods_never_turn_over() {
    for period in [1_000, SECOND, 1_500_000, MINUTE, 60 * MINUTE, DAY, 7 * DAY, LONGEST] {
        for rule in
            [Rule::FixedWindow { limit: 1, period }, Rule::Counter { limit: 1, period, rounding: Default::default() }]
        {
            let subject = Subject::new(&[rule]);
            for window in 0..20 {
                let start = (MIDNIGHT / period + 2 * window) * period;
                assert_eq!(allowed_of(2, &subject, start), 1, "{rule:?}");
                assert_eq!(allowed_of(2, &subject, start + period - 1), 0, "{rule:?}");
            }
        }
    }
}
