//! A conformance suite for implementations of [`Store`] and [`CompareAndSwap`].
//!
//! Needs the feature `conformance`. The suite is not covered by semantic versioning: a new release may check more.
//!
//! Each check compares a store with a [`MemoryStore`](crate::MemoryStore) on the same [`ManualClock`], counts the
//! tokens that concurrent requests get, or drops requests. It panics at the first difference, with the steps that led
//! to it. Call it in a test:
//!
//! ```
//! use tower_ratelimit::{MemoryStore, conformance};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! conformance::check_all(async |clock| MemoryStore::new().clock(clock)).await;
//! # });
//! ```
//!
//! The closure returns a store that decides by `clock`. It is called several times. The stores may share a database,
//! because each check uses keys of its own. A database that expires values by its own clock must keep them for ten
//! minutes longer, because the clock of the checks stands still meanwhile.
//!
//! For a database with [`CompareAndSwap`], call [`check_compare_and_swap`] instead, which also checks the database by
//! itself: within a process, a [`CasStore`] lets requests for the same key take turns, so that
//! the other checks would pass with a database that never compares.

mod compare_and_swap;
mod slots;
mod trace;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use self::trace::{Random, START, SideBySide, limiter, new_key};
use crate::algorithm::{Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, SlidingLog, TokenBucket};
use crate::decision::Decision;
use crate::error::StoreErrorKind;
use crate::error::validation::DAY;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::{CasStore, CompareAndSwap, Store, StoreFuture};
use crate::time::{ManualClock, Timestamp};

/// Runs all checks.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_all<S: Store>(new_store: impl AsyncFn(ManualClock) -> S) {
    check_algorithms(&new_store).await;
    check_several_limits(&new_store).await;
    check_modes(&new_store).await;
    check_penalties(&new_store).await;
    check_overrides(&new_store).await;
    check_rates(&new_store).await;
    check_concurrency(&new_store).await;
    check_cancellation(&new_store).await;
    check_remembered_denials(&new_store).await;
    check_slots(&new_store).await;
}

/// Checks every algorithm: decisions, peeks, previews, refunds, resets, and the time until keys are unused again, with
/// a clock that sometimes steps back and one that never does.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_algorithms<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limit in trace::algorithms() {
        for steps_back in [false, true] {
            trace::compare(new_store, vec![limit.clone()], steps_back).await;
        }
    }
}

/// Checks that several limits are charged together or not at all.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_several_limits<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in trace::combinations() {
        trace::compare(new_store, limits, false).await;
    }
}

/// Checks soft limits, limits in shadow mode, and limits in quota mode.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_modes<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in trace::modes() {
        trace::compare(new_store, limits, false).await;
    }
}

/// Checks [penalties](crate::Penalty).
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_penalties<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    for limits in trace::penalties() {
        trace::compare(new_store, limits, false).await;
    }
}

/// Checks a database with compare-and-swap, and runs [`check_all`] on a [`CasStore`] with it.
///
/// Checks that only one of concurrent writes succeeds, that versions are not used twice, that a value is returned as it
/// was set and with its own version, that an expired value counts as none, and that [`now`](CompareAndSwap::now) is the
/// time in µs and does not go back. It waits until a value has expired: for three seconds, or up to a minute if the
/// shortest TTL of the database is longer.
///
/// [The guide](crate::guide::stores#compare-and-swap) shows a database with its test.
///
/// # Panics
///
/// Panics if the database does not conform.
pub async fn check_compare_and_swap<B: CompareAndSwap>(database: Arc<B>) {
    let start = compare_and_swap::check_clock(&database).await;
    compare_and_swap::check_versions(&database).await;
    compare_and_swap::check_values(&database).await;
    compare_and_swap::check_races(&database).await;
    compare_and_swap::check_appends(&database).await;
    compare_and_swap::check_expiry(&database).await;
    let end = compare_and_swap::check_clock(&database).await;
    assert!(end > start, "`now` advances: it is still {end:?}");
    // The clock of the database advances while that of the checks stands still.
    check_all(async |clock| CasStore::from(database.clone()).clock(clock).ttl_margin(Duration::from_secs(600))).await;
}

const TASKS: usize = 16;
const REQUESTS: usize = 8;

/// Checks that concurrent requests are allowed exactly what the limits allow, and that those that one limit denies
/// charge no other.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_concurrency<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let large = Limit::new("large", FixedWindow::new(60, DAY));
    for small in [
        Limit::new("window", FixedWindow::new(40, DAY)),
        Limit::new("bucket", TokenBucket::new(40, 1, DAY)),
        Limit::new("log", SlidingLog::new(40, DAY)),
    ] {
        for (limits, left) in [(vec![small.clone()], vec![0]), (vec![large.clone(), small], vec![20, 0])] {
            let store = new_store(ManualClock::new(Timestamp::from_micros(START))).await;
            let (limiter, key) = (limiter(limits, store), new_key());
            let allowed = count_allowed(&limiter, key).await;
            assert_eq!(allowed, 40, "allowed of {} concurrent requests: {:?}", TASKS * REQUESTS, limiter.limits());
            assert_eq!(remaining(&limiter, key).await, left, "remaining: {:?}", limiter.limits());
        }
    }
}

/// Returns how many concurrent requests for `key` are allowed.
async fn count_allowed(limiter: &Limiter, key: u64) -> usize {
    let request = |_| {
        let limiter = limiter.clone();
        async move {
            let mut allowed = 0;
            for _ in 0..REQUESTS {
                allowed += usize::from(limiter.acquire(key, 1).await.expect("a decision").is_allowed());
            }
            allowed
        }
    };
    (0..TASKS).map(request).collect::<JoinSet<_>>().join_all().await.into_iter().sum()
}

/// Checks that a request that is dropped charges all its limits or none. A store may refund charges in the background,
/// within five seconds.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_cancellation<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let limits = vec![
        Limit::new("window", FixedWindow::new(10, DAY)),
        Limit::new("bucket", TokenBucket::new(10, 1, DAY)),
        Limit::new("other", FixedWindow::new(10, DAY)),
    ];
    let store = new_store(ManualClock::new(Timestamp::from_micros(START))).await;
    let limiter = limiter(limits, store);
    for polls in 1..=64 {
        let key = new_key();
        let is_ready = drop_after(polls, limiter.acquire(key, 1)).await;
        for waits in 0.. {
            let remaining = remaining(&limiter, key).await;
            if remaining.iter().all(|left| *left == remaining[0]) {
                break;
            }
            let dropped = format!("remaining after a request that was dropped after {polls} polls");
            // Refunds are made in the background.
            assert!(waits < 500, "{dropped}: {remaining:?}");
            sleep(Duration::from_millis(10)).await;
        }
        if is_ready {
            break;
        }
    }
}

/// Polls a request up to `polls` times, then drops it. Returns whether it was ready.
async fn drop_after(polls: u32, mut acquiring: StoreFuture<Decision>) -> bool {
    for _ in 0..polls {
        // The next poll does not wait for a wake-up.
        if Pin::new(&mut acquiring).poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        yield_now().await;
    }
    false
}

async fn remaining(limiter: &Limiter, key: u64) -> Vec<u64> {
    let decision = limiter.peek(key, 0).await.expect("a decision");
    decision.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

/// Checks [overrides](crate::LimitHandle#overrides), if the store [supports them](Store::access_override).
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_overrides<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let window = |limit| FixedWindow::new(limit, DAY);
    let limits =
        vec![Limit::new("overridable", window(5)).overridable(), Limit::new("beside", TokenBucket::new(50, 1, DAY))];
    let mut pair = SideBySide::new(new_store, limits).await;
    let handles =
        pair.limiters.each_ref().map(|limiter| limiter.limit("overridable").expect("the limit is overridable"));
    let (key, other) = (new_key(), new_key());
    let set = async |limit, expires_after| {
        for handle in &handles {
            handle.set_override(key, window(limit), expires_after).await.expect("an override is set");
        }
    };
    let [_, actual] = &handles;
    match actual.get_override(key).await {
        Err(error) if error.kind() == StoreErrorKind::NotSupported => return,
        found => assert_eq!(found.expect("`get` succeeds"), None),
    }
    let get = async |key| actual.get_override(key).await.expect("`get` succeeds");

    let _ = pair.acquire(key, 3).await;
    set(20, None).await;
    pair.note("override 20");
    let _ = pair.acquire(key, 10).await;
    let _ = pair.acquire(key, 8).await;
    let _ = pair.acquire(other, 6).await;
    assert_eq!(get(key).await.map(|found| found.algorithm), Some(window(20).into()));
    assert_eq!(get(other).await, None);

    set(2, Some(Duration::from_secs(60))).await;
    pair.note("override 2 for a minute");
    pair.peek(key, 1).await;
    assert_eq!(get(key).await.expect("an override").expires_after, Some(Duration::from_secs(60)));
    for seconds in [60, 61] {
        pair.set_clock(START + seconds * 1_000_000);
        assert_eq!(get(key).await, None, "an override has expired");
    }
    let _ = pair.acquire(key, 1).await;

    set(100, None).await;
    for handle in &handles {
        handle.remove_override(key).await.expect("an override is removed");
    }
    pair.note("override removed");
    pair.peek(key, 1).await;
    assert_eq!(get(key).await, None, "an override was removed");
}

/// Checks slots of [concurrency limits](crate::Concurrency): that they are taken, [renewed](Store::renew), refunded and
/// expire, if the store keeps them elsewhere and supports them.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_slots<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    slots::compare(new_store).await;
}

/// Checks that a denial that the store [remembers](Store::decide_at_once) applies to no other limit, key or smaller cost.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_remembered_denials<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let store = Arc::new(new_store(ManualClock::new(Timestamp::from_micros(START))).await);
    let small = Limit::new("small", TokenBucket::new(5, 1, DAY));
    let large = Limit::new("large", TokenBucket::new(50, 1, DAY));
    let [both, large] = [vec![small, large.clone()], vec![large]].map(|limits| limiter(limits, store.clone()));
    let (key, other) = (new_key(), new_key());
    // The last one repeats a denial.
    for is_allowed in [true, false, false] {
        let decision = both.acquire(key, 3).await.expect("a decision");
        assert_eq!(decision.is_allowed(), is_allowed, "a request for 3 of 5 tokens");
    }
    let requests =
        [("another limit", &large, key, 3), ("another key", &both, other, 3), ("a smaller cost", &both, key, 2)];
    for (difference, limiter, key, cost) in requests {
        // An explanation asks the store for a remembered denial first.
        let explanation = limiter.explain(key, cost).await;
        assert!(explanation.is_allowed(), "a denial is remembered for {difference}: {explanation}");
        let decision = limiter.acquire(key, cost).await.expect("a decision");
        assert!(decision.is_allowed(), "a denial is repeated for {difference}: {decision:?}");
    }
}

/// The number of requests that two rates decide in turn.
const REQUESTS_IN_TURN: usize = 500;

/// The interval of both rates, in µs.
const INTERVAL: u64 = 10_000;

/// The capacity and the amount of the slower and of the faster limit.
const SIZES: [(u32, u32); 2] = [(50, 1), (100, 10)];

/// The time by which the clock of one limit is behind that of the other, in µs.
const STEP_BACK: u64 = 5_000;

/// Checks that two rates of one limit that decide side by side admit at most what the larger capacity and the faster
/// rate allow, although instants step back.
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_rates<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let interval = Duration::from_micros(INTERVAL);
    let algorithms = SIZES.map(|(capacity, amount)| -> [Algorithm; 4] {
        [
            TokenBucket::new(capacity, amount, interval).into(),
            TokenBucket::new(capacity, amount, interval).at_intervals().into(),
            LeakyBucket::new(capacity, amount, interval).into(),
            LeakyBucketQueue::new(capacity, amount, interval).into(),
        ]
    });
    for (slower, faster) in algorithms[0].into_iter().zip(algorithms[1]) {
        for rates in [[slower, faster], [faster, slower]] {
            check_side_by_side(new_store, rates).await;
        }
    }
}

/// Checks two rates that decide in turn, the second one at instants before those of the first.
async fn check_side_by_side<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S, rates: [Algorithm; 2]) {
    let clock = ManualClock::default();
    let store = Arc::new(new_store(clock.clone()).await);
    let limiters = rates.map(|rate| limiter(vec![Limit::new("rate", rate)], store.clone()));
    let (mut random, key) = (Random::new(START), new_key());
    let (mut latest, mut allowed) = (START + STEP_BACK, 0);
    for request in 0..REQUESTS_IN_TURN {
        latest += random.below(200);
        let turn = request % 2;
        clock.set(Timestamp::from_micros(latest - turn as u64 * STEP_BACK));
        allowed += u64::from(limiters[turn].acquire(key, 1).await.expect("a decision").is_allowed());
    }
    // Usage is kept in tokens, so the faster limit is not used up before its capacity. A queue admits one token more,
    // but its last interval is not over.
    let intervals = (latest - START).div_ceil(INTERVAL);
    let [_, (capacity, amount)] = SIZES.map(|(capacity, amount)| (u64::from(capacity), u64::from(amount)));
    let possible = capacity..=capacity + amount * intervals;
    assert!(
        possible.contains(&allowed),
        "two rates of one limit allow {allowed} of {REQUESTS_IN_TURN} requests in turn instead of {possible:?}: \
         {rates:?}, the second with instants {STEP_BACK} µs before those of the first"
    );
}
