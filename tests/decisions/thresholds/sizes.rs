//! Limits with other sizes for some requests.

use support::store_fixture::{StoreFixture, on_both_stores};
use support::time::DAY;
use tower_ratelimit::{FixedWindow, Limit, Limiter, SlidingLog, TokenBucket, key, when};

use crate::thresholds::{app, layer, left, send};

on_both_stores!(
    a_condition_changes_the_size_and_headers_show_it,
    usage_carries_over_to_another_size,
    a_route_is_charged_and_refunded_by_the_size_that_applied,
);

async fn a_condition_changes_the_size_and_headers_show_it(fixture: StoreFixture) {
    let limit = Limit::new("daily", FixedWindow::new(2, DAY))
        .by(key::header("x-plan"))
        .size_when(when::header("x-plan", "pro"), FixedWindow::new(5, DAY))
        .size_by(|head| (head.header("x-plan")? == "log").then(|| SlidingLog::new(1, DAY).into()));
    let (layer, _) = layer(&fixture, [limit, Limit::new("all", FixedWindow::new(100, DAY))]);
    let app = app(layer);
    for (plan, size) in [("free", 2), ("pro", 5), ("log", 1)] {
        for remaining in (0..size).rev() {
            assert_eq!(left(&app, "/", plan, "daily").await, (200, remaining), "{plan}");
        }
        let denied = send(&app, "/", plan).await;
        let policy = format!("\"daily\";q={size};w=86400, \"all\";q=100;w=86400");
        assert_eq!((denied.status.as_u16(), denied.header("ratelimit-policy")), (429, Some(&*policy)));
    }
}

/// After 2 of 2 tokens are used, 3 of 5 remain.
async fn usage_carries_over_to_another_size(fixture: StoreFixture) {
    let pro = when::header("x-plan", "pro");
    let (layer, _) =
        layer(&fixture, Limit::new("daily", SlidingLog::new(2, DAY)).size_when(pro, SlidingLog::new(5, DAY)));
    let app = app(layer);
    for (plan, status, remaining) in [
        ("free", 200, 1),
        ("free", 200, 0),
        ("free", 429, 0),
        ("pro", 200, 2),
        ("free", 429, 0),
        ("pro", 200, 1),
        ("pro", 200, 0),
        ("pro", 429, 0),
        ("free", 429, 0),
    ] {
        assert_eq!(left(&app, "/", plan, "daily").await, (status, remaining), "{plan}");
    }
}

/// A route that costs more is charged by the size that applied, and refunded at its rate.
async fn a_route_is_charged_and_refunded_by_the_size_that_applied(fixture: StoreFixture) {
    let limit = Limit::new("daily", TokenBucket::new(2, 2, DAY))
        .by(key::header("x-plan"))
        .size_when(when::header("x-plan", "pro"), TokenBucket::new(1_000, 1_000, DAY));
    let small = Limit::new("small", FixedWindow::new(4, DAY)).by(key::header("x-plan"));
    let (layer, _) = layer(&fixture, [limit, small]);
    let app = app(layer);
    // `small` has capacity for 1, but not for 3, so the router's second charge of 1 is refunded.
    for (path, status, remaining) in [("/expensive", 200, 997), ("/expensive", 429, 997), ("/", 200, 996)] {
        assert_eq!(left(&app, path, "pro", "daily").await, (status, remaining), "{path}");
    }
}

#[test]
fn a_limiter_without_requests_has_one_size() {
    let pro = when::header("x-plan", "pro");
    let limit = Limit::new("daily", FixedWindow::new(2, DAY)).size_when(pro, FixedWindow::new(5, DAY));
    let error = Limiter::builder(limit).try_build().unwrap_err();
    assert!(error.to_string().contains("takes its size from a request"), "{error}");
}
