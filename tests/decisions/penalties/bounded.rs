//! Memory stays bounded, and lockouts are kept.

use support::calls::Now;
use support::time::{DAY, MINUTE, SECOND};
use tower_ratelimit::{Decision, FixedWindow, Limit, Limiter, Penalty, TokenBucket};

use crate::subject::Memory;

fn ask(limiter: &Limiter, key: impl tower_ratelimit::key::Key + Sync, cost: u64) -> Decision {
    limiter.acquire(key, cost).now()
}

/// Keys that use little of their limit evict each other, and no key that is locked out.
#[test]
fn a_flood_of_keys_ends_no_lockout() {
    let store = Memory::new(1_000);
    let limit = Limit::new("bucket", TokenBucket::new(10, 10, SECOND));
    let limiter = store.limiter(limit.penalty(Penalty::after(2, MINUTE).locked_out_for(DAY)));
    for key in 0..100 {
        let locked_out = [(); 3].map(|()| ask(&limiter, key, 10).is_locked_out());
        assert_eq!(locked_out, [false, false, true]);
    }
    // Their usage is evicted, but their lockouts are not.
    store.clock.advance(5 * SECOND);
    for n in 0..100_000 {
        assert!(ask(&limiter, ("other", n), 1 + n % 5).is_allowed());
        assert!(store.keys() <= 1_000, "{} keys", store.keys());
    }
    assert!((0..100).all(|key| ask(&limiter, key, 1).is_locked_out()));
}

/// Keys that are denied once are also evicted before those that are locked out.
#[test]
fn a_flood_of_denials_stays_bounded() {
    let store = Memory::new(1_000);
    let limit = Limit::new("window", FixedWindow::new(2, DAY)).penalty(Penalty::after(100, DAY).locked_out_for(DAY));
    let limiter = store.limiter(limit);
    for _ in 0..100 {
        let _ = ask(&limiter, "locked out", 3);
    }
    assert!(ask(&limiter, "locked out", 1).is_locked_out());
    for n in 0..20_000 {
        // Not denied by its usage, but a strike nevertheless.
        assert!(!ask(&limiter, ("other", n), 3).is_allowed());
        assert!(store.keys() <= 1_000, "{} keys", store.keys());
    }
    assert!(store.keys() > 500, "strikes are noted: {} keys", store.keys());
    assert!(ask(&limiter, "locked out", 1).is_locked_out());
}

/// A strike does not evict the state of its own limit: a store for one key keeps no strikes.
#[test]
fn a_strike_does_not_evict_a_denied_key() {
    for keys in [1, 2] {
        let store = Memory::new(keys);
        let limit = Limit::new("one", FixedWindow::new(1, DAY)).penalty(Penalty::after(2, DAY).locked_out_for(DAY));
        let limiter = store.limiter(limit);
        let ask = || ask(&limiter, "key", 1);
        assert!(ask().is_allowed());
        for _ in 0..4 {
            assert!(!ask().is_allowed(), "{keys}");
            assert!(store.keys() <= keys);
        }
        assert_eq!(ask().is_locked_out(), keys == 2, "without space for strikes there are none");
    }
}

/// In a store full of denied keys, a request that can never pass is no strike.
#[test]
fn a_request_over_the_capacity_evicts_no_denied_key() {
    let store = Memory::new(2);
    let limit = Limit::new("one", FixedWindow::new(1, DAY));
    let denied = store.limiter(limit.clone());
    let punished = store.limiter(limit.penalty(Penalty::after(3, DAY).locked_out_for(DAY)));
    for key in ["ann", "bob"] {
        assert!(ask(&denied, key, 1).is_allowed() && !ask(&denied, key, 1).is_allowed());
    }
    assert!(!ask(&punished, "cleo", 2).is_allowed());
    assert!(["ann", "bob"].iter().all(|key| !ask(&denied, key, 1).is_allowed()));
}

/// Lockouts that cost a flood of keys nothing evict each other, although they deny requests that the limit would allow.
#[test]
fn lockouts_by_requests_over_the_capacity_evict_no_denied_key() {
    let store = Memory::new(1_000);
    let limit = Limit::new("one", FixedWindow::new(1, DAY));
    let denied = store.limiter(limit.clone());
    let punished = store.limiter(limit.penalty(Penalty::after(1, DAY).locked_out_for(DAY)));
    for key in 0..100 {
        assert!(ask(&denied, key, 1).is_allowed() && !ask(&denied, key, 1).is_allowed());
    }
    for n in 0..20_000 {
        assert!([2, 1].iter().all(|cost| ask(&punished, ("other", n), *cost).is_locked_out()));
    }
    assert!((0..100).all(|key| !ask(&denied, key, 1).is_allowed()));
}

/// A lockout that cannot be stored is not announced, as in a store full of denied keys.
#[test]
fn a_lockout_that_the_store_cannot_keep_is_not_announced() {
    let store = Memory::new(1);
    let limit = Limit::new("one", FixedWindow::new(1, MINUTE)).penalty(Penalty::after(1, DAY).locked_out_for(DAY));
    let limiter = store.limiter(limit);
    let ask = || ask(&limiter, "key", 1);
    assert!(ask().is_allowed());
    let denied = ask();
    assert_eq!((denied.is_locked_out(), denied.retry_after()), (false, Some(MINUTE)));
    store.clock.advance(MINUTE);
    assert!(ask().is_allowed());
}

/// A client is locked out after three denials, even if all keys of the store were denied.
#[test]
fn strikes_count_while_the_store_is_full_of_denied_keys() {
    const KEYS: u64 = 1_000;
    let store = Memory::new(KEYS as usize);
    let filler = store.limiter(Limit::new("day", FixedWindow::new(1, DAY)));
    let deny = |key: u64| while ask(&filler, key, 1).is_allowed() {};
    (0..2 * KEYS).for_each(deny);
    assert_eq!(store.keys(), KEYS as usize);
    let limit = Limit::new("second", FixedWindow::new(1, SECOND));
    let limiter = store.limiter(limit.penalty(Penalty::after(3, MINUTE).locked_out_for(DAY)));
    let mut admitted = 0;
    for request in 0..60 {
        admitted += u32::from(ask(&limiter, "client", 1).is_allowed());
        assert!(store.keys() <= KEYS as usize, "{} keys", store.keys());
        if request % 3 == 2 {
            store.clock.advance(SECOND);
        }
    }
    assert_eq!(admitted, 2);
}

/// The state of a penalty is removed when it has expired. Limits without penalties store nothing more.
#[test]
fn entries_without_meaning_are_removed() {
    let store = Memory::new(10_000);
    let limit = || Limit::new("window", FixedWindow::new(1, SECOND));
    let plain = store.limiter(limit());
    for n in 0..200 {
        for _ in 0..3 {
            let _ = ask(&plain, n, 1);
        }
    }
    assert_eq!(store.keys(), 200);
    let punished = store.limiter(limit().penalty(Penalty::after(2, MINUTE).locked_out_for(MINUTE)));
    for n in 0..200 {
        let _ = ask(&punished, n, 1);
    }
    assert_eq!(store.keys(), 400);
    store.clock.advance(2 * MINUTE);
    let other = store.limiter(Limit::new("other", FixedWindow::new(1, DAY)));
    for _ in 0..20_000 {
        let _ = ask(&other, "key", 1);
    }
    assert_eq!(store.keys(), 1);
}

/// Requests over the capacity leave no entry that outlives others.
#[test]
fn a_flood_of_requests_over_the_capacity_evicts_nothing() {
    let limit = Limit::new("limit", FixedWindow::per_day(10)).penalty(Penalty::after(1, DAY).locked_out_for(DAY));
    let limiter = Memory::new(1_000).limiter(limit);
    assert!((0..100).all(|key| ask(&limiter, ("victim", key), 9).is_allowed()));
    assert!(!(0..5_000).any(|key| ask(&limiter, ("attacker", key), 11).is_allowed()));
    (0..1_000).for_each(|key| drop(ask(&limiter, ("other", key), 1)));
    assert!((0..100).all(|key| limiter.peek(("victim", key), 1).now().outcomes()[0].remaining() == 1));
}
