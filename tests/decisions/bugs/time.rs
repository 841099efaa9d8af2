//! Bugs with instants, periods and rounding.

use std::time::Duration;

use tower_ratelimit::{TokenBucket, Verdict};

use super::{DAY, MIDNIGHT, MINUTE, SECOND, allowed_in_a_second, allowed_of, tokens};
use crate::rule::one_of_each;
use crate::subject::Subject;
use support::rule::{Kind, LONGEST, Rule};

/// Returns a limit of each algorithm that is unused again after a second or two.
fn by_the_second(limit: u32) -> impl Iterator<Item = Rule> {
    one_of_each(limit).into_iter().filter(|rule| !matches!(rule, Rule::Calendar { .. }))
}

/// axum_gcra `gcra.rs:310`: a key that was idle, but not removed, was allowed one more than the burst.
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

/// axum-limit `sliding_window.rs:42`: it advanced window by window, so seven idle days with windows of 1 ms took 0.8 s.
/// Here, a loop over 2^61 windows would never end.
#[test]
fn one_roll_per_missed_window() {
    for rule in one_of_each(3) {
        let short = match rule {
            Rule::FixedWindow { limit, .. } => Rule::FixedWindow { limit, period: 1 },
            Rule::Calendar { .. } => rule,
            Rule::SlidingLog { limit, .. } => Rule::SlidingLog { limit, period: 1 },
            Rule::SlidingWindow { limit, .. } => Rule::SlidingWindow { limit, width: 1, buckets: 10 },
            Rule::Counter { limit, rounding, weight, .. } => Rule::Counter { limit, period: 1, rounding, weight },
            Rule::Bucket { kind, capacity, amount, .. } => Rule::Bucket { kind, capacity, amount, interval: 1 },
        };
        let subject = Subject::new(&[short]);
        assert_eq!(allowed_of(9, &subject, 1), short.capacity(), "{short:?}");
        assert_eq!(allowed_of(9, &subject, 1 << 51), short.capacity(), "{short:?}");
    }
}

/// throttle-kit `backend.rs:173`: intervals were truncated to whole ms, so 503 per second allowed 990. redis-cell#50,
/// #11: periods shorter than a second were 0, so 6,000 per second were unlimited.
#[test]
fn interval_cut_to_milliseconds() {
    for rate in [503, 999, 1_001, 6_000, 8_000] {
        // With a capacity of two, no refill is lost between two requests.
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
            Rule::Counter { limit: 2, period, rounding: Default::default(), weight: 100 },
            tokens(2, 2, period),
        ] {
            let subject = Subject::new(&[rule]);
            let start = MIDNIGHT - MIDNIGHT % period;
            assert_eq!(allowed_of(5, &subject, start), 2, "{rule:?}");
            assert_eq!(allowed_of(5, &subject, start + 2 * period), 2, "{rule:?}");
        }
    }
}

/// upstash#39 (a sliding window of 1 never allowed), resilience4j#824 (one more or one fewer at the edge).
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

/// valkey-go#173, gubernator: instants in floating point lost their microseconds.
#[test]
fn epoch_2100_no_f64_cancellation() {
    let epoch = 4_102_444_800 * SECOND;
    for rule in one_of_each(1_000_000).into_iter().filter(|rule| matches!(rule, Rule::Bucket { .. })) {
        let subject = Subject::new(&[rule]);
        let _ = subject.set(epoch).acquire(rule.capacity());
        if let Rule::Bucket { kind: Kind::Tokens | Kind::Meter | Kind::Queue { .. }, .. } = rule {
            for n in 1..100 {
                assert_eq!(allowed_of(3, &subject, epoch + n), 1, "{rule:?}, {n} µs later");
            }
        }
    }
    let subject = Subject::new(&[Rule::SlidingLog { limit: 1, period: 3 }]);
    let allowed: Vec<u64> = (0..7).map(|micros| allowed_of(1, &subject, epoch + micros)).collect();
    assert_eq!(allowed, [1, 0, 0, 1, 0, 0, 1]);
}

/// Logs that were sets of timestamps counted requests of one instant once.
#[test]
fn many_requests_in_one_instant_all_count() {
    for rule in one_of_each(100) {
        assert_eq!(allowed_of(150, &Subject::new(&[rule]), MIDNIGHT), rule.capacity(), "{rule:?}");
    }
}

/// throttle-kit `sliding_window.rs:41`: nothing was limited until the machine had been up for a window.
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

/// A bucket that starts empty denies the first users.
#[test]
fn starts_empty() {
    for rule in one_of_each(5) {
        let subject = Subject::new(&[rule]);
        assert!(subject.set(0).acquire(rule.capacity()).is_allowed(), "{rule:?}");
    }
}

/// tower_governor, actix-governor#49: `per_second(5)` meant one request in five seconds.
#[test]
fn per_second_means_per_second() {
    let subject = Subject::new(&[tokens(5, 5, SECOND)]);
    assert_eq!(TokenBucket::per_second(5), TokenBucket::new(5, 5, Duration::from_secs(1)));
    assert_eq!(allowed_in_a_second(&subject, 5), 5);
}

/// throttle-kit `sqlite.rs:94`: each request discarded the fraction of a token that had been refilled before it.
#[test]
fn fractions_of_tokens_lost() {
    // One token in 333,333.3 µs, and a request every 7 µs, for ten seconds.
    let subject = Subject::new(&[tokens(1, 3, SECOND)]);
    let allowed: u64 = (0..=10 * SECOND / 7).map(|n| allowed_of(1, &subject, MIDNIGHT + n * 7)).sum();
    // Each request is at the next multiple of 7 µs, and no fraction is lost in between.
    assert_eq!(allowed, 30);
}

/// redis-rate `scripts.rs:55`: a wait of 0.9 s was reported as 0; axum-governor `respond.rs:63`: 1.99 s as 1;
/// httprate#47: the length of the window instead of the rest of it.
#[test]
fn waits_below_a_second_are_zero_seconds() {
    for rule in by_the_second(1).filter(|rule| rule.capacity() == 1) {
        let subject = Subject::new(&[rule]);
        let _ = subject.set(MIDNIGHT).acquire(1);
        let Verdict::Deny { retry_after: Some(wait) } = subject.set(MIDNIGHT + 100_001).acquire(1).verdict() else {
            panic!("{rule:?} has capacity");
        };
        let longer = if matches!(rule, Rule::Counter { .. }) { SECOND } else { 0 };
        assert!((1..=899_999 + longer).contains(&(wait.as_micros() as u64)), "{rule:?} reports {wait:?}");
    }
}

/// effect#8093, filtermail#167 (where a step back made governor reject): a step back lengthened waits, which were also
/// wrong. Here, the default clock never steps back. With another clock, the wait lasts until it has caught up, because
/// anything sooner would exceed the limit, and not a microsecond longer.
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

/// haproxy#1196: with a wrong time base, counters of some periods never started again.
#[test]
fn windows_of_some_periods_never_turn_over() {
    for period in [1_000, SECOND, 1_500_000, MINUTE, 60 * MINUTE, DAY, 7 * DAY, LONGEST] {
        for rule in [
            Rule::FixedWindow { limit: 1, period },
            Rule::Counter { limit: 1, period, rounding: Default::default(), weight: 100 },
        ] {
            let subject = Subject::new(&[rule]);
            for window in 0..20 {
                let start = (MIDNIGHT / period + 2 * window) * period;
                assert_eq!(allowed_of(2, &subject, start), 1, "{rule:?}");
                assert_eq!(allowed_of(2, &subject, start + period - 1), 0, "{rule:?}");
            }
        }
    }
}
