//! Shares of limits, which one of several nodes allows by itself.

use std::time::Duration;

use support::calls::Calls;
use tokio::time::advance;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, LiveLimits, OnStoreError, Share, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket,
};

use support::faulty_store::{FaultyStore, Mode};
use support::limits::kind;

const MINUTE: Duration = Duration::from_secs(60);

fn sharing(algorithm: Algorithm, share: Share) -> Limiter {
    let limit = Limit::new("limit", algorithm).on_store_error(OnStoreError::DecideLocally(share));
    Limiter::builder([limit]).store(FaultyStore::new(Mode::FailsAtOnce)).build()
}

async fn is_allowed(limiter: &Limiter) -> bool {
    limiter.allows("key", 1).await
}

fn of(tokens: u32) -> [Algorithm; 8] {
    [
        FixedWindow::per_minute(tokens).into(),
        SlidingLog::per_minute(tokens).into(),
        SlidingWindow::per_minute(tokens).into(),
        SlidingWindowCounter::per_minute(tokens).into(),
        TokenBucket::per_minute(tokens).into(),
        TokenBucket::per_minute(tokens).at_intervals().into(),
        LeakyBucket::per_minute(tokens).into(),
        LeakyBucketQueue::per_minute(tokens).waiting(tokens - 1).into(),
    ]
}

/// Returns the number of requests that a limiter allows at once, and then in ten hours with a request each second.
async fn admitted(limiter: &Limiter) -> (u32, u32) {
    let mut at_once = 0;
    while is_allowed(limiter).await {
        at_once += 1;
    }
    let mut later = 0;
    for _ in 0..36_000 {
        advance(Duration::from_secs(1)).await;
        later += u32::from(is_allowed(limiter).await);
    }
    (at_once, later)
}

#[tokio::test(start_paused = true)]
async fn a_share_of_a_queue_has_a_share_of_its_burst() {
    let queue = LeakyBucketQueue::per_minute(20).waiting(20).burst(9);
    let limiter = sharing(queue.into(), Share::one_of(4));
    let (mut allowed, mut at_once) = (0, 0);
    loop {
        let decision = limiter.acquire("key", 1).await.expect("a local decision");
        if !decision.is_allowed() {
            break;
        }
        allowed += 1;
        at_once += u32::from(decision.delay().is_zero());
    }
    // One whose turn it is, a quarter of the burst, and a quarter of those that wait.
    assert_eq!((at_once, allowed), (1 + 2, 1 + 2 + 5));
}

#[tokio::test(start_paused = true)]
async fn a_share_of_each_algorithm() {
    for algorithm in of(22) {
        let (at_once, later) = admitted(&sharing(algorithm, Share::one_of(4))).await;
        let (burst, rate) = match kind(&algorithm).as_str() {
            // 22 − 1 may wait, and one proceeds.
            "a leaky bucket queue" => (21 / 4 + 1, 5.5),
            "a token bucket" | "a token bucket (at intervals)" | "a leaky bucket" => (5, 5.5),
            _ => (5, 5.0),
        };
        assert_eq!(at_once, burst, "{algorithm:?}");
        let expected = rate * 600.0;
        let fewer = match kind(&algorithm).as_str() {
            // An estimate, which assumes evenly distributed requests, and rounds up the usage.
            "a sliding window counter" => expected,
            // The next interval of a full bucket starts with a request, up to a second later.
            "a token bucket (at intervals)" => 40.0,
            _ => 6.0,
        };
        let later = f64::from(later);
        assert!(expected - fewer <= later && later <= expected + 6.0, "{later}, not {expected} of {algorithm:?}");
    }
}

/// At least one, but on average no more than a fourth.
#[tokio::test(start_paused = true)]
async fn shares_of_a_limit_below_the_number_of_nodes_keep_its_rate() {
    for algorithm in of(3) {
        let limiter = sharing(algorithm, Share::one_of(4));
        let (at_once, later) = admitted(&limiter).await;
        let burst = 1 + u32::from(kind(&algorithm) == "a leaky bucket queue");
        assert_eq!(at_once, burst, "{algorithm:?}");
        // 3 per minute, of which one of four nodes has 450 in ten hours. For a window, that is 1 in two minutes.
        assert!((149..=452).contains(&later), "{later} of {algorithm:?}");
    }
}

/// The windows of four nodes never exceed the limit in total, wherever their edges are.
#[tokio::test(start_paused = true)]
async fn shares_never_add_up_to_more_than_the_limit() {
    for nodes in [1, 2, 3, 7, 10] {
        for algorithm in &of(10)[..3] {
            let limiter = sharing(*algorithm, Share::one_of(nodes));
            let mut admitted = 0;
            while is_allowed(&limiter).await {
                admitted += 1;
            }
            assert_eq!(admitted, 10 / nodes, "{algorithm:?} of {nodes}");
            if kind(algorithm) != "a fixed window" {
                advance(MINUTE - MINUTE / 10 - Duration::from_secs(1)).await;
                assert!(!is_allowed(&limiter).await, "{algorithm:?} of {nodes}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_of_the_whole_is_the_limit_itself() {
    for algorithm in of(5) {
        let limiter = sharing(algorithm, Share::whole());
        for _ in 0..algorithm.capacity() {
            assert!(is_allowed(&limiter).await);
        }
        assert!(!is_allowed(&limiter).await, "{algorithm:?}");
    }
}

/// Limits and shares at the ends of their ranges.
#[tokio::test(start_paused = true)]
async fn extremes_are_shared_without_a_panic() {
    let longest = Duration::from_secs(366 * 86_400);
    for tokens in [1, 2, u32::MAX] {
        for period in [Duration::from_micros(1), longest] {
            let algorithms: [Algorithm; 8] = [
                FixedWindow::new(tokens, period).into(),
                SlidingLog::new(tokens, period).into(),
                SlidingWindow::new(tokens, period).into(),
                SlidingWindowCounter::new(tokens, period).into(),
                TokenBucket::new(tokens, tokens, period).into(),
                TokenBucket::new(tokens, tokens, period).at_intervals().into(),
                LeakyBucket::new(tokens, tokens, period).into(),
                LeakyBucketQueue::new(tokens, tokens, period).into(),
            ];
            for algorithm in algorithms {
                for nodes in [1, 2, 3, u32::MAX] {
                    assert!(is_allowed(&sharing(algorithm, Share::one_of(nodes))).await, "{algorithm:?} of {nodes}");
                }
            }
        }
    }
}

/// Returns a limiter whose store fails, and its limits, which can be replaced.
fn live(limit: impl Into<Algorithm>, share: Share) -> (Limiter, LiveLimits) {
    let limits = LiveLimits::new(shared(limit, share));
    (Limiter::live_builder(&limits).store(FaultyStore::new(Mode::FailsAtOnce)).build(), limits)
}

fn shared(limit: impl Into<Algorithm>, share: Share) -> [Limit; 1] {
    [Limit::new("limit", limit).on_store_error(OnStoreError::DecideLocally(share))]
}

/// Returns the number of requests that a limiter allows at once.
async fn admitted_at_once(limiter: &Limiter) -> u64 {
    let mut admitted = 0;
    while is_allowed(limiter).await {
        admitted += 1;
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn a_reload_during_an_outage_keeps_the_local_usage() {
    let share = Share::one_of(4);
    for tokens in [20, 22] {
        for (algorithm, raised) in of(tokens).into_iter().zip(of(24)) {
            let (limiter, limits) = live(algorithm, share);
            let admitted = admitted_at_once(&limiter).await;
            limits.replace(shared(algorithm, share)).unwrap();
            assert!(!is_allowed(&limiter).await, "{algorithm:?} is as it was");
            let (fresh, _) = live(raised, share);
            // 5 of 22 tokens at intervals are refilled more often than 6 of 24.
            let is_kept = algorithm != TokenBucket::per_minute(22).at_intervals().into();
            let expected = admitted_at_once(&fresh).await - if is_kept { admitted } else { 0 };
            limits.replace(shared(raised, share)).unwrap();
            assert_eq!(admitted_at_once(&limiter).await, expected, "{algorithm:?} is raised to 24");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_charge_is_refunded_after_a_reload_that_moves_its_limit() {
    let share = Share::one_of(2);
    let (limiter, limits) = live(FixedWindow::per_minute(10), share);
    let receipt = limiter.acquire("key", 3).await.expect("a decision").into_receipt();
    let first = Limit::new("first", FixedWindow::per_minute(10)).on_store_error(OnStoreError::Allow);
    let [moved] = shared(FixedWindow::per_minute(10), share);
    limits.replace([first, moved]).expect("valid limits");
    limiter.refund(receipt).await.expect("a refund");
    let decision = limiter.acquire("key", 5).await.expect("a decision");
    assert!(decision.is_allowed(), "{decision:?}");
}

/// Half of 1 a minute is 1 in two minutes, and so is half of 2 in two minutes.
#[tokio::test(start_paused = true)]
async fn local_usage_belongs_to_the_period_of_the_limit_and_of_its_share() {
    let share = Share::one_of(2);
    let (limiter, limits) = live(FixedWindow::per_minute(1), share);
    assert_eq!(admitted_at_once(&limiter).await, 1);
    for (another, reason) in [
        (FixedWindow::new(2, 2 * MINUTE), "the limit has another period"),
        (FixedWindow::new(1, 2 * MINUTE), "the share has another period"),
    ] {
        limits.replace(shared(another, share)).unwrap();
        assert_eq!(admitted_at_once(&limiter).await, 1, "{reason}");
    }
    limits.replace(shared(FixedWindow::per_minute(1), share)).unwrap();
    assert!(!is_allowed(&limiter).await, "the first limit is back");
}

/// A share of a soft limit is soft, and a limit in shadow mode denies nothing, not even while the store fails.
#[tokio::test(start_paused = true)]
async fn thresholds_apply_to_shares() {
    let limiter = Limiter::builder([
        Limit::new("soft", FixedWindow::per_minute(20))
            .soft(20)
            .on_store_error(OnStoreError::DecideLocally(Share::one_of(4))),
        Limit::new("shadow", FixedWindow::per_minute(4))
            .shadow()
            .on_store_error(OnStoreError::DecideLocally(Share::one_of(4))),
        Limit::new("rejecting", FixedWindow::per_minute(4)).shadow(),
    ]);
    let limiter = limiter.store(FaultyStore::new(Mode::FailsAtOnce)).build();
    for used in 1..=7 {
        let decision = limiter.acquire("key", 1).await.expect("a decision");
        assert_eq!(decision.is_allowed(), used <= 6, "{used}");
        if used <= 6 {
            let [soft, shadow] = decision.outcomes() else { panic!("{decision:?}") };
            assert_eq!(soft.uses_overage(), used == 6);
            assert_eq!(shadow.verdict().is_allowed(), used == 1);
        }
        if used == 6 {
            // All was charged locally, and is refunded there.
            limiter.refund(decision.into_receipt()).await.expect("a refund");
            assert!(limiter.acquire("key", 1).await.expect("a decision").outcomes()[0].uses_overage());
        }
    }
}
