//! Fixed sequences of requests: overrides, denials that a store remembers, and two rates of one limit.

use std::sync::Arc;
use std::time::Duration;

use super::trace::{Pair, Random, START, limiter, new_key};
use crate::algorithm::{Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, TokenBucket};
use crate::error::StoreErrorKind;
use crate::error::validation::DAY;
use crate::limit::Limit;
use crate::store::Store;
use crate::time::{ManualClock, Timestamp};

/// Checks [overrides](crate::LimitHandle#overrides), if the store [supports them](Store::access_override).
///
/// # Panics
///
/// Panics if the store does not conform.
pub async fn check_overrides<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
    let window = |limit| FixedWindow::new(limit, DAY);
    let limits =
        vec![Limit::new("overridable", window(5)).overridable(), Limit::new("beside", TokenBucket::new(50, 1, DAY))];
    let mut pair = Pair::new(new_store, limits).await;
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

/// Checks that a denial that the store [remembers](Store::remembered) applies to no other limit, key or smaller cost.
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
    for is_allowed in [true, false] {
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

const REQUESTS: usize = 500;

/// In µs.
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
    for request in 0..REQUESTS {
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
        "two rates of one limit allow {allowed} of {REQUESTS} requests in turn instead of {possible:?}: {rates:?}, the \
         second with instants {STEP_BACK} µs before those of the first"
    );
}
