//! Limits with other sizes for some requests.

use tower_ratelimit::{ConfigError, FixedWindow, Limit, Limiter, SlidingLog, TokenBucket, key, when};

use crate::thresholds::{DAY, app, on_each_backend, send};

#[tokio::test]
async fn a_condition_changes_the_size_and_headers_show_it() {
    on_each_backend(async |backend| {
        let limit = Limit::new("daily", FixedWindow::new(2, DAY))
            .by(key::header("x-plan"))
            .size_when(when::header("x-plan", "pro"), FixedWindow::new(5, DAY))
            .size_by(|head| (head.header("x-plan")? == "log").then(|| SlidingLog::new(1, DAY).into()));
        let (layer, _) = backend.layer([limit, Limit::new("all", FixedWindow::new(100, DAY))]);
        let app = app(layer);
        for (plan, size) in [("free", 2), ("pro", 5), ("log", 1)] {
            for left in (0..size).rev() {
                let answer = send(&app, "/", plan).await;
                assert_eq!(answer.status, 200, "{} {plan}", backend.name);
                assert!(answer.header("ratelimit").unwrap().starts_with(&format!("\"daily\";r={left};")), "{answer:?}");
                let policy = format!("\"daily\";q={size};w=86400, \"all\";q=100;w=86400");
                assert_eq!(answer.header("ratelimit-policy"), Some(&*policy));
            }
            let denied = send(&app, "/", plan).await;
            assert_eq!(denied.status, 429);
            assert!(denied.header("ratelimit-policy").unwrap().starts_with(&format!("\"daily\";q={size}")));
        }
    })
    .await;
}

/// After 2 of 2 tokens are used, 3 of 5 remain.
#[tokio::test]
async fn usage_carries_over_to_another_size() {
    on_each_backend(async |backend| {
        let limit = Limit::new("daily", SlidingLog::new(2, DAY))
            .size_when(when::header("x-plan", "pro"), SlidingLog::new(5, DAY));
        let (layer, _) = backend.layer([limit]);
        let app = app(layer);
        let reported = async |plan| {
            let answer = send(&app, "/", plan).await;
            (answer.status.as_u16(), answer.header("ratelimit").unwrap().split(';').nth(1).unwrap().to_owned())
        };
        for (plan, status, left) in [
            ("free", 200, "r=1"),
            ("free", 200, "r=0"),
            ("free", 429, "r=0"),
            ("pro", 200, "r=2"),
            ("free", 429, "r=0"),
            ("pro", 200, "r=1"),
            ("pro", 200, "r=0"),
            ("pro", 429, "r=0"),
            ("free", 429, "r=0"),
        ] {
            assert_eq!(reported(plan).await, (status, left.to_owned()), "{} {plan}", backend.name);
        }
    })
    .await;
}

/// A route that costs more is charged by the size that applied, and refunded at its rate.
#[tokio::test]
async fn a_route_is_charged_and_refunded_by_the_size_that_applied() {
    on_each_backend(async |backend| {
        let limit = Limit::new("daily", TokenBucket::new(2, 2, DAY))
            .by(key::header("x-plan"))
            .size_when(when::header("x-plan", "pro"), TokenBucket::new(1_000, 1_000, DAY));
        let small = Limit::new("small", FixedWindow::new(4, DAY)).by(key::header("x-plan"));
        let (layer, _) = backend.layer([limit, small]);
        let app = app(layer);
        let left = |answer: &crate::thresholds::Answer| {
            answer.header("ratelimit").unwrap().split(';').nth(1).unwrap().to_owned()
        };
        assert_eq!(left(&send(&app, "/expensive", "pro").await), "r=997", "{}", backend.name);
        // `small` has capacity for 1, but not for 3, so the router's charge of 1 is refunded.
        let denied = send(&app, "/expensive", "pro").await;
        assert_eq!((denied.status.as_u16(), left(&denied)), (429, "r=997".to_owned()), "{}", backend.name);
        assert_eq!(left(&send(&app, "/", "pro").await), "r=996", "{}", backend.name);
    })
    .await;
}

#[test]
fn a_limiter_without_requests_has_one_size() {
    let limit = Limit::new("daily", FixedWindow::new(2, DAY))
        .size_when(when::header("x-plan", "pro"), FixedWindow::new(5, DAY));
    let error: ConfigError = Limiter::builder([limit]).try_build().unwrap_err();
    assert!(error.to_string().contains("takes its size from a request"), "{error}");
}
