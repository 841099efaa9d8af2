//! Memory stays bounded, and lockouts are kept.

use std::time::Duration;

use tower_ratelimit::{FixedWindow, Limit, Limiter, ManualClock, MemoryStore, Penalty, Timestamp, TokenBucket};

use crate::penalties::backend::{DAY, MINUTE, START};

fn store(keys: usize) -> (std::sync::Arc<MemoryStore>, ManualClock) {
    let clock = ManualClock::new(Timestamp::from_micros(START));
    (std::sync::Arc::new(MemoryStore::new().max_keys(keys).clock(clock.clone())), clock)
}

/// Keys that use little of their limit evict each other, and no key that is locked out.
#[test]
fn a_flood_of_keys_ends_no_lockout() {
    let (store, clock) = store(1_000);
    let limit = Limit::new("bucket", TokenBucket::new(10, 10, Duration::from_secs(1)));
    let limiter =
        Limiter::builder([limit.penalty(Penalty::after(2, MINUTE).locked_out_for(DAY))]).store(store.clone()).build();
    let ask = |key: &str, cost| limiter.acquire(key, cost).into_ready().unwrap().unwrap();
    let refused: Vec<String> = (0..100).map(|n| format!("refused {n}")).collect();
    for key in &refused {
        assert!(ask(key, 10).is_allowed());
        assert!(!ask(key, 10).is_locked_out());
        assert!(ask(key, 10).is_locked_out());
    }
    // Their usage is evicted, but their lockouts are not.
    clock.advance(Duration::from_secs(5));
    for n in 0..100_000 {
        assert!(ask(&format!("other {n}"), 1 + n % 5).is_allowed());
        assert!(store.keys() <= 1_000, "{} keys", store.keys());
    }
    for key in &refused {
        assert!(ask(key, 1).is_locked_out(), "{key}");
    }
}

/// Keys that are denied once are also evicted before those that are locked out.
#[test]
fn a_flood_of_denials_stays_bounded() {
    let (store, _) = store(1_000);
    let limit = Limit::new("window", FixedWindow::new(2, DAY)).penalty(Penalty::after(100, DAY).locked_out_for(DAY));
    let limiter = Limiter::builder([limit]).store(store.clone()).build();
    let ask = |key: &str, cost| limiter.acquire(key, cost).into_ready().unwrap().unwrap();
    for _ in 0..100 {
        let _ = ask("refused", 3);
    }
    assert!(ask("refused", 1).is_locked_out());
    for n in 0..20_000 {
        // Not denied by its usage, but a strike nevertheless.
        assert!(!ask(&format!("other {n}"), 3).is_allowed());
        assert!(store.keys() <= 1_000, "{} keys", store.keys());
    }
    assert!(store.keys() > 500, "strikes are noted: {} keys", store.keys());
    assert!(ask("refused", 1).is_locked_out());
}

/// A strike does not evict the state of its own limit: a store for one key keeps no strikes.
#[test]
fn a_strike_does_not_evict_a_denied_key() {
    for keys in [1, 2] {
        let (store, _) = store(keys);
        let limit = Limit::new("one", FixedWindow::new(1, DAY)).penalty(Penalty::after(2, DAY).locked_out_for(DAY));
        let limiter = Limiter::builder([limit]).store(store.clone()).build();
        let ask = || limiter.acquire("key", 1).into_ready().unwrap().unwrap();
        assert!(ask().is_allowed());
        for _ in 0..4 {
            assert!(!ask().is_allowed(), "{keys}");
            assert!(store.keys() <= keys);
        }
        assert_eq!(ask().is_locked_out(), keys == 2, "without room for strikes there are none");
    }
}

/// In a store full of denied keys, a request that can never pass is no strike.
#[test]
fn a_request_over_the_capacity_evicts_no_denied_key() {
    let (store, _) = store(2);
    let limit = Limit::new("one", FixedWindow::new(1, DAY));
    let denied = Limiter::builder([limit.clone()]).store(store.clone()).build();
    let punished = Limiter::builder([limit.penalty(Penalty::after(3, DAY).locked_out_for(DAY))]).store(store).build();
    let ask = |limiter: &Limiter, key: &str, cost| limiter.acquire(key, cost).into_ready().unwrap().unwrap();
    for key in ["ann", "bob"] {
        assert!(ask(&denied, key, 1).is_allowed() && !ask(&denied, key, 1).is_allowed());
    }
    assert!(!ask(&punished, "cleo", 2).is_allowed());
    assert!(["ann", "bob"].iter().all(|key| !ask(&denied, key, 1).is_allowed()));
}

/// A lockout that cannot be stored is not announced, as in a store full of denied keys.
#[test]
fn a_lockout_that_the_store_cannot_keep_is_not_announced() {
    let (store, clock) = store(1);
    let limit = Limit::new("one", FixedWindow::new(1, MINUTE)).penalty(Penalty::after(1, DAY).locked_out_for(DAY));
    let limiter = Limiter::builder([limit]).store(store).build();
    let ask = || limiter.acquire("key", 1).into_ready().unwrap().unwrap();
    assert!(ask().is_allowed());
    let denied = ask();
    assert_eq!((denied.is_locked_out(), denied.retry_after()), (false, Some(MINUTE)));
    clock.advance(MINUTE);
    assert!(ask().is_allowed());
}

/// A client is locked out after three denials, even if all keys of the store were denied.
#[test]
fn strikes_count_while_the_store_is_full_of_denied_keys() {
    const KEYS: u64 = 1_000;
    let (store, clock) = store(KEYS as usize);
    let filler = Limiter::builder([Limit::new("day", FixedWindow::new(1, DAY))]).store(store.clone()).build();
    let deny = |key: u64| while filler.acquire(key, 1).into_ready().unwrap().unwrap().is_allowed() {};
    (0..2 * KEYS).for_each(deny);
    assert_eq!(store.keys(), KEYS as usize);
    let limit = Limit::new("second", FixedWindow::new(1, Duration::from_secs(1)));
    let limiter =
        Limiter::builder([limit.penalty(Penalty::after(3, MINUTE).locked_out_for(DAY))]).store(store.clone()).build();
    let mut admitted = 0;
    for request in 0..60 {
        admitted += u32::from(limiter.acquire("client", 1).into_ready().unwrap().unwrap().is_allowed());
        assert!(store.keys() <= KEYS as usize, "{} keys", store.keys());
        if request % 3 == 2 {
            clock.advance(Duration::from_secs(1));
        }
    }
    assert_eq!(admitted, 2);
}

/// The state of a penalty is removed when it has expired. Limits without penalties store nothing more.
#[test]
fn entries_without_meaning_are_removed() {
    let (store, clock) = store(10_000);
    let limit = || Limit::new("window", FixedWindow::new(1, Duration::from_secs(1)));
    let limiter = |limit| Limiter::builder([limit]).store(store.clone()).build();
    let plain = limiter(limit());
    for n in 0..200 {
        for _ in 0..3 {
            let _ = plain.acquire(n, 1).into_ready().unwrap().unwrap();
        }
    }
    assert_eq!(store.keys(), 200);
    let penalised = limiter(limit().penalty(Penalty::after(2, MINUTE).locked_out_for(MINUTE)));
    for n in 0..200 {
        let _ = penalised.acquire(n, 1).into_ready().unwrap().unwrap();
    }
    assert_eq!(store.keys(), 400);
    clock.advance(2 * MINUTE);
    let other = limiter(Limit::new("other", FixedWindow::new(1, DAY)));
    for _ in 0..20_000 {
        let _ = other.acquire("key", 1).into_ready().unwrap().unwrap();
    }
    assert_eq!(store.keys(), 1);
}

/// Requests over the capacity leave no entry that outlives others.
#[tokio::test]
async fn a_flood_of_requests_over_the_capacity_evicts_nothing() {
    let limit = Limit::new("limit", FixedWindow::per_day(10)).penalty(Penalty::after(1, DAY).locked_out_for(DAY));
    let limiter = Limiter::builder([limit]).store(MemoryStore::new().max_keys(1_000)).build();
    for victim in 0..100 {
        assert!(limiter.acquire(("victim", victim), 9).await.unwrap().is_allowed());
    }
    for attacker in 0..5_000 {
        assert!(!limiter.acquire(("attacker", attacker), 11).await.unwrap().is_allowed());
    }
    for attacker in 0..1_000 {
        let _ = limiter.acquire(("other", attacker), 1).await.unwrap();
    }
    for victim in 0..100 {
        assert_eq!(limiter.peek(("victim", victim), 1).await.unwrap().outcomes()[0].remaining(), 1, "{victim}");
    }
}
