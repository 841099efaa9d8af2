//! Operations that take what is left.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::join_all;
use support::limits::all;
use support::store_fixture::{StoreFixture, on_both_stores};
use tower_ratelimit::{FixedWindow, Limit, Limiter, Penalty, Stats, StoreErrorKind, TokenBucket};

on_both_stores!(
    what_is_left_of_all_limits_is_taken,
    concurrent_operations_use_the_limit_up_exactly,
    attempts_at_a_lower_cost_are_neither_recorded_nor_strikes,
    quotas_shadow_limits_and_overage_count_as_for_other_operations,
);

/// Returns the tokens that were taken, and whether the operation was allowed.
async fn take(limiter: &Limiter, tokens: RangeInclusive<u64>) -> (u64, bool) {
    let (taken, decision) = limiter.acquire_up_to("key", tokens).await.expect("a decision");
    (taken, decision.is_allowed())
}

fn window(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(tokens))
}

async fn what_is_left_of_all_limits_is_taken(fixture: StoreFixture) {
    let bucket = Limit::new("bucket", TokenBucket::new(7, 1, Duration::from_secs(1)));
    let limiter = fixture.limiter([window("window", 10), bucket]);
    assert_eq!(take(&limiter, 1..=4).await, (4, true));
    // Too little is left, so that nothing is taken.
    let (taken, denied) = limiter.acquire_up_to("key", 4..=9).await.expect("a decision");
    assert_eq!((taken, denied.retry_after()), (0, Some(Duration::from_secs(1))));
    assert_eq!(take(&limiter, 3..=9).await, (3, true));
    assert_eq!(take(&limiter, 0..=9).await, (0, true));
    assert_eq!(take(&limiter, 1..=9).await, (0, false));
    fixture.advance(Duration::from_secs(60));
    // The bucket has 7 tokens, and the window has 3.
    let (taken, decision) = limiter.acquire_up_to("key", 1..=u64::MAX).await.expect("a decision");
    assert_eq!(taken, 3);
    let remaining = decision.outcomes().iter().map(|outcome| outcome.remaining());
    assert_eq!(remaining.collect::<Vec<_>>(), [0, 4]);
    limiter.refund(decision.into_receipt()).await.expect("the work is done");
    assert_eq!(take(&limiter, 1..=9).await, (3, true));
}

/// Others take what an operation has found left.
async fn concurrent_operations_use_the_limit_up_exactly(fixture: StoreFixture) {
    for (name, algorithm) in all(1_000, Duration::from_secs(86_400)) {
        let limiter = fixture.limiter([Limit::new(name, algorithm), Limit::new(format!("{name} 2"), algorithm)]);
        let tasks = (0..16_u64).map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut sum = 0;
                loop {
                    let (taken, is_allowed) = take(&limiter, 1..=30 + task).await;
                    assert!(taken <= 30 + task && is_allowed == (taken > 0), "{taken} of {task}");
                    sum += taken;
                    if taken == 0 {
                        return sum;
                    }
                }
            })
        });
        let taken: u64 = join_all(tasks).await.into_iter().map(|sum| sum.expect("no task has panicked")).sum();
        assert_eq!(taken, 1_000, "{name}");
    }
}

async fn attempts_at_a_lower_cost_are_neither_recorded_nor_strikes(fixture: StoreFixture) {
    let hour = Duration::from_secs(3_600);
    let stats = Stats::new();
    let limit = window("window", 10).penalty(Penalty::after(2, hour).locked_out_for(hour));
    let limiter = fixture.limiter_builder([limit]).recorder(stats.clone()).build();
    for (tokens, expected) in [(1..=6, 6), (1..=6, 4), (1..=6, 0)] {
        assert_eq!(take(&limiter, tokens).await.0, expected);
    }
    let counts = &stats.limits()[0];
    assert_eq!((counts.allowed, counts.denied, counts.charged), (2, 1, 10));
    let denied = async || limiter.acquire_up_to("key", 1..=6).await.expect("a decision").1;
    assert!(denied().await.is_locked_out(), "the second denial of the least");
    assert_eq!(stats.limits()[0].denied, 2);
    fixture.advance(24 * hour);
    assert_eq!(take(&limiter, 1..=6).await.0, 6);
}

async fn quotas_shadow_limits_and_overage_count_as_for_other_operations(fixture: StoreFixture) {
    let quotas = [window("own", 5).quota_mode(), window("team", 8).quota_mode(), window("shadow", 2).shadow()];
    let limiter = fixture.limiter(quotas);
    // The team's quota, then the own one.
    for expected in [(8, true), (5, true), (0, false)] {
        assert_eq!(take(&limiter, 1..=9).await, expected);
    }
    let soft = fixture.limiter([window("soft", 10).soft(20)]);
    assert_eq!(take(&soft, 1..=20).await, (12, true));
}

#[tokio::test]
async fn an_empty_range_is_an_error() {
    #[allow(clippy::reversed_empty_ranges, reason = "it is the mistake")]
    let error = Limiter::new([window("window", 10)]).acquire_up_to("key", 5..=4).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    assert!(error.to_string().contains("there is no number of tokens from 5 to 4"), "{error}");
}
