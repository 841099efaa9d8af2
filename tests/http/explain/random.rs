//! Random limits and requests: explanations agree with the decisions that follow, and change nothing.

use support::cases;
use support::explained::{Checked, Choices, Stores, check_layer, check_limiter};
use tower_ratelimit::{ManualClock, MemoryStore};

/// The number of requests of each case.
const REQUESTS: usize = 25;
const CHOICES: Choices = Choices { queues: true };

fn stores() -> Stores<std::sync::Arc<MemoryStore>> {
    let clock = ManualClock::default();
    let store = || std::sync::Arc::new(MemoryStore::new().clock(clock.clone()));
    Stores { explained: store(), control: store(), clock: clock.clone() }
}

#[tokio::test(start_paused = true)]
async fn explanations_of_requests_agree_with_the_decisions_that_follow() {
    let mut checked = Checked::default();
    for seed in 0..u64::from(cases(400).cases) {
        check_layer(seed, REQUESTS, CHOICES, stores(), &mut checked).await;
    }
    let Checked { allowed, delayed, denied, unlimited, exempt, listed, missing, .. } = checked;
    let Checked { not_enforced, overage, locked_out, overrides, .. } = checked;
    let conclusions = [allowed, delayed, denied, unlimited, exempt, listed, missing];
    let special = [not_enforced, overage, locked_out, overrides];
    assert!(conclusions.iter().chain(&special).all(|count| *count > 20), "hardly checked: {conclusions:?} {special:?}");
    assert!(conclusions.iter().sum::<usize>() >= 10_000);
}

#[tokio::test(start_paused = true)]
async fn explanations_of_keys_agree_with_the_decisions_that_follow() {
    let mut checked = Checked::default();
    for seed in 0..u64::from(cases(400).cases) {
        check_limiter(seed, REQUESTS, CHOICES, stores(), &mut checked).await;
    }
    let counts = [checked.allowed, checked.delayed, checked.denied, checked.overage, checked.locked_out];
    assert!(counts.iter().all(|count| *count > 20), "some conclusions were hardly checked: {counts:?}");
}
