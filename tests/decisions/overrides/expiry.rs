//! Overrides that expire.

use std::sync::Arc;
use std::time::Duration;

use support::calls::Calls;
use support::limits::Patient;
use support::redis_server::RedisServer;
use support::store_fixture::{StoreFixture, connect, midnight, on_both_stores};
use support::time::{DAY, HOUR, LONGEST, MICRO, SECOND};
use tower_ratelimit::{Algorithm, FixedWindow, Limit, LimitHandle, Limiter, MemoryStore, SlidingLog, StoreErrorKind};

use crate::overrides::{daily, first, left, set};

on_both_stores!(
    an_override_applies_until_the_microsecond_of_its_expiry,
    a_denial_ends_with_the_size_that_denied,
    the_last_expiry_of_an_override_applies,
    expiries_out_of_range_are_errors,
);

/// Returns when the override of the key `42` expires.
async fn expires_after(overrides: &LimitHandle) -> Option<Duration> {
    overrides.get_override("42").await.unwrap().and_then(|size| size.expires_after)
}

async fn an_override_applies_until_the_microsecond_of_its_expiry(fixture: StoreFixture) {
    let limiter = fixture.limiter(daily(100));
    let (overrides, span) = (first(&limiter), Duration::from_micros(1_234_567));
    overrides.set_override("42", FixedWindow::per_day(200), Some(span)).await.unwrap();
    assert!(limiter.allows("42", 150).await);
    for (wait, expiry, remaining) in
        [(Duration::ZERO, Some(span), 50), (span - MICRO, Some(MICRO), 50), (MICRO, None, 0)]
    {
        fixture.advance(wait);
        assert_eq!((expires_after(&overrides).await, left(&limiter, "42").await), (expiry, remaining));
    }
    assert_eq!(overrides.get_override("42").await.unwrap(), None);
    assert!(!limiter.allows("42", 1).await);
}

/// A cached denial by a smaller size ends with that override.
async fn a_denial_ends_with_the_size_that_denied(fixture: StoreFixture) {
    let sizes: [fn(u32) -> Algorithm; 2] =
        [|size| FixedWindow::per_day(size).into(), |size| SlidingLog::per_day(size).into()];
    for size in sizes {
        let (limiter, span) = (fixture.limiter(Limit::new("limit", size(9)).overridable()), Duration::from_millis(500));
        first(&limiter).set_override("42", size(1), Some(span)).await.unwrap();
        assert!(limiter.allows("42", 1).await);
        for (wait, allowed) in [(Duration::ZERO, false), (span - MICRO, false), (MICRO, true)] {
            fixture.advance(wait);
            assert_eq!(limiter.allows("42", 1).await, allowed, "{} after {wait:?} more", size(1));
        }
        assert_eq!(left(&limiter, "42").await, 7, "{}", size(1));
    }
}

/// The expiry of the last `set` applies.
async fn the_last_expiry_of_an_override_applies(fixture: StoreFixture) {
    let limiter = fixture.limiter(daily(100));
    for (before, then) in [(Some(SECOND), None), (Some(SECOND), Some(2 * SECOND)), (None, Some(2 * SECOND))] {
        for expiry in [before, then] {
            first(&limiter).set_override("42", FixedWindow::per_day(200), expiry).await.unwrap();
            assert_eq!(left(&limiter, "42").await, 200);
        }
        for at_last in [200, if then.is_none() { 200 } else { 100 }] {
            fixture.advance(SECOND);
            assert_eq!(left(&limiter, "42").await, at_last, "{before:?}, {then:?}");
        }
    }
}

async fn expiries_out_of_range_are_errors(fixture: StoreFixture) {
    const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
    let (overrides, size) = (first(&fixture.limiter(daily(100))), FixedWindow::per_day(200));
    for (after, text) in [
        (Duration::ZERO, "after 0 seconds: "),
        (CENTURY + Duration::from_nanos(1), "after 36525 days 0.000000001 seconds: "),
        (Duration::MAX, "after 213503982334601 days 7 hours 15.999999999 seconds: "),
    ] {
        let error = overrides.set_override("42", size, Some(after)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
        assert!(error.to_string().contains(text), "{error}");
    }
    for (after, kept) in [(Duration::from_nanos(1), MICRO), (CENTURY, CENTURY)] {
        overrides.set_override("42", size, Some(after)).await.unwrap();
        assert_eq!(expires_after(&overrides).await, Some(kept));
    }
}

/// The memory store removes expired overrides when it needs space.
#[tokio::test]
async fn the_memory_store_keeps_at_most_max_overrides() {
    let clock = midnight();
    let store = Arc::new(MemoryStore::new().max_overrides(100).clock(clock.clone()));
    let empty = store.bytes();
    let overrides = first(&Limiter::builder(daily(100)).store(store.clone()).build());
    let size = FixedWindow::per_day(200);
    for round in 0..3_u64 {
        for n in 0..100_u64 {
            overrides.set_override((round, n), size, Some(DAY)).await.unwrap();
        }
        assert!(store.bytes() > empty);
        let error = overrides.set_override("one more", size, None).await.expect_err("the store is full");
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
    let year = |tokens| FixedWindow::new(tokens, LONGEST);
    let clock = midnight();
    let store = connect(&server).await.remember_denials(HOUR).clock(clock.clone());
    let limiter = Limiter::builder(Limit::new("limit", year(100)).overridable()).patient().store(store).build();
    set(&limiter, "key", year(10)).await;
    assert!(limiter.allows("key", 10).await && !limiter.allows("key", 1).await);
    first(&limiter).set_override("key", year(9), Some(DAY)).await.unwrap();
    assert!(!limiter.allows("key", 1).await);
    clock.advance(DAY);
    assert!(limiter.allows("key", 1).await);
}
