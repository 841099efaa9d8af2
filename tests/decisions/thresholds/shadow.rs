//! Limits in shadow mode.

use tower_ratelimit::{FixedWindow, LeakyBucketQueue, Limit, SlidingLog, TokenBucket, key};

use crate::thresholds::{DAY, app, on_each_backend, send};

#[tokio::test]
async fn a_shadow_limit_denies_nothing_and_sends_no_headers() {
    on_each_backend(async |backend| {
        let (layer, reported) = backend.layer([
            Limit::new("tried", FixedWindow::new(3, DAY)).shadow(),
            Limit::new("all", FixedWindow::new(5, DAY)),
        ]);
        let app = app(layer);
        for left in [4, 3, 2, 1, 0] {
            let answer = send(&app, "/", "").await;
            assert_eq!(answer.status, 200, "{}", backend.name);
            assert!(answer.header("ratelimit").unwrap().starts_with(&format!("\"all\";r={left};")));
            assert_eq!(answer.header("ratelimit-policy"), Some("\"all\";q=5;w=86400"));
        }
        let denied = send(&app, "/", "").await;
        assert_eq!(denied.status, 429);
        assert!(!denied.header("ratelimit").unwrap().contains("tried"));
        assert_eq!(*reported.lock().unwrap(), ["shadow tried"; 3]);
    })
    .await;
}

/// Enforced limits are charged all or nothing. If one of them denies, shadow limits are not charged. Otherwise, each
/// shadow limit is charged if it has capacity.
#[tokio::test]
async fn enforced_limits_are_charged_all_or_nothing() {
    on_each_backend(async |backend| {
        let limiter = backend
            .limiter([
                Limit::new("small", TokenBucket::new(2, 1, DAY)).shadow(),
                Limit::new("enforced", FixedWindow::new(4, DAY)),
                Limit::new("large", SlidingLog::new(5, DAY)).shadow(),
                Limit::new("other", FixedWindow::new(100, DAY)),
            ])
            .build();
        let left = async || {
            let outcomes = limiter.peek("key", 0).await.unwrap();
            outcomes.outcomes().iter().map(|outcome| outcome.remaining()).collect::<Vec<_>>()
        };
        let acquire = async |cost| limiter.acquire("key", cost).await.unwrap();
        assert!(acquire(2).await.is_allowed());
        assert_eq!(left().await, [0, 2, 3, 98]);
        let one = acquire(1).await;
        assert!(one.is_allowed() && !one.outcomes()[0].verdict().is_allowed() && !one.outcomes()[0].is_enforced());
        assert_eq!(left().await, [0, 1, 2, 97]);
        let denied = acquire(2).await;
        assert!(!denied.is_allowed());
        assert!(denied.outcomes()[2].verdict().is_allowed(), "it has room, and yet takes nothing");
        assert_eq!(denied.retry_after(), denied.outcomes()[1].verdict_wait());
        assert_eq!(left().await, [0, 1, 2, 97], "{}", backend.name);
        // Limits that were not charged are not refunded.
        limiter.refund(one.into_receipt()).await.unwrap();
        assert_eq!(left().await, [0, 2, 3, 98], "{}", backend.name);
    })
    .await;
}

trait Wait {
    fn verdict_wait(&self) -> Option<std::time::Duration>;
}

impl Wait for tower_ratelimit::Outcome {
    fn verdict_wait(&self) -> Option<std::time::Duration> {
        match self.verdict() {
            tower_ratelimit::Verdict::Deny { retry_after } => retry_after,
            tower_ratelimit::Verdict::Allow { .. } => None,
        }
    }
}

#[tokio::test]
async fn a_queue_in_shadow_mode_delays_nobody() {
    on_each_backend(async |backend| {
        let limiter = backend.limiter([Limit::new("queue", LeakyBucketQueue::new(5, 1, DAY)).shadow()]).build();
        for _ in 0..3 {
            let decision = limiter.acquire("key", 1).await.unwrap();
            assert!(decision.is_allowed() && decision.delay().is_zero(), "{}", backend.name);
        }
        assert_eq!(limiter.peek("key", 0).await.unwrap().outcomes()[0].remaining(), 3);
    })
    .await;
}

#[tokio::test]
async fn all_limits_of_a_layer_can_be_in_shadow_mode() {
    on_each_backend(async |backend| {
        let (layer, reported) = backend.layer([
            Limit::new("tried", FixedWindow::new(3, DAY)),
            Limit::new("keyed", FixedWindow::new(3, DAY)).by(key::header("x-api-key")),
        ]);
        let app = app(layer.shadow());
        for path in ["/", "/expensive", "/", "/", "/"] {
            let answer = send(&app, path, "").await;
            assert_eq!(answer.status, 200, "{}: neither a limit nor a missing key refuses", backend.name);
            assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
        }
        // 1, not 3, 1, 1, and not 1 more.
        assert_eq!(*reported.lock().unwrap(), ["shadow tried"; 2], "{}", backend.name);
        let limiter = backend.limiter([Limit::new("free", FixedWindow::new(1, DAY))]).shadow().build();
        for _ in 0..3 {
            assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
        }
    })
    .await;
}
