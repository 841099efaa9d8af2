//! Overage and shadow mode with overrides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::calls::Calls;
use support::store_fixture::{StoreFixture, on_both_stores};
use tower_ratelimit::{FixedWindow, Limit, Limiter, SlidingLog, StoreErrorKind};

use crate::overrides::{daily, first, left, set};

on_both_stores!(
    overage_is_a_part_of_the_size_that_applies,
    elastic_overage_follows_the_signal,
    a_shadow_limit_stays_in_shadow_mode,
);

async fn overage_is_a_part_of_the_size_that_applies(fixture: StoreFixture) {
    let limiter = fixture.limiter(Limit::new("log", SlidingLog::per_day(10)).soft(50).overridable());
    set(&limiter, "42", SlidingLog::per_day(20)).await;
    for (cost, uses_overage) in [(20, false), (10, true)] {
        let decision = limiter.acquire("42", cost).await.unwrap();
        let outcome = &decision.outcomes()[0];
        assert_eq!((decision.is_allowed(), outcome.uses_overage(), outcome.remaining()), (true, uses_overage, 0));
    }
    assert!(!limiter.allows("42", 1).await);
}

async fn elastic_overage_follows_the_signal(fixture: StoreFixture) {
    let spare = Arc::new(AtomicBool::new(true));
    let signal = spare.clone();
    let limit = daily(10).elastic(100, move || signal.load(Ordering::Relaxed));
    let limiter = fixture.limiter(limit);
    set(&limiter, "42", FixedWindow::per_day(20)).await;
    assert!(limiter.allows("42", 30).await);
    spare.store(false, Ordering::Relaxed);
    assert!(!limiter.allows("42", 10).await);
    spare.store(true, Ordering::Relaxed);
    assert!(limiter.allows("42", 10).await && !limiter.allows("42", 1).await);
}

async fn a_shadow_limit_stays_in_shadow_mode(fixture: StoreFixture) {
    let limiter = fixture.limiter(daily(10).shadow());
    set(&limiter, "42", FixedWindow::per_day(2)).await;
    let decision = limiter.acquire("42", 3).await.unwrap();
    let outcome = &decision.outcomes()[0];
    assert!(decision.is_allowed() && !outcome.verdict().is_allowed() && !outcome.is_enforced());
    assert_eq!(left(&limiter, "42").await, 2);
}

#[tokio::test]
async fn a_limit_too_large_with_its_overage_is_an_error() {
    let overrides = first(&Limiter::new(daily(10).soft(50)));
    let most = u32::MAX / 3 * 2;
    overrides.set_override("42", FixedWindow::per_day(most), None).await.unwrap();
    let error = overrides.set_override("42", FixedWindow::per_day(most + 3), None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    assert!(error.to_string().contains("50 %"), "{error}");
    let Ok(Some(is)) = overrides.get_override("42").await else { panic!("it keeps the one that it had") };
    assert_eq!(is.algorithm, FixedWindow::per_day(most).into());
}
