//! Floods of requests for one key of a database with compare-and-swap: their denials are remembered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use support::database::{Database, Fault};
use support::time::{HOUR, MICRO};
use tokio::time::sleep;
use tower::Layer;
use tower_ratelimit::store::CasStore;
use tower_ratelimit::{
    Algorithm, Builder, DecidedBy, Decision, FixedWindow, LeakyBucket, Limit, Limiter, OnStoreError, Penalty,
    RateLimitLayer, RequestHead, SlidingLog, SlidingWindow, SlidingWindowCounter, StoreErrorKind, SystemClock,
    TokenBucket, key, when,
};

use crate::limited::{ask, hello, ms, ten, with};

fn all(tokens: u32) -> [Algorithm; 7] {
    [
        FixedWindow::per_hour(tokens).into(),
        SlidingLog::per_hour(tokens).into(),
        SlidingWindow::per_hour(tokens).into(),
        SlidingWindowCounter::per_hour(tokens).into(),
        TokenBucket::per_hour(tokens).into(),
        TokenBucket::per_hour(tokens).at_intervals().into(),
        LeakyBucket::per_hour(tokens).into(),
    ]
}

fn limiter(database: &Database, limit: Limit) -> Builder {
    Limiter::builder([limit]).store(CasStore::new(database.clone()))
}

async fn acquire(limiter: &Limiter, cost: u64) -> Decision {
    limiter.acquire("key", cost).await.expect("a decision")
}

async fn is_allowed(limiter: &Limiter) -> bool {
    acquire(limiter, 1).await.is_allowed()
}

/// Takes all tokens.
async fn exhaust(limiter: &Limiter) {
    while is_allowed(limiter).await {}
}

/// Sends requests for one key, some of them at the same time as others. Returns the numbers that are allowed and that
/// fail.
async fn flood(limiter: &Limiter, requests: u32, pause: Duration) -> (usize, usize) {
    let answers = join_all((0..requests).map(async |number| {
        sleep(pause * number).await;
        limiter.acquire("key", 1).await.map(|decision| decision.is_allowed())
    }));
    let answers = answers.await;
    let count = |of: Option<bool>| answers.iter().filter(|answer| answer.as_ref().ok().copied() == of).count();
    (count(Some(true)), count(None))
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_one_key_gets_exactly_its_limit() {
    for policy in [OnStoreError::Reject, OnStoreError::Allow] {
        for pause in [Duration::ZERO, Duration::from_micros(100)] {
            let database = Database::default().latency(ms(1));
            let limiter = limiter(&database, ten()).on_store_error(policy).build();
            assert_eq!(flood(&limiter, 10_000, pause).await, (10, 0), "{policy:?}, a request each {pause:?}");
            let reads = database.reads();
            assert!(reads < 50, "{reads} reads");
        }
    }
}

/// Even those with which the key would share one of a fixed number of locks.
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_key_does_not_delay_others() {
    let database = Database::default().latency(ms(10));
    let limiter = limiter(&database, ten()).build();
    let others = join_all((0..1_000_u64).map(async |key| {
        sleep(ms(1)).await;
        limiter.acquire(key, 1).await.is_ok_and(|decision| decision.is_allowed())
    }));
    let (_, others) = tokio::join!(flood(&limiter, 10_000, Duration::ZERO), others);
    assert_eq!(others.iter().filter(|allowed| !**allowed).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_denied_key_is_denied_while_the_database_hangs() {
    let database = Database::default();
    let limiter = limiter(&database, ten()).build();
    exhaust(&limiter).await;
    database.set(Fault::ReadsHang);
    for _ in 0..100 {
        assert!(!is_allowed(&limiter).await);
    }
    while limiter.acquire("other", 1).await.is_err_and(|error| error.kind() != StoreErrorKind::BreakerOpen) {}
    assert!(!is_allowed(&limiter).await, "while the breaker is open");
}

#[tokio::test(start_paused = true)]
async fn a_denial_ends_exactly_after_its_wait() {
    for algorithm in all(5) {
        let database = Database::default();
        let limiter = limiter(&database, Limit::new("limit", algorithm)).build();
        exhaust(&limiter).await;
        let wait = acquire(&limiter, 1).await.retry_after().expect("a wait");
        let reads = database.reads();
        database.clock.advance(wait - MICRO);
        assert_eq!(acquire(&limiter, 1).await.retry_after(), Some(MICRO), "{algorithm:?}");
        assert_eq!(database.reads(), reads, "{algorithm:?}");
        database.clock.advance(MICRO);
        assert!(is_allowed(&limiter).await, "{algorithm:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_a_reset_and_an_override_end_a_denial() {
    for (algorithm, larger) in all(5).into_iter().zip(all(50)) {
        let database = Database::default();
        let limiter = limiter(&database, Limit::new("limit", algorithm).overridable()).build();
        let receipt = acquire(&limiter, 1).await.into_receipt();
        exhaust(&limiter).await;
        limiter.refund(receipt).await.expect("a refund");
        assert!(is_allowed(&limiter).await, "{algorithm:?}: a refund");
        exhaust(&limiter).await;
        limiter.reset("key").await.expect("a reset");
        assert!(is_allowed(&limiter).await, "{algorithm:?}: a reset");
        exhaust(&limiter).await;
        let overrides = limiter.limit("limit").expect("overrides");
        overrides.set_override("key", larger, None).await.expect("an override");
        assert!(is_allowed(&limiter).await, "{algorithm:?}: an override");
        overrides.remove_override("key").await.expect("a removal");
        assert!(!is_allowed(&limiter).await, "{algorithm:?}: the override is removed");
    }
}

/// The limit that is available at the large size would deny at the small one, had it not been reset.
#[tokio::test(start_paused = true)]
async fn a_denial_is_not_repeated_for_a_smaller_size_of_another_limit() {
    let pro = when::header("x-plan", "pro");
    let sized = Limit::new("sized", TokenBucket::per_day(3)).size_when(pro, TokenBucket::per_day(10));
    let burst = Limit::new("burst", TokenBucket::per_hour(5));
    let limits = RateLimitLayer::builder([sized, burst]).store(CasStore::new(Database::default())).build();
    let explain = async |plan| limits.explain(&RequestHead::of(&with(&[("x-plan", plan)]))).await;
    let service = limits.layer(hello());
    for _ in 0..6 {
        ask(&service, with(&[("x-plan", "pro")])).await;
    }
    assert_eq!(explain("pro").await.decided_by, Some(DecidedBy::RememberedDenial));
    limits.limit("sized").unwrap().reset(key::Shared).await.unwrap();
    for plan in ["pro", "free"] {
        let explanation = explain(plan).await;
        let wait = explanation.retry_after().expect("a wait");
        assert!(wait <= HOUR / 5, "{plan} waits for {wait:?}: {explanation}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_smaller_cost_is_allowed_after_a_denial() {
    for algorithm in all(5) {
        let database = Database::default();
        let limiter = limiter(&database, Limit::new("limit", algorithm)).build();
        assert!(acquire(&limiter, 3).await.is_allowed());
        for _ in 0..3 {
            assert!(!acquire(&limiter, 5).await.is_allowed());
        }
        assert!(acquire(&limiter, 2).await.is_allowed(), "{algorithm:?}");
    }
}

/// Each denial counts until the key is locked out.
#[tokio::test(start_paused = true)]
async fn strikes_are_counted_in_the_database_and_lockouts_are_remembered() {
    let database = Database::default();
    let penalty = Penalty::after(5, HOUR).locked_out_for(2 * HOUR);
    let limiter = limiter(&database, Limit::new("limit", FixedWindow::per_hour(1)).penalty(penalty)).build();
    assert!(is_allowed(&limiter).await);
    for strike in 1..=6 {
        assert_eq!(acquire(&limiter, 1).await.is_locked_out(), strike >= 5, "denial {strike}");
    }
    let reads = database.reads();
    for _ in 0..100 {
        assert!(acquire(&limiter, 1).await.is_locked_out());
    }
    assert_eq!(database.reads(), reads);
    database.clock.advance(2 * HOUR);
    assert!(is_allowed(&limiter).await);
    assert!(!acquire(&limiter, 1).await.is_locked_out(), "the first strike after the lockout");
}

/// Quotas deny only together, so that a change of either ends the denial.
#[tokio::test(start_paused = true)]
async fn a_denial_by_several_quotas_is_remembered_until_one_of_them_changes() {
    let database = Database::default();
    let quotas =
        [("own", 3), ("team", 5)].map(|(name, tokens)| Limit::new(name, FixedWindow::per_hour(tokens)).quota_mode());
    let limiter = Limiter::builder(quotas).store(CasStore::new(database.clone())).build();
    let receipt = acquire(&limiter, 1).await.into_receipt();
    exhaust(&limiter).await;
    let reads = database.reads();
    for _ in 0..100 {
        assert!(!is_allowed(&limiter).await);
    }
    assert_eq!(database.reads(), reads);
    limiter.refund(receipt).await.expect("a refund");
    assert!(is_allowed(&limiter).await);
    database.clock.advance(HOUR);
    assert!(is_allowed(&limiter).await);
}

/// Another process resets a key, here through another store.
#[tokio::test]
async fn a_reset_by_another_process_is_seen_after_the_denials_lifetime() {
    let database = Database::default();
    let [one, other] = [(); 2].map(|()| limiter(&database, ten()).build());
    exhaust(&one).await;
    other.reset("key").await.expect("a reset");
    assert!(!is_allowed(&one).await);
    std::thread::sleep(ms(1_100));
    assert!(is_allowed(&one).await);
}

#[tokio::test(start_paused = true)]
async fn denials_are_repeated_without_reading_the_clock_of_a_database() {
    let database = Database::new(Arc::new(SystemClock::new()), Fault::ClockIsRemote);
    let limit = Limit::new("limit", TokenBucket::new(1, 1, ms(300)));
    let limiter = Limiter::builder([limit]).store(CasStore::new(database.clone())).build();
    exhaust(&limiter).await;
    let before = (database.clock_readings(), database.reads());
    let began = Instant::now();
    let mut wait = Duration::MAX;
    for _ in 0..100 {
        let next = acquire(&limiter, 1).await.retry_after().expect("a denial");
        assert!(next <= wait);
        wait = next;
    }
    let after = (database.clock_readings(), database.reads());
    assert!(after == before || began.elapsed() > ms(200), "{before:?} {after:?}");
    sleep(wait).await;
    assert!(is_allowed(&limiter).await);
}
