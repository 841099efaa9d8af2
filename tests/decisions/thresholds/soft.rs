//! Soft limits.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, SlidingLog, SlidingWindow, SlidingWindowCounter,
    TokenBucket, Verdict,
};

use crate::thresholds::{Backend, DAY, app, on_each_backend, send};

const PERIOD: Duration = Duration::from_millis(10);

/// Returns a limit of each algorithm, with `tokens` at once and 10 per period.
fn all(tokens: u32) -> [Algorithm; 8] {
    [
        FixedWindow::new(tokens, PERIOD).into(),
        SlidingLog::new(tokens, PERIOD).into(),
        SlidingWindow::new(tokens, PERIOD).into(),
        SlidingWindowCounter::new(tokens, PERIOD).into(),
        TokenBucket::new(tokens, 10, PERIOD).into(),
        TokenBucket::new(tokens, 10, PERIOD).at_intervals().into(),
        LeakyBucket::new(tokens, 10, PERIOD).into(),
        LeakyBucketQueue::new(tokens, 10, PERIOD).into(),
    ]
}

/// By definition, 10 and 25 % of it, rounded down, are 12. Decisions are those of a limit of 12, but the remaining
/// tokens count from 10, and requests that leave less than 2 of 12 use overage.
async fn is_as_defined(backend: &Backend) {
    let steps = if backend.name == "memory" { 3_000 } else { 250 };
    for (index, (ten, twelve)) in all(10).into_iter().zip(all(12)).enumerate() {
        let soft = backend.limiter([Limit::new(format!("soft {index}"), ten).soft(25)]).build();
        let hard = backend.limiter([Limit::new(format!("hard {index}"), twelve)]).build();
        let mut random = 88_172_645_463_325_252_u64;
        let mut below = |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % most
        };
        let (mut flagged, mut denied) = (0, 0);
        for step in 0..steps {
            let span = [0, 0, below(3), below(1_000), below(4_000), below(30_000)][below(6) as usize];
            backend.advance(Duration::from_micros(span));
            let cost = [0, 1, 1, 2, 3, below(15)][below(6) as usize];
            let [is, expected] = [&soft, &hard].map(|limiter| limiter.acquire("key", cost));
            let (is, expected) = (is.await.unwrap(), expected.await.unwrap());
            let context = format!("{} {ten:?} step {step} cost {cost}: {is:?} {expected:?}", backend.name);
            assert_eq!(is.verdict(), expected.verdict(), "{context}");
            let [one, other] = [&is, &expected].map(|decision| &decision.outcomes()[0]);
            assert_eq!(one.remaining(), other.remaining().saturating_sub(2), "{context}");
            assert_eq!(one.reset_after(), other.reset_after(), "{context}");
            let over = is.is_allowed() && cost > 0 && other.remaining() < 2;
            assert_eq!(one.uses_overage(), over, "{context}");
            flagged += usize::from(over);
            denied += usize::from(!is.is_allowed());

            // Returns the shortest wait after which more tokens remain.
            if let Some(more) = one.more_after().filter(|_| step % 5 == 0) {
                backend.advance(more - Duration::from_micros(1));
                assert_eq!(soft.peek("key", 0).await.unwrap().outcomes()[0].remaining(), one.remaining(), "{context}");
                backend.advance(Duration::from_micros(1));
                assert!(soft.peek("key", 0).await.unwrap().outcomes()[0].remaining() > one.remaining(), "{context}");
            }
            // Refunded tokens are unused.
            if step % 7 == 0 {
                for (limiter, decision) in [(&soft, is), (&hard, expected)] {
                    limiter.refund(decision.into_receipt()).await.unwrap();
                }
            }
        }
        assert!(flagged > steps / 50 && denied > steps / 50, "{ten:?}: {flagged} flagged, {denied} denied");
    }
}

#[tokio::test]
async fn every_algorithm_allows_its_overage_as_defined() {
    on_each_backend(is_as_defined).await;
}

#[tokio::test]
async fn clients_and_observers_see_lockouts() {
    on_each_backend(async |backend| {
        let (layer, reported) = backend.layer([
            Limit::new("daily", FixedWindow::new(2, DAY)).soft(100),
            Limit::new("all", FixedWindow::new(100, DAY)),
        ]);
        let exposed: Vec<_> = layer.clone().build().exposed_headers();
        assert!(exposed.iter().any(|name| name == "ratelimit-overage"), "{exposed:?}");
        let app = app(layer);
        for (left, over) in [(1, None), (0, None), (0, Some("\"daily\"")), (0, Some("\"daily\""))] {
            let answer = send(&app, "/", "").await;
            assert_eq!((answer.status.as_u16(), answer.header("ratelimit-overage")), (200, over), "{}", backend.name);
            assert!(answer.header("ratelimit").unwrap().starts_with(&format!("\"daily\";r={left};")));
            assert!(answer.header("ratelimit-policy").unwrap().starts_with("\"daily\";q=2;w=86400"));
        }
        let denied = send(&app, "/", "").await;
        assert_eq!((denied.status.as_u16(), denied.header("ratelimit-overage")), (429, None));
        assert_eq!(*reported.lock().unwrap(), ["over daily 0", "over daily 0"]);
    })
    .await;
}

/// A route whose cost exceeds the limit without overage is charged the difference.
#[tokio::test]
async fn a_route_may_cost_as_much_as_limit_and_overage() {
    on_each_backend(async |backend| {
        let (layer, reported) = backend.layer([Limit::new("daily", FixedWindow::new(2, DAY)).soft(50)]);
        let app = app(layer);
        assert_eq!(send(&app, "/expensive", "").await.status, 200);
        assert_eq!(send(&app, "/", "").await.status, 429);
        assert_eq!(reported.lock().unwrap().len(), 1, "{}", backend.name);
        backend.advance(DAY);
        assert_eq!(send(&app, "/", "").await.status, 200);
        assert_eq!(send(&app, "/expensive", "").await.status, 429);
        assert_eq!(send(&app, "/", "").await.status, 200, "a denied route takes nothing");
    })
    .await;
}

#[test]
fn implausible_settings_are_errors() {
    let limit = || Limit::new("daily", FixedWindow::new(4_000_000_000, DAY));
    let built = |limit| tower_ratelimit::Limiter::builder([limit]).try_build();
    let error = built(limit().soft(0)).unwrap_err().to_string();
    assert_eq!(error, "the limit \"daily\" is soft by 0 %: use at least 1, or leave it hard");
    let error = built(limit().elastic(10, || true)).unwrap_err().to_string();
    assert!(error.starts_with("the limit \"daily\" of 4000000000 and 10 % of that are more than"), "{error}");
    assert!(built(limit().soft(7)).is_ok());
    let none = tower_ratelimit::Limiter::new([Limit::new("few", FixedWindow::new(9, DAY)).soft(10)]);
    let decision = none.acquire("key", 10).into_ready().unwrap().unwrap();
    assert_eq!(decision.verdict(), Verdict::Deny { retry_after: None }, "10 % of 9 are no whole token");
}
