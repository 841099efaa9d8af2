//! Valid sizes, and the usage after a change.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, LiveLimits, RateLimitLayer,
    Rounding, SlidingLog, SlidingWindow, SlidingWindowCounter, StoreErrorKind, TokenBucket, Weekday,
};

use crate::overrides::DAY;
use crate::overrides::backend::{holding, is_allowed, left, on_each_backend};
use support::limits::{Patient, all};

#[tokio::test]
async fn usage_carries_over_to_another_size() {
    on_each_backend(async |backend| {
        for (name, small) in all(100, DAY) {
            let large = holding(small, 200);
            let limiter = backend.limiter([Limit::new(name, small).overridable()]);
            let overrides = limiter.limit(name).unwrap();
            let what = format!("{name} in {}", backend.name);

            assert!(is_allowed(&limiter, "42", 80).await, "{what}");
            assert_eq!(left(&limiter, "42").await, 20, "{what}");
            assert_eq!(overrides.get_override("42").await.unwrap(), None, "{what}");

            overrides.set_override("42", large, None).await.unwrap();
            assert_eq!(left(&limiter, "42").await, 120, "{what}");
            let is = overrides.get_override("42").await.unwrap().unwrap();
            assert_eq!((is.algorithm, is.expires_after), (large, None), "{what}");
            assert!(is_allowed(&limiter, "42", 120).await && !is_allowed(&limiter, "42", 1).await, "{what}");

            // Other keys are not affected.
            assert_eq!(left(&limiter, "43").await, 100, "{what}");
            assert_eq!(overrides.get_override("43").await.unwrap(), None, "{what}");

            overrides.remove_override("42").await.unwrap();
            assert_eq!(left(&limiter, "42").await, 0, "{what}");
            assert_eq!(overrides.get_override("42").await.unwrap(), None, "{what}");
            // The usage of 200 exceeds the new size of 100.
            assert!(!is_allowed(&limiter, "42", 1).await, "{what}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_smaller_size_denies_at_once_and_can_be_replaced() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(100)).overridable()]);
        let overrides = limiter.limit("daily").unwrap();
        assert!(is_allowed(&limiter, "42", 5).await);
        for (size, left_then) in [(5, 0), (3, 0), (6, 1), (u32::MAX, u64::from(u32::MAX) - 5)] {
            overrides.set_override("42", FixedWindow::per_day(size), None).await.unwrap();
            assert_eq!(left(&limiter, "42").await, left_then, "{size} in {}", backend.name);
            let decision = limiter.peek("42", 2).await.unwrap();
            assert_eq!(decision.is_allowed(), left_then >= 2, "{size} in {}", backend.name);
        }
    })
    .await;
}

/// A cost over the capacity is an error, unless an override may allow it.
#[tokio::test]
async fn a_cost_over_the_limit_needs_an_override() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(10)).overridable()]);
        limiter.limit("daily").unwrap().set_override("42", FixedWindow::per_day(100), None).await.unwrap();
        assert!(is_allowed(&limiter, "42", 50).await && !is_allowed(&limiter, "43", 50).await, "{}", backend.name);
    })
    .await;
    let limit = || Limit::new("daily", FixedWindow::per_day(10));
    assert!(RateLimitLayer::new([limit().overridable()]).try_cost(50).is_ok());
    assert!(RateLimitLayer::new([limit()]).try_cost(50).is_err());
}

#[tokio::test]
async fn unsupported_algorithms_and_periods_are_errors() {
    let refused = async |limit: Algorithm, given: Algorithm| {
        let limiter = Limiter::new([Limit::new("limit", limit).overridable()]);
        let overrides = limiter.limit("limit").unwrap();
        let error = overrides.set_override("42", given, None).await.expect_err("another algorithm or period");
        assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
        assert_eq!(overrides.get_override("42").await.unwrap(), None);
        error.to_string()
    };
    let is_no_size = async |limit: Algorithm, is: &str, given: Algorithm, other: &str| {
        let text = refused(limit, given).await;
        let expected = format!("{other} is not a size of the limit \"limit\", which is {is}: ");
        assert!(text.starts_with(&expected), "{text}");
    };
    let (window, day) = (FixedWindow::new(3, Duration::from_secs(60)).into(), "a fixed window of 3 per 60 s");
    let short = FixedWindow::new(3, Duration::from_micros(1_500));
    is_no_size(window, day, short.into(), "a fixed window of 3 per 0.0015 s").await;
    is_no_size(window, day, SlidingLog::per_minute(3).into(), "a sliding log of 3 per 60 s").await;
    is_no_size(window, day, LeakyBucket::per_second(2).into(), "a leaky bucket of 2 per 1 s with a capacity of 2")
        .await;
    let queue = LeakyBucketQueue::per_second(2).waiting(5);
    is_no_size(window, day, queue.into(), "a leaky bucket queue of 2 per 1 s with a capacity of 5").await;

    let sliding = SlidingWindow::per_hour(1);
    let [ten, five] =
        ["a sliding window of 1 per 3600 s in 10 buckets", "a sliding window of 2 per 3600 s in 5 buckets"];
    is_no_size(sliding.into(), ten, SlidingWindow::per_hour(2).buckets(5).into(), five).await;

    let (counter, up) = (SlidingWindowCounter::per_hour(1), "a sliding window counter of 1 per 3600 s");
    let down = "a sliding window counter (rounded down) of 1 per 3600 s";
    is_no_size(counter.into(), up, counter.rounding(Rounding::Down).into(), down).await;

    let (bucket, continuous) =
        (TokenBucket::per_hour(1).burst(4), "a token bucket of 1 per 3600 s with a capacity of 4");
    let stepwise = "a token bucket (at intervals) of 1 per 3600 s with a capacity of 4";
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
#[tokio::test]
async fn a_reset_leaves_the_size() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(10)).overridable()]);
        limiter.limit("daily").unwrap().set_override("42", FixedWindow::per_day(20), None).await.unwrap();
        assert!(is_allowed(&limiter, "42", 15).await);
        limiter.reset("42").await.unwrap();
        assert_eq!(left(&limiter, "42").await, 20, "{}", backend.name);
    })
    .await;
}

/// Some of several limits have overrides. They are decided together, each by its own size.
#[tokio::test]
async fn several_limits_have_a_size_each() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([
            Limit::new("a", FixedWindow::per_day(10)).overridable(),
            Limit::new("b", SlidingLog::per_day(10)),
            Limit::new("c", TokenBucket::per_day(10)).overridable(),
            Limit::new("d", SlidingWindow::per_day(10)).overridable(),
        ]);
        limiter.limit("a").unwrap().set_override("42", FixedWindow::per_day(20), None).await.unwrap();
        limiter.limit("d").unwrap().set_override("42", SlidingWindow::per_day(5), None).await.unwrap();
        let decision = limiter.acquire("42", 4).await.unwrap();
        let left: Vec<u64> = decision.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        assert_eq!((decision.is_allowed(), left), (true, vec![16, 6, 6, 1]), "{}", backend.name);
        // The smaller limit denies, so nothing is charged.
        let decision = limiter.acquire("42", 2).await.unwrap();
        let left: Vec<u64> = decision.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        assert_eq!((decision.is_allowed(), left), (false, vec![16, 6, 6, 1]), "{}", backend.name);
    })
    .await;
}

/// A refund returns the charged tokens at the rate of the charge, because a bucket stores time.
#[tokio::test]
async fn refunds_use_the_limit_that_was_charged() {
    on_each_backend(async |backend| {
        let fast = TokenBucket::new(1_000, 1_000, DAY);
        let limiter = backend.limiter([Limit::new("bucket", fast).overridable()]);
        let overrides = limiter.limit("bucket").unwrap();
        overrides.set_override("42", TokenBucket::new(1_000, 10, DAY), None).await.unwrap();
        let charged = limiter.acquire("42", 500).await.unwrap();
        assert!(charged.is_allowed());
        overrides.remove_override("42").await.unwrap();
        limiter.refund(charged.into_receipt()).await.unwrap();
        let decision = limiter.peek("42", 0).await.unwrap();
        let outcome = &decision.outcomes()[0];
        assert_eq!((outcome.remaining(), outcome.reset_after()), (1_000, Duration::ZERO), "{}", backend.name);
    })
    .await;
}

/// Of its charge, what has come back at the rate of the override is not refunded.
#[tokio::test]
async fn a_refund_after_a_replacement_of_limits_uses_the_override_that_was_charged() {
    on_each_backend(async |backend| {
        let bucket = |capacity, amount| TokenBucket::new(capacity, amount, Duration::from_secs(3_600));
        let limit = |capacity| [Limit::new("bucket", bucket(capacity, 1)).overridable()];
        let live = LiveLimits::new(limit(10));
        let limiter = Limiter::live_builder(&live).patient().store(backend.store.clone()).build();
        limiter.limit("bucket").unwrap().set_override("42", bucket(100, 100), None).await.unwrap();
        let receipt = limiter.acquire("42", 50).await.unwrap().into_receipt();
        assert!(is_allowed(&limiter, "42", 30).await);
        backend.clock.advance(Duration::from_secs(900));
        live.replace(limit(20)).unwrap();
        limiter.refund(receipt).await.unwrap();
        // 25 of 80 have come back, and 25 of the refunded 50 with them.
        assert_eq!(left(&limiter, "42").await, 70, "{}", backend.name);
    })
    .await;
}
