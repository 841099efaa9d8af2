//! Denials of a store of another crate that are remembered around it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::store::{Answer, Charge, Charges, KeyHasher, Purpose, Remembering, StoreFuture};
use tower_ratelimit::{
    CalendarWindow, Clock, DecidedBy, FixedWindow, Limit, Limiter, ManualClock, MemoryStore, Penalty, SlidingLog,
    Store, StoreError, Timestamp, TokenBucket, Verdict,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Counts in a map, which the tests clear at the end of windows. It answers by numbers, not by states.
#[derive(Debug)]
struct Map {
    used: Mutex<HashMap<u128, u64>>,
    calls: AtomicUsize,
    /// Whether answers are ready when `decide` returns.
    is_ready: bool,
    /// Whether the second limit is left without an answer.
    leaves_out: AtomicBool,
    clock: ManualClock,
    hasher: KeyHasher,
}

impl Map {
    fn new(is_ready: bool) -> Arc<Self> {
        let (calls, hasher) = (AtomicUsize::new(0), KeyHasher::random());
        let (used, leaves_out, clock) = (Mutex::default(), AtomicBool::new(false), ManualClock::default());
        Arc::new(Self { used, calls, is_ready, leaves_out, clock, hasher })
    }

    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

impl Store for Map {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut used = self.used.lock().unwrap();
        let left = |used: &HashMap<u128, u64>, fingerprint, capacity| capacity - used.get(&fingerprint).unwrap_or(&0);
        let has_room = |charge: &_, used: &_| {
            Charge::cost(charge) <= left(used, charge.fingerprint(), charge.algorithm().capacity())
        };
        let is_allowed = charges.iter().all(|charge| has_room(charge, &used));
        let answered = charges.len() - usize::from(self.leaves_out.load(Ordering::Relaxed));
        for outcome in charges.iter_mut().take(answered) {
            let window = outcome.algorithm().window_at(self.clock.now());
            let verdict = match has_room(outcome, &used) {
                true => Verdict::NOW,
                false => Verdict::Deny { retry_after: Some(window) },
            };
            if is_allowed && purpose == Purpose::Take {
                *used.entry(outcome.fingerprint()).or_default() += outcome.cost();
            }
            let remaining = left(&used, outcome.fingerprint(), outcome.algorithm().capacity());
            outcome.answer(verdict, remaining, Some(window), window);
        }
        let (at, charges) = (self.clock.now(), charges.clone());
        match self.is_ready {
            true => StoreFuture::ready(Ok(Answer::new(at))),
            false => StoreFuture::pending(async move { Ok(Answer::with_charges(at, charges)) }),
        }
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        let mut used = self.used.lock().unwrap();
        charges.iter().for_each(|charge| *used.entry(charge.fingerprint()).or_default() -= charge.cost());
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        let mut used = self.used.lock().unwrap();
        charges.iter().for_each(|charge| _ = used.remove(&charge.fingerprint()));
        StoreFuture::ready(Ok(()))
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.clock.now())
    }
}

fn limiter(map: &Arc<Map>, limits: impl IntoIterator<Item = Limit>) -> Limiter {
    let store = Remembering::new(map.clone()).remember_denials(Duration::from_secs(600));
    Limiter::builder(limits).store(store).deadline(MINUTE).build()
}

async fn is_allowed(limiter: &Limiter) -> Result<bool, StoreError> {
    Ok(limiter.acquire("key", 1).await?.is_allowed())
}

#[tokio::test]
async fn a_flood_of_denied_requests_calls_a_store_of_another_crate_once() {
    for is_ready in [true, false] {
        for limit in [Limit::new("window", FixedWindow::per_minute(3)), Limit::new("log", SlidingLog::per_minute(3))] {
            let map = Map::new(is_ready);
            let limiter = limiter(&map, [limit]);
            for _ in 0..3 {
                assert!(is_allowed(&limiter).await.unwrap());
            }
            assert_eq!(map.calls(), 3);
            for second in 0..60 {
                let decision = limiter.acquire("key", 1).await.unwrap();
                let left = Some(MINUTE - Duration::from_secs(second));
                assert_eq!((decision.is_allowed(), decision.retry_after()), (false, left), "after {second} s");
                assert_eq!(decision.outcomes()[0].more_after(), left);
                assert_eq!(decision.decided_by() == DecidedBy::RememberedDenial, second > 0);
                map.clock.advance(Duration::from_secs(1));
            }
            assert_eq!(map.calls(), 1);
            map.used.lock().unwrap().clear();
            assert!(is_allowed(&limiter).await.unwrap(), "the wait is over");
        }
    }
}

/// Its numbers tell when they change, but not to what.
#[tokio::test]
async fn a_denial_is_repeated_until_the_state_of_another_limit_changes() {
    let map = Map::new(true);
    let short = FixedWindow::new(5, Duration::from_secs(10));
    let limiter = limiter(&map, [Limit::new("short", short), Limit::new("long", FixedWindow::per_minute(2))]);
    let allowed = [is_allowed(&limiter).await, is_allowed(&limiter).await, is_allowed(&limiter).await];
    assert_eq!(allowed.map(Result::unwrap), [true, true, false]);
    map.calls();
    for (seconds, calls) in [(9, 0), (1, 1)] {
        map.clock.advance(Duration::from_secs(seconds));
        assert!(!is_allowed(&limiter).await.unwrap());
        assert_eq!(map.calls(), calls, "after {seconds} s more");
    }
}

#[tokio::test]
async fn a_change_ends_the_denials_of_a_store_of_another_crate() {
    for is_ready in [true, false] {
        let map = Map::new(is_ready);
        let limiter = limiter(&map, [Limit::new("one", FixedWindow::per_minute(1))]);
        let receipt = limiter.acquire("key", 1).await.unwrap().into_receipt();
        assert!(!is_allowed(&limiter).await.unwrap());
        limiter.refund(receipt).await.unwrap();
        assert!(is_allowed(&limiter).await.unwrap(), "after a refund");
        assert!(!is_allowed(&limiter).await.unwrap());
        limiter.reset("key").await.unwrap();
        assert!(is_allowed(&limiter).await.unwrap(), "after a reset");
    }
}

/// An outcome without an answer is no denial.
#[tokio::test]
async fn an_incomplete_answer_is_not_remembered() {
    for is_ready in [true, false] {
        let map = Map::new(is_ready);
        let limits = ["one", "other"].map(|name| Limit::new(name, FixedWindow::per_minute(1)));
        let limiter = limiter(&map, limits);
        map.leaves_out.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(is_allowed(&limiter).await.is_err());
        }
        assert_eq!(map.calls(), 2);
        limiter.reset("key").await.unwrap();
        map.leaves_out.store(false, Ordering::Relaxed);
        assert!(is_allowed(&limiter).await.unwrap());
    }
}

/// Decides each charge by itself, and copies the outcomes.
#[derive(Debug)]
struct OneByOne {
    store: MemoryStore,
    has_clock: bool,
}

impl Store for OneByOne {
    fn hasher(&self) -> KeyHasher {
        self.store.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let mut at = Timestamp::EPOCH;
        for position in 0..charges.len() {
            let mut one = charges.select([position]);
            let Ok(Ok(answer)) = self.store.decide(&mut one, purpose, longest_wait).into_ready() else {
                unreachable!()
            };
            at = answer.finish(&mut one);
            charges[position] = one[0].clone();
        }
        StoreFuture::ready(Ok(Answer::new(at)))
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.store.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.store.reset(charges)
    }

    fn now(&self) -> Option<Timestamp> {
        self.store.now().filter(|_| self.has_clock)
    }
}

#[tokio::test]
async fn a_lockout_stands_around_a_store_that_copies_outcomes() {
    let clock = ManualClock::default();
    let store = OneByOne { store: MemoryStore::new().clock(clock.clone()), has_clock: true };
    let store = Remembering::new(store).remember_denials(10 * MINUTE);
    let limit = Limit::new("codes", TokenBucket::per_second(1)).penalty(Penalty::after(1, MINUTE));
    let limiter = Limiter::builder([limit]).store(store).build();
    assert!(is_allowed(&limiter).await.unwrap());
    clock.advance(Duration::from_millis(200));
    for second in 0..60 {
        let decision = limiter.acquire("key", 1).await.unwrap();
        let left = MINUTE - Duration::from_secs(second);
        assert!(!decision.is_allowed() && decision.is_locked_out(), "after {second} s");
        assert_eq!(decision.retry_after(), Some(left), "after {second} s");
        clock.advance(Duration::from_secs(1));
    }
    assert!(is_allowed(&limiter).await.unwrap(), "the lockout is over");
}

/// A clock that steps, and a wall clock that is ahead of it.
#[derive(Debug)]
struct Behind(ManualClock);

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn wall_time(&self) -> Timestamp {
        self.0.now().saturating_add(60 * MINUTE)
    }
}

#[tokio::test]
async fn a_denial_is_repeated_by_the_clock_of_each_limit() {
    for has_clock in [true, false] {
        let store = OneByOne { store: MemoryStore::new().clock(Behind(ManualClock::default())), has_clock };
        let limits = [
            Limit::new("minute", FixedWindow::per_minute(1)).penalty(Penalty::after(2, MINUTE)),
            Limit::new("daily", CalendarWindow::daily(1_000)),
        ];
        let limiter = Limiter::builder(limits).store(Remembering::new(store)).deadline(MINUTE).build();
        for request in 0..6 {
            let decision = limiter.acquire("key", 1).await.unwrap();
            let expected = (request == 0, request > 1);
            assert_eq!((decision.is_allowed(), decision.is_locked_out()), expected, "{has_clock}, {request}");
        }
    }
}
