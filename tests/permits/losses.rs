//! Handlers that panic, clients that hang up: what was charged stays.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http::StatusCode;
use tokio::sync::Notify;
use tower::ServiceExt;
use tower_ratelimit::{FixedWindow, LeakyBucketQueue, Limit, Permit};

use crate::shop::{self, Shop, on_both, user_key, visit};

on_both!(
    a_handler_that_panics_has_cost_what_was_reserved,
    a_client_that_hangs_up_has_cost_what_was_reserved,
    a_service_that_fails_has_cost_what_was_reserved,
    a_place_in_a_queue_is_given_back,
);

/// Of which nothing ever counts, once there is a response.
fn hundred() -> Limit {
    Limit::new("hundred", FixedWindow::per_day(100)).by(user_key())
}

async fn a_handler_that_panics_has_cost_what_was_reserved(shop: Shop) {
    let limits = shop.limits([hundred().count_if(|_| false)]).permits().cost(10);
    let handler = async |permit: Permit, Path(more): Path<u64>| {
        assert!(permit.charge(more).await.expect("a decision").is_allowed());
        assert!(more < 5, "too much for this handler");
    };
    let app = Router::new().route("/{more}", get(handler)).layer(limits);
    for left in [85, 70, 55] {
        let visit = tokio::spawn(app.clone().oneshot(shop::get("/5", "ann")));
        assert!(visit.await.expect_err("it panics").is_panic());
        assert_eq!(shop.left(&hundred(), "ann").await, left);
    }
    // The others are as they were.
    assert_eq!(visit(&app, "/4", "ann").await.status, StatusCode::OK);
    shop.comes_back(&hundred(), "ann", 55).await;
}

async fn a_client_that_hangs_up_has_cost_what_was_reserved(shop: Shop) {
    let limits = shop.limits([hundred().count_if(|_| false)]).permits().cost(10);
    let is_there = Arc::new(Notify::new());
    let arrived = is_there.clone();
    let handler = async move |permit: Permit, Path(more): Path<u64>| {
        assert!(permit.charge(more).await.expect("a decision").is_allowed());
        arrived.notify_one();
        std::future::pending::<()>().await;
    };
    let app = Router::new().route("/{more}", get(handler)).layer(limits);
    for left in [85, 70, 55] {
        let visit = tokio::spawn(app.clone().oneshot(shop::get("/5", "ann")));
        is_there.notified().await;
        visit.abort();
        assert!(visit.await.expect_err("it is dropped").is_cancelled());
        assert_eq!(shop.left(&hundred(), "ann").await, left);
    }
}

async fn a_service_that_fails_has_cost_what_was_reserved(shop: Shop) {
    use tower::Layer;
    let fails = tower::service_fn(async |_| Err::<http::Response<axum::body::Body>, _>("it fails"));
    let service = shop.limits([hundred().count_if(|_| false)]).cost(10).layer(fails);
    assert_eq!(service.oneshot(shop::get("/", "ann")).await.map(drop), Err("it fails"));
    assert_eq!(shop.left(&hundred(), "ann").await, 90);
}

/// Who waits for its turn and is given up has not begun.
async fn a_place_in_a_queue_is_given_back(shop: Shop) {
    let queue = Limit::new("queue", LeakyBucketQueue::per_hour(1).waiting(2)).by(user_key());
    let limits = shop.limits([queue.clone(), hundred()]).permits();
    let app = Router::new().route("/", get(async |_: Permit| "hello")).layer(limits);
    assert_eq!(visit(&app, "/", "ann").await.status, StatusCode::OK);
    let before = shop.left(&queue, "ann").await;
    let waits = tokio::spawn(app.clone().oneshot(shop::get("/", "ann")));
    while shop.left(&queue, "ann").await == before {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    waits.abort();
    assert!(waits.await.expect_err("it is dropped").is_cancelled());
    for _ in 0..2_000 {
        if shop.left(&hundred(), "ann").await != 99 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!((shop.left(&queue, "ann").await, shop.left(&hundred(), "ann").await), (before, 99));
}
