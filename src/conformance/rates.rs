//! Two rates of one limit, which decide side by side.

use std::sync::Arc;
use std::time::Duration;

use super::random::{Random, new_key};
use super::trace::{START, limiter};
use crate::algorithm::{Algorithm, LeakyBucket, LeakyBucketQueue, TokenBucket};
use crate::limit::Limit;
use crate::store::Store;
use crate::time::{ManualClock, Timestamp};

const REQUESTS: usize = 500;

/// In µs.
const INTERVAL: u64 = 10_000;

/// The capacity and the amount of the slower and of the faster limit.
const SIZES: [(u32, u32); 2] = [(50, 1), (100, 10)];

/// The time by which the clock of one limit is behind that of the other, in µs.
const STEP_BACK: u64 = 5_000;

/// Checks both rates, each with a clock that is behind that of the other.
pub(super) async fn check<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S) {
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
    // Usage is kept in tokens, so the faster limit is not used up before its capacity. A queue admits one token more, but
    // its last interval is not over.
    let intervals = (latest - START).div_ceil(INTERVAL);
    let [_, (capacity, amount)] = SIZES.map(|(capacity, amount)| (u64::from(capacity), u64::from(amount)));
    let possible = capacity..=capacity + amount * intervals;
    assert!(
        possible.contains(&allowed),
        "two rates of one limit allow {allowed} of {REQUESTS} requests in turn instead of {possible:?}: {rates:?}, the \
         second with instants {STEP_BACK} µs before those of the first"
    );
}
