//! Valid sizes, and the usage after a change.

use std::time::Duration;

use support::calls::{Calls, Outcomes};
use support::limits::{Patient, all};
use support::store_fixture::{StoreFixture, on_both_stores};
use support::time::{DAY, HOUR};
use tower_ratelimit::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, LiveLimits, RateLimitLayer,
    Rounding, SlidingLog, SlidingWindow, SlidingWindowCounter, StoreErrorKind, TokenBucket, Weekday,
};

use crate::overrides::{daily, first, holding, left, set};

on_both_stores!(
    usage_carries_over_to_another_size,
    a_smaller_size_denies_at_once_and_can_be_replaced,
    a_cost_over_the_limit_needs_an_override,
    a_reset_leaves_the_size,
    several_limits_have_a_size_each,
    refunds_use_the_limit_that_was_charged,
    a_refund_after_a_replacement_of_limits_uses_the_override_that_was_charged,
);

async fn usage_carries_over_to_another_size(fixture: StoreFixture) {
    for (name, small) in all(100, DAY) {
        let limiter = fixture.limiter(Limit::new(name, small).overridable());
        let (overrides, large) = (first(&limiter), holding(small, 200));
        let size = async |key: &str| {
            let size = overrides.get_override(key).await.unwrap();
            (left(&limiter, key).await, size.map(|size| (size.algorithm, size.expires_after)))
        };
        assert!(limiter.allows("42", 80).await, "{name}");
        assert_eq!(size("42").await, (20, None), "{name}");

        set(&limiter, "42", large).await;
        assert_eq!(size("42").await, (120, Some((large, None))), "{name}");
        assert!(limiter.allows("42", 120).await && !limiter.allows("42", 1).await, "{name}");
        // Other keys are not affected.
        assert_eq!(size("43").await, (100, None), "{name}");

        overrides.remove_override("42").await.unwrap();
        assert_eq!(size("42").await, (0, None), "{name}");
        // The usage of 200 exceeds the new size of 100.
        assert!(!limiter.allows("42", 1).await, "{name}");
    }
}

async fn a_smaller_size_denies_at_once_and_can_be_replaced(fixture: StoreFixture) {
    let limiter = fixture.limiter(daily(100));
    assert!(limiter.allows("42", 5).await);
    for (size, left_then) in [(5, 0), (3, 0), (6, 1), (u32::MAX, u64::from(u32::MAX) - 5)] {
        set(&limiter, "42", FixedWindow::per_day(size)).await;
        assert_eq!(left(&limiter, "42").await, left_then, "{size}");
        assert_eq!(limiter.peek("42", 2).await.unwrap().is_allowed(), left_then >= 2, "{size}");
    }
}

/// A cost over the capacity is an error, unless an override may allow it.
async fn a_cost_over_the_limit_needs_an_override(fixture: StoreFixture) {
    let limiter = fixture.limiter(daily(10));
    set(&limiter, "42", FixedWindow::per_day(100)).await;
    assert!(limiter.allows("42", 50).await && !limiter.allows("43", 50).await);
    assert!(RateLimitLayer::new(daily(10)).try_cost(50).is_ok());
    assert!(RateLimitLayer::new(Limit::new("daily", FixedWindow::per_day(10))).try_cost(50).is_err());
}

#[tokio::test]
async fn unsupported_algorithms_and_periods_are_errors() {
    let is_no_size = async |limit: Algorithm, is: &str, given: Algorithm, other: &str| {
        let overrides = first(&Limiter::new(Limit::new("limit", limit).overridable()));
        let error = overrides.set_override("42", given, None).await.expect_err("another algorithm or period");
        let expected = format!("{other} is not a size of the limit \"limit\", which is {is}: ");
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
        assert_eq!(overrides.get_override("42").await.unwrap(), None);
    };
    let (window, day) = (FixedWindow::new(3, Duration::from_secs(60)).into(), "a fixed window of 3 per minute");
    let short = FixedWindow::new(3, Duration::from_micros(1_500));
    is_no_size(window, day, short.into(), "a fixed window of 3 per 1.5 ms").await;
    is_no_size(window, day, SlidingLog::per_minute(3).into(), "a sliding log of 3 per minute").await;
    is_no_size(window, day, LeakyBucket::per_second(2).into(), "a leaky bucket of 2 per second with a capacity of 2")
        .await;
    let queue = LeakyBucketQueue::per_second(2).waiting(5);
    is_no_size(window, day, queue.into(), "a leaky bucket queue of 2 per second with a capacity of 5").await;

    let described = "a leaky bucket queue of 2 per second with a capacity of 5 after a burst of 3";
    is_no_size(window, day, queue.burst(3).into(), described).await;

    let sliding = SlidingWindow::per_hour(1);
    let [ten, five] = ["a sliding window of 1 per hour in 10 buckets", "a sliding window of 2 per hour in 5 buckets"];
    is_no_size(sliding.into(), ten, SlidingWindow::per_hour(2).buckets(5).into(), five).await;

    let (counter, up) = (SlidingWindowCounter::per_hour(1), "a sliding window counter of 1 per hour");
    let down = "a sliding window counter (rounded down) of 1 per hour";
    is_no_size(counter.into(), up, counter.rounding(Rounding::Down).into(), down).await;
    let half = "a sliding window counter of 1 per hour with a weight of 50 %";
    is_no_size(counter.into(), up, counter.weight(50).into(), half).await;

    let (bucket, continuous) = (TokenBucket::per_hour(1).burst(4), "a token bucket of 1 per hour with a capacity of 4");
    let stepwise = "a token bucket (at intervals) of 1 per hour with a capacity of 4";
    is_no_size(bucket.into(), continuous, bucket.at_intervals().into(), stepwise).await;

    let (month, first) = (CalendarWindow::monthly(9), "a calendar window of 9 per month from day 1 in UTC");
    #[cfg(feature = "time-zones")]
    {
        let billed = "a calendar window of 9 per month from day 15 in Europe/Berlin";
        is_no_size(month.into(), first, month.from_day(15).in_zone("Europe/Berlin").into(), billed).await;
    }
    let week = "a calendar window of 9 per week from Sunday in UTC";
    is_no_size(month.into(), first, CalendarWindow::weekly(9, Weekday::Sunday).into(), week).await;
    is_no_size(month.into(), first, CalendarWindow::daily(9).into(), "a calendar window of 9 per day in UTC").await;
    is_no_size(month.into(), first, CalendarWindow::yearly(9).into(), "a calendar window of 9 per year in UTC").await;
}

#[tokio::test]
async fn a_limit_that_does_not_exist_is_named_in_the_error() {
    let limits = || [Limit::new("daily", FixedWindow::per_day(1)), Limit::new("hourly", FixedWindow::per_hour(1))];
    let layer = RateLimitLayer::new(limits());
    let set = layer.limit("daily").unwrap().set_override("42", FixedWindow::per_day(2), None).await;
    let error = set.unwrap_err().to_string();
    assert!(error.contains("\"daily\"") && error.contains("Limit::overridable"), "{error}");
    let error = Limiter::new(limits()).limit("weekly").unwrap_err().to_string();
    assert!(error.contains("no limit named \"weekly\""), "{error}");
}

/// `reset` clears the usage.
async fn a_reset_leaves_the_size(fixture: StoreFixture) {
    let limiter = fixture.limiter(daily(10));
    set(&limiter, "42", FixedWindow::per_day(20)).await;
    assert!(limiter.allows("42", 15).await);
    limiter.reset("42").await.unwrap();
    assert_eq!(left(&limiter, "42").await, 20);
}

/// Some of several limits have overrides. They are decided together, each by its own size.
async fn several_limits_have_a_size_each(fixture: StoreFixture) {
    let limiter = fixture.limiter([
        Limit::new("a", FixedWindow::per_day(10)).overridable(),
        Limit::new("b", SlidingLog::per_day(10)),
        Limit::new("c", TokenBucket::per_day(10)).overridable(),
        Limit::new("d", SlidingWindow::per_day(10)).overridable(),
    ]);
    set(&limiter, "42", FixedWindow::per_day(20)).await;
    limiter.limit("d").unwrap().set_override("42", SlidingWindow::per_day(5), None).await.unwrap();
    // If the smallest limit denies, nothing is charged.
    for (cost, allowed) in [(4, true), (2, false)] {
        let decision = limiter.acquire("42", cost).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.remaining()), (allowed, vec![16, 6, 6, 1]));
    }
}

/// A refund returns the charged tokens at the rate of the charge, because a bucket stores time.
async fn refunds_use_the_limit_that_was_charged(fixture: StoreFixture) {
    let limiter = fixture.limiter(Limit::new("bucket", TokenBucket::new(1_000, 1_000, DAY)).overridable());
    set(&limiter, "42", TokenBucket::new(1_000, 10, DAY)).await;
    let charged = limiter.acquire("42", 500).await.unwrap();
    assert!(charged.is_allowed());
    first(&limiter).remove_override("42").await.unwrap();
    limiter.refund(charged.into_receipt()).await.unwrap();
    let decision = limiter.peek("42", 0).await.unwrap();
    let outcome = &decision.outcomes()[0];
    assert_eq!((outcome.remaining(), outcome.reset_after()), (1_000, Duration::ZERO));
}

/// Of its charge, what has come back at the rate of the override is not refunded.
async fn a_refund_after_a_replacement_of_limits_uses_the_override_that_was_charged(fixture: StoreFixture) {
    let bucket = |capacity, amount| TokenBucket::new(capacity, amount, HOUR);
    let limit = |capacity| [Limit::new("bucket", bucket(capacity, 1)).overridable()];
    let live = LiveLimits::new(limit(10));
    let limiter = Limiter::live_builder(&live).patient().store(fixture.store.clone()).build();
    set(&limiter, "42", bucket(100, 100)).await;
    let receipt = limiter.acquire("42", 50).await.unwrap().into_receipt();
    assert!(limiter.allows("42", 30).await);
    fixture.advance(HOUR / 4);
    live.replace(limit(20)).unwrap();
    limiter.refund(receipt).await.unwrap();
    // 25 of 80 have come back, and 25 of the refunded 50 with them.
    assert_eq!(left(&limiter, "42").await, 70);
}
