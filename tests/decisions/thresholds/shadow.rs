//! Limits in shadow mode.

use support::calls::{Calls, Outcomes};
use support::store_fixture::{StoreFixture, on_both_stores};
use support::time::DAY;
use tower_ratelimit::{FixedWindow, LeakyBucketQueue, Limit, SlidingLog, TokenBucket, Verdict, key};

use crate::thresholds::{app, layer, left, send};

on_both_stores!(
    a_shadow_limit_denies_nothing_and_sends_no_headers,
    enforced_limits_are_charged_all_or_nothing,
    a_queue_in_shadow_mode_delays_nobody,
    all_limits_of_a_layer_can_be_in_shadow_mode,
);

async fn a_shadow_limit_denies_nothing_and_sends_no_headers(fixture: StoreFixture) {
    let shadow = Limit::new("shadow", FixedWindow::new(3, DAY)).shadow();
    let (layer, events) = layer(&fixture, [shadow, Limit::new("all", FixedWindow::new(5, DAY))]);
    let app = app(layer);
    for expected in [(200, 4), (200, 3), (200, 2), (200, 1), (200, 0), (429, 0)] {
        assert_eq!(left(&app, "/", "", "all").await, expected);
    }
    let denied = send(&app, "/", "").await;
    assert_eq!(denied.header("ratelimit-policy"), Some("\"all\";q=5;w=86400"));
    assert!(!denied.header("ratelimit").unwrap().contains("shadow"));
    assert_eq!(events.take(), ["shadow shadow"; 4]);
}

/// Enforced limits are charged all or nothing. If one of them denies, shadow limits are not charged. Otherwise, each
/// shadow limit is charged if it has capacity.
async fn enforced_limits_are_charged_all_or_nothing(fixture: StoreFixture) {
    let limiter = fixture.limiter([
        Limit::new("small", TokenBucket::new(2, 1, DAY)).shadow(),
        Limit::new("enforced", FixedWindow::new(4, DAY)),
        Limit::new("large", SlidingLog::new(5, DAY)).shadow(),
        Limit::new("other", FixedWindow::new(100, DAY)),
    ]);
    let acquire = async |cost| limiter.acquire("key", cost).await.unwrap();
    assert!(acquire(2).await.is_allowed());
    assert_eq!(limiter.left("key").await, [0, 2, 3, 98]);
    let one = acquire(1).await;
    assert!(!one.outcomes()[0].is_enforced());
    assert_eq!((one.is_allowed(), one.verdicts()), (true, vec![false, true, true, true]));
    assert_eq!(limiter.left("key").await, [0, 1, 2, 97]);
    // The large limit has capacity, and is not charged.
    let denied = acquire(2).await;
    assert_eq!((denied.is_allowed(), denied.verdicts()), (false, vec![false, false, true, true]));
    assert_eq!(Verdict::Deny { retry_after: denied.retry_after() }, denied.outcomes()[1].verdict());
    assert_eq!(limiter.left("key").await, [0, 1, 2, 97]);
    // Limits that were not charged are not refunded.
    limiter.refund(one.into_receipt()).await.unwrap();
    assert_eq!(limiter.left("key").await, [0, 2, 3, 98]);
}

async fn a_queue_in_shadow_mode_delays_nobody(fixture: StoreFixture) {
    let limiter = fixture.limiter(Limit::new("queue", LeakyBucketQueue::new(5, 1, DAY)).shadow());
    for _ in 0..3 {
        let decision = limiter.acquire("key", 1).await.unwrap();
        assert!(decision.is_allowed() && decision.delay().is_zero());
    }
    assert_eq!(limiter.left("key").await, [3]);
}

async fn all_limits_of_a_layer_can_be_in_shadow_mode(fixture: StoreFixture) {
    let keyed = Limit::new("keyed", FixedWindow::new(3, DAY)).by(key::header("x-api-key"));
    let (layer, events) = layer(&fixture, [Limit::new("shadow", FixedWindow::new(3, DAY)), keyed]);
    let app = app(layer.shadow());
    // Neither a limit nor a missing key rejects.
    for path in ["/", "/expensive", "/", "/", "/"] {
        let answer = send(&app, path, "").await;
        let headers = ["ratelimit", "ratelimit-policy"].map(|name| answer.header(name));
        assert_eq!((answer.status.as_u16(), headers), (200, [None, None]));
    }
    // 1, not 3, 1, 1, and not 1 more.
    assert_eq!(events.take(), ["shadow shadow"; 2]);
    let limiter = fixture.limiter_builder(Limit::new("free", FixedWindow::new(1, DAY))).shadow().build();
    for _ in 0..3 {
        assert!(limiter.allows("key", 1).await);
    }
}
