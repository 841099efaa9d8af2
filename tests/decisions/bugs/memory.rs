//! Bugs with stored state and its lifetime.

use std::sync::{Arc, Weak};
use std::time::Duration;

use support::calls::{Now, Outcomes};
use support::rule::Rule;
use tower_ratelimit::{CalendarWindow, Clock, FixedWindow, Limit, Limiter, MemoryStore, SlidingLog, Timestamp};

use super::{MIDNIGHT, SECOND, allowed_of, tokens};
use crate::rule::one_of_each;
use crate::subject::{Memory, Subject};

/// More keys than a test uses.
const MANY: usize = 1_000_000;

/// Sends enough requests of another key for a sweep of the whole store.
fn send_other_requests(subject: &Subject, at: u64) {
    subject.set(at);
    for _ in 0..500 {
        let _ = subject.acquire_as("another key", &[1]);
    }
}

/// PostHog#89726: the count of the previous window expired while it still counted.
#[test]
fn lifetime_shorter_than_the_look_back() {
    let subject =
        Subject::new(&[Rule::Counter { limit: 10, period: SECOND, rounding: Default::default(), weight: 100 }]);
    assert_eq!(allowed_of(20, &subject, MIDNIGHT + SECOND - 1), 10);
    for (at, capacity) in [(SECOND, 0), (SECOND + SECOND / 2, 5), (2 * SECOND - 1, 4)] {
        send_other_requests(&subject, MIDNIGHT + at);
        assert_eq!(allowed_of(20, &subject, MIDNIGHT + at), capacity, "{at} µs later");
    }
}

/// axum-limit `redis.rs:76`, tokio-rate-limit `token_bucket.rs:422`: a bucket that takes longer than two periods to
/// refill expired, and was full at once.
#[test]
fn lifetime_shorter_than_the_refill() {
    let subject = Subject::new(&[tokens(1_000, 1, SECOND)]);
    assert!(subject.set(MIDNIGHT).acquire(1_000).is_allowed());
    for after in [2, 10, 500] {
        send_other_requests(&subject, MIDNIGHT + after * SECOND);
        assert_eq!(subject.remaining(), after);
    }
}

/// aspnetcore-redis#157, limitador with moka: keys were evicted while they still counted, which lifted their limit.
#[test]
fn live_keys_are_forgotten() {
    for rule in one_of_each(10) {
        let subject = Subject::new(&[rule]);
        let _ = subject.set(MIDNIGHT).acquire(6);
        let reset = subject.levels()[0].reset_after as u64;
        send_other_requests(&subject, MIDNIGHT + reset - 1);
        assert_eq!(subject.levels()[0].reset_after, 1, "{rule:?}");
    }
}

/// throttled `memory.rs:9` and its SQL stores: entries were never removed, and a denial left a row.
#[test]
fn requests_that_charge_nothing_leave_no_entry() {
    let store = Memory::new(MANY);
    let limits = [Limit::new("window", FixedWindow::per_day(5)), Limit::new("log", SlidingLog::per_day(3))];
    let limiter = store.limiter(limits);
    for key in 0..100_u32 {
        // Denied by both limits, denied by one of them, and allowed without a cost.
        assert_eq!([6, 4, 0].map(|cost| limiter.acquire(key, cost).now().is_allowed()), [false, false, true]);
        let _ = limiter.peek(key, 1).now();
        limiter.refund(limiter.acquire(key, 1).now().into_receipt()).now();
    }
    assert_eq!(store.keys(), 0);
}

/// Kong advanced before 3.11, which truncates keys to 256 characters: long keys used up memory.
#[test]
fn long_keys_take_more() {
    let bytes = |key: &str| {
        let store = Memory::new(MANY);
        let _ = store.limiter(Limit::new("window", FixedWindow::per_day(5))).acquire(key, 1).now();
        store.store.bytes()
    };
    assert_eq!(bytes(&"x".repeat(64_000)), bytes("x"));
    // The keys differ in their last character.
    let limiter = Limiter::new(Limit::new("window", FixedWindow::per_day(1)));
    assert!(["a", "b"].into_iter().all(|last| limiter.acquire("x".repeat(64_000) + last, 1).now().is_allowed()));
}

/// aspnetcore#66434, #69259: limiters with their timers and tasks outlived the application.
#[tokio::test(start_paused = true)]
async fn background_task_keeps_a_dropped_limiter_alive() {
    #[derive(Debug)]
    struct Watched(#[allow(dead_code)] Arc<()>);
    impl Clock for Watched {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(MIDNIGHT)
        }
    }
    let alive = Arc::new(());
    let watch: Weak<()> = Arc::downgrade(&alive);
    let store = MemoryStore::new().clock(Watched(alive));
    let limiter = Limiter::builder(Limit::new("window", FixedWindow::per_day(5))).store(store).build();
    let clone = limiter.clone();
    let _ = clone.wait("key", 1).await.unwrap();
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "a task in the background");
    drop((limiter, clone));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(watch.upgrade().is_none());
}

/// Only one slot was swept for each request that added entries, so expired entries accumulated up to the maximum.
#[test]
fn sweeping_does_not_keep_up() {
    let store = Memory::new(MANY);
    let limits = ["one", "two", "three"].map(|name| Limit::new(name, FixedWindow::new(1, Duration::from_millis(100))));
    let limiter = store.limiter(limits);
    for key in 0..100_000_u64 {
        store.clock.advance(Duration::from_millis(1));
        let _ = limiter.acquire(key, 1).now();
    }
    // 300 entries are live at a time.
    assert!(store.keys() < 20_000, "{} keys are kept", store.keys());
}

/// Entries were only swept when keys were added, so expired ones stayed otherwise.
#[test]
fn requests_that_add_no_entry_sweep_nothing() {
    let store = Memory::new(MANY);
    let limits = [Limit::new("minute", FixedWindow::per_minute(u32::MAX))];
    let limiter = store.limiter(limits);
    let acquire = |key: u64| drop(limiter.acquire(key, 1).now());
    (0..50_000).for_each(acquire);
    assert_eq!(store.keys(), 50_000);
    store.clock.advance(Duration::from_secs(61));
    // Two slots for each request, as long as sweeps find expired entries.
    (0..50_000).for_each(|_| acquire(0));
    assert!(store.keys() < 10_000, "{} keys are kept", store.keys());
}

/// Only the first shard of a request swept faster after a sweep had found expired entries.
#[test]
fn requests_with_several_keys_sweep_nothing() {
    let store = Memory::new(MANY);
    let limits = ["from", "to"].map(|name| Limit::new(name, FixedWindow::per_minute(u32::MAX)));
    let limiter = store.limiter(limits);
    let acquire = |from: u64, to: u64| drop(limiter.acquire_charges(&[(&from, 1), (&to, 1)]).now());
    (0..25_000).for_each(|key| acquire(key, key));
    assert_eq!(store.keys(), 50_000);
    store.clock.advance(Duration::from_secs(61));
    // Two slots in each of two shards for each request, as long as sweeps find expired entries. Each of the at most 62
    // shards with these keys must find one first.
    (0..30_000).for_each(|request| acquire(request % 31, 1_000 + request % 31));
    assert!(store.keys() < 10_000, "{} keys are kept", store.keys());
}

/// A charge that another limit denied was taken back, but the key kept its rank, so other keys were evicted instead.
#[test]
fn a_denied_request_makes_its_keys_outlive_others() {
    let store = Memory::new(3);
    let [wide, narrow] = [100, 60].map(|limit| Limit::new(limit.to_string(), FixedWindow::per_day(limit)));
    let [both, one] = [vec![wide.clone(), narrow], vec![wide]].map(|limits| store.limiter(limits));
    // Ann uses 50 tokens of the wide limit, and Bob 60.
    for (limiter, key, cost, allowed) in
        [(&both, "ann", 50, true), (&both, "ann", 40, false), (&one, "bob", 60, true), (&one, "cleo", 1, true)]
    {
        assert_eq!(limiter.acquire(key, cost).now().is_allowed(), allowed, "{key}, {cost}");
    }
    assert_eq!(["ann", "bob", "cleo"].map(|key| one.peek(key, 0).now().remaining()), [[100], [40], [99]]);
}

/// Calendar windows follow the wall clock, by which keys of other limits seemed to have expired.
#[test]
fn a_wall_clock_that_is_ahead_evicts_no_denied_key() {
    #[derive(Debug)]
    struct Ahead;
    impl Clock for Ahead {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(MIDNIGHT)
        }

        fn wall_time(&self) -> Timestamp {
            Timestamp::from_micros(MIDNIGHT + 2 * 86_400 * SECOND)
        }
    }
    let store = Arc::new(MemoryStore::new().max_keys(16).clock(Ahead));
    let limiter = |limit: Limit| Limiter::builder(limit).store(store.clone()).build();
    let denied = limiter(Limit::new("window", FixedWindow::per_day(1)));
    let calendar = limiter(Limit::new("calendar", CalendarWindow::daily(9)));
    let is_allowed = |limiter: &Limiter, key: u64| limiter.acquire(key, 1).now().is_allowed();
    assert!((0..4).all(|key| is_allowed(&denied, key) && !is_allowed(&denied, key)));
    assert!((0..1_000).all(|key| is_allowed(&calendar, key)));
    assert!(!(0..4).any(|key| is_allowed(&denied, key)));
}

/// A key whose charge was refunded is evicted before those that use more.
#[test]
fn a_refunded_charge_keeps_no_key_in_a_full_store() {
    let store = Memory::new(2);
    let limiter = store.limiter(Limit::new("day", FixedWindow::per_day(10)));
    let acquire = |key, cost| limiter.acquire(key, cost).now();
    assert!(acquire("ann", 1).is_allowed());
    let charged = acquire("ann", 8);
    assert!(acquire("bob", 5).is_allowed());
    limiter.refund(charged.into_receipt()).now();
    assert!(acquire("cleo", 1).is_allowed());
    assert_eq!(["ann", "bob", "cleo"].map(|key| limiter.peek(key, 0).now().remaining()), [[10], [5], [9]]);
}

/// A key stayed in the store after requests over the capacity or peeks, and exhausted keys were evicted instead.
#[test]
fn keys_that_are_not_exhausted_do_not_evict_an_exhausted_one() {
    for pins_by_peeking in [false, true] {
        let store = Memory::new(1_000);
        let limiter = store.limiter(Limit::new("day", FixedWindow::per_day(10)));
        let acquire = |key: u64, cost| limiter.acquire(key, cost).now();
        assert!(acquire(0, 10).is_allowed());
        assert!(!acquire(0, 1).is_allowed());
        for key in 1..3_000 {
            let _ = acquire(key, 1);
            if pins_by_peeking {
                let _ = limiter.peek(key, 10).now();
            } else {
                let _ = acquire(key, 11);
            }
        }
        assert!(!acquire(0, 1).is_allowed(), "{pins_by_peeking}");
    }
}

/// The second limit of a request evicted the entry of the first.
#[test]
fn a_request_does_not_evict_its_own_keys() {
    let limits = [Limit::new("one", FixedWindow::per_day(10)), Limit::new("two", FixedWindow::per_day(10))];
    let limiter = Limiter::builder(limits).store(MemoryStore::new().max_keys(1)).build();
    let allowed = (0..100).filter(|_| limiter.acquire("key", 1).now().is_allowed()).count();
    assert_eq!(allowed, 10);
}

/// In a full store, a request that charges nothing evicted a key: one with a cost of 0, or over the capacity.
#[test]
fn free_and_denied_requests_evict_nothing() {
    let store = Memory::new(100);
    let limiter = store.limiter(Limit::new("day", FixedWindow::per_day(10)));
    let acquire = |key: u64, cost| limiter.acquire(key, cost).now();
    for key in 0..100 {
        assert!(acquire(key, 5).is_allowed());
    }
    for key in 100..1_000 {
        let _ = acquire(key, 0);
        let _ = acquire(key, 11);
    }
    assert_eq!(store.keys(), 100);
    assert!((0..100).all(|key| acquire(key, 0).outcomes()[0].remaining() == 5));
}

/// Evictions were always at the same end of the table, so entries accumulated at the other end.
#[test]
fn memory_stays_bounded_while_every_key_is_denied() {
    const KEYS: u64 = 20_000;
    let store = Memory::new(KEYS as usize);
    let limiter = store.limiter(Limit::new("day", FixedWindow::per_day(1)));
    let mut bytes = Vec::new();
    for round in 0..21 {
        for key in round * KEYS..(round + 1) * KEYS {
            for allowed in [true, false] {
                let decision = limiter.acquire(key, 1).now();
                assert_eq!(decision.is_allowed(), allowed);
            }
        }
        bytes.push(store.store.bytes());
    }
    assert!(bytes[20] <= bytes[0] + bytes[0] / 10, "bytes after each round: {bytes:?}");
}

/// A request evicted one entry for each new key, but also its own known keys, which it then added again.
#[test]
fn a_request_of_many_limits_never_exceeds_max_keys() {
    for (max_keys, limits) in (1..8).flat_map(|max_keys| (1..8).map(move |limits| (max_keys, limits))) {
        let store = Memory::new(max_keys);
        let limits: Vec<Limit> =
            (0..limits).map(|limit: u32| Limit::new(limit.to_string(), FixedWindow::per_day(20 + limit))).collect();
        let limiters: Vec<Limiter> = (1..=limits.len()).map(|few| store.limiter(limits[..few].to_vec())).collect();
        for request in 0..300_usize {
            let limiter = &limiters[request * 7 % limiters.len()];
            let _ = limiter.acquire((request % 5) as u64, 1 + request as u64 % 3).now();
            assert!(store.keys() <= max_keys, "{} keys of {max_keys}", store.keys());
        }
    }
}
