//! Overage and shadow mode with overrides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tower_ratelimit::{FixedWindow, Limit, Limiter, SlidingLog, StoreErrorKind};

use crate::overrides::backend::{is_allowed, left, on_each_backend};

#[tokio::test]
async fn overage_is_a_part_of_the_size_that_applies() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("log", SlidingLog::per_day(10)).soft(50).overridable()]);
        limiter.limit("log").unwrap().set_override("42", SlidingLog::per_day(20), None).await.unwrap();
        let decision = limiter.acquire("42", 20).await.unwrap();
        assert!(decision.is_allowed() && !decision.outcomes()[0].uses_overage(), "{}", backend.name);
        assert_eq!(decision.outcomes()[0].remaining(), 0, "{}", backend.name);
        let decision = limiter.acquire("42", 10).await.unwrap();
        assert!(decision.is_allowed() && decision.outcomes()[0].uses_overage(), "{}", backend.name);
        assert!(!is_allowed(&limiter, "42", 1).await, "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn elastic_overage_follows_the_signal() {
    on_each_backend(async |backend| {
        let spare = Arc::new(AtomicBool::new(true));
        let signal = spare.clone();
        let limit = Limit::new("daily", FixedWindow::per_day(10)).elastic(100, move || signal.load(Ordering::Relaxed));
        let limiter = backend.limiter([limit.overridable()]);
        limiter.limit("daily").unwrap().set_override("42", FixedWindow::per_day(20), None).await.unwrap();
        assert!(is_allowed(&limiter, "42", 30).await, "{}", backend.name);
        spare.store(false, Ordering::Relaxed);
        assert!(!is_allowed(&limiter, "42", 10).await, "{}", backend.name);
        spare.store(true, Ordering::Relaxed);
        assert!(is_allowed(&limiter, "42", 10).await && !is_allowed(&limiter, "42", 1).await, "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn a_shadow_limit_stays_in_shadow_mode() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("daily", FixedWindow::per_day(10)).shadow().overridable()]);
        limiter.limit("daily").unwrap().set_override("42", FixedWindow::per_day(2), None).await.unwrap();
        let decision = limiter.acquire("42", 3).await.unwrap();
        let outcome = &decision.outcomes()[0];
        assert!(decision.is_allowed() && !outcome.verdict().is_allowed() && !outcome.is_enforced(), "{}", backend.name);
        assert_eq!(left(&limiter, "42").await, 2, "{}", backend.name);
    })
    .await;
}

#[tokio::test]
async fn a_limit_too_large_with_its_overage_is_an_error() {
    let limiter = Limiter::new([Limit::new("daily", FixedWindow::per_day(10)).soft(50).overridable()]);
    let overrides = limiter.limit("daily").unwrap();
    let most = u32::MAX / 3 * 2;
    overrides.set_override("42", FixedWindow::per_day(most), None).await.unwrap();
    let error = overrides.set_override("42", FixedWindow::per_day(most + 3), None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    assert!(error.to_string().contains("50 %"), "{error}");
    let Ok(Some(is)) = overrides.get_override("42").await else { panic!("it keeps the one that it had") };
    assert_eq!(is.algorithm, FixedWindow::per_day(most).into());
}
