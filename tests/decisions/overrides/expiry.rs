//! Overrides that expire.

use std::time::Duration;

use tower_ratelimit::{FixedWindow, Limit, Limiter, ManualClock, MemoryStore, SlidingLog, StoreErrorKind, Timestamp};

use crate::overrides::DAY;
use crate::overrides::backend::{is_allowed, left, on, on_each_backend};
use support::limits::Patient;
use support::redis_server::RedisServer;

const MICRO: Duration = Duration::from_micros(1);

#[tokio::test]
async fn an_override_applies_until_the_microsecond_of_its_expiry() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(100)).overridable()]);
        let overrides = limiter.limit("daily").unwrap();
        let span = Duration::from_micros(1_234_567);
        overrides.set_override("42", FixedWindow::per_day(200), Some(span)).await.unwrap();
        assert!(is_allowed(&limiter, "42", 150).await, "{}", backend.name);
        assert_eq!(overrides.get_override("42").await.unwrap().unwrap().expires_after, Some(span), "{}", backend.name);

        backend.clock.advance(span - MICRO);
        assert_eq!(left(&limiter, "42").await, 50, "{}", backend.name);
        assert_eq!(overrides.get_override("42").await.unwrap().unwrap().expires_after, Some(MICRO), "{}", backend.name);

        backend.clock.advance(MICRO);
        assert_eq!(left(&limiter, "42").await, 0, "{}", backend.name);
        assert_eq!(overrides.get_override("42").await.unwrap(), None, "{}", backend.name);
        assert!(!is_allowed(&limiter, "42", 1).await, "{}", backend.name);
    })
    .await;
}

/// A cached denial by a smaller size ends with that override.
#[tokio::test]
async fn a_denial_ends_with_the_size_that_denied() {
    on_each_backend(async |backend| {
        for limit in [Limit::new("window", FixedWindow::per_day(9)), Limit::new("log", SlidingLog::per_day(9))] {
            let name = limit.name().to_owned();
            let limiter = backend.limiter([limit.overridable()]);
            let overrides = limiter.limit(&name).unwrap();
            let span = Duration::from_millis(500);
            match name.as_str() {
                "log" => overrides.set_override("42", SlidingLog::per_day(1), Some(span)).await.unwrap(),
                _ => overrides.set_override("42", FixedWindow::per_day(1), Some(span)).await.unwrap(),
            }
            assert!(is_allowed(&limiter, "42", 1).await);
            assert!(!is_allowed(&limiter, "42", 1).await);
            backend.clock.advance(span - MICRO);
            assert!(!is_allowed(&limiter, "42", 1).await, "{name} in {}", backend.name);
            backend.clock.advance(MICRO);
            assert!(is_allowed(&limiter, "42", 1).await, "{name} in {}", backend.name);
            assert_eq!(left(&limiter, "42").await, 7, "{name} in {}", backend.name);
        }
    })
    .await;
}

/// The expiry of the last `set` applies.
#[tokio::test]
async fn the_last_expiry_of_an_override_applies() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(100)).overridable()]);
        let overrides = limiter.limit("daily").unwrap();
        let second = Duration::from_secs(1);
        for (first, then) in [(Some(second), None), (Some(second), Some(2 * second)), (None, Some(2 * second))] {
            overrides.set_override("42", FixedWindow::per_day(200), first).await.unwrap();
            assert_eq!(left(&limiter, "42").await, 200);
            overrides.set_override("42", FixedWindow::per_day(200), then).await.unwrap();
            backend.clock.advance(second);
            assert_eq!(left(&limiter, "42").await, 200, "{first:?}, {then:?} in {}", backend.name);
            backend.clock.advance(second);
            let then_left = if then.is_none() { 200 } else { 100 };
            assert_eq!(left(&limiter, "42").await, then_left, "{first:?}, {then:?} in {}", backend.name);
        }
    })
    .await;
}

#[tokio::test]
async fn expiries_out_of_range_are_errors() {
    const LONGEST: Duration = Duration::from_secs(36_525 * 86_400);
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(100)).overridable()]);
        let overrides = limiter.limit("daily").unwrap();
        let size = FixedWindow::per_day(200);
        for after in [Duration::ZERO, LONGEST + Duration::from_nanos(1), Duration::MAX] {
            let error = overrides.set_override("42", size, Some(after)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
            assert!(error.to_string().contains(&format!("{after:?}")), "{error}");
        }
        for (after, kept) in [(Duration::from_nanos(1), MICRO), (LONGEST, LONGEST)] {
            overrides.set_override("42", size, Some(after)).await.unwrap();
            assert_eq!(
                overrides.get_override("42").await.unwrap().unwrap().expires_after,
                Some(kept),
                "{}",
                backend.name
            );
        }
    })
    .await;
}

/// The memory store removes expired overrides when it needs space.
#[tokio::test]
async fn the_memory_store_keeps_at_most_max_overrides() {
    let clock = ManualClock::default();
    let store = MemoryStore::new().max_overrides(100).clock(clock.clone());
    let store = std::sync::Arc::new(store);
    let empty = store.bytes();
    let limiter =
        Limiter::builder([Limit::new("daily", FixedWindow::per_day(100)).overridable()]).store(store.clone()).build();
    let overrides = limiter.limit("daily").unwrap();
    let size = FixedWindow::per_day(200);
    for round in 0..3_u64 {
        for n in 0..100_u64 {
            overrides.set_override((round, n), size, Some(DAY)).await.unwrap();
        }
        assert!(store.bytes() > empty);
        let error = overrides.set_override("one more", size, None).await.expect_err("there is no room for one more");
        assert_eq!(error.kind(), StoreErrorKind::Full);
        assert!(error.to_string().contains("has 100 overrides"), "{error}");
        // Each override can be set again in its own entry.
        overrides.set_override((round, 7_u64), FixedWindow::per_day(300), Some(DAY)).await.unwrap();
        clock.advance(DAY);
    }
    // Expired overrides are removed when space is needed.
    assert_eq!(overrides.get_override((2_u64, 7_u64)).await.unwrap(), None);
    for n in 0..100_u64 {
        overrides.set_override(n, size, None).await.unwrap();
    }
    assert!(overrides.set_override("one more", size, None).await.is_err());
    for n in 0..100_u64 {
        overrides.remove_override(n).await.unwrap();
        overrides.remove_override(n).await.unwrap();
    }
    assert_eq!(store.bytes(), empty, "nothing is left of them");
    overrides.set_override("one more", size, None).await.unwrap();
}

/// A cached denial, by whichever override.
#[tokio::test]
async fn a_cached_denial_does_not_outlive_an_expired_override() {
    let server = RedisServer::start();
    let year = |tokens| FixedWindow::new(tokens, 366 * DAY);
    let limiter = Limiter::builder([Limit::new("limit", year(100)).overridable()]).patient();
    let (clock, hour) = (ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000)), Duration::from_secs(3_600));
    let limiter = limiter.store(on(&server).await.remember_denials(hour).clock(clock.clone())).build();
    let overrides = limiter.limit("limit").unwrap();
    overrides.set_override("key", year(10), None).await.unwrap();
    assert!(limiter.acquire("key", 10).await.unwrap().is_allowed());
    assert!(!limiter.acquire("key", 1).await.unwrap().is_allowed());
    overrides.set_override("key", year(9), Some(DAY)).await.unwrap();
    assert!(!limiter.acquire("key", 1).await.unwrap().is_allowed());
    clock.advance(DAY);
    assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
}
