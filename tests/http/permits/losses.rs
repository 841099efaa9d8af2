//! Handlers that panic, clients that hang up: what was charged stays.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{FixedWindow, LeakyBucketQueue, Limit, Permit};

use support::answer::ask;
use support::shop::{self, Shop, on_both, user_key, visit};

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
    let limits = shop.limits([hundred().count_if(|_| false)]).permits().cost(10).build();
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
    let limits = shop.limits([hundred().count_if(|_| false)]).permits().cost(10).build();
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
    let fails = service_fn(async |_| Err::<Response<Body>, _>("it fails"));
    let service = shop.limits([hundred().count_if(|_| false)]).cost(10).build().layer(fails);
    assert_eq!(service.oneshot(shop::get("/", "ann")).await.map(drop), Err("it fails"));
    assert_eq!(shop.left(&hundred(), "ann").await, 90);
}

/// Who waits for its turn and is given up has not begun.
async fn a_place_in_a_queue_is_given_back(shop: Shop) {
    let queue = Limit::new("queue", LeakyBucketQueue::per_hour(1).waiting(2)).by(user_key());
    let limits = shop.limits([queue.clone(), hundred()]).permits().build();
    let hello = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut service = limits.layer(hello);
    assert_eq!(ask(&service, shop::get("/", "ann")).await.status, StatusCode::OK);
    let before = shop.left(&queue, "ann").await;
    let mut waits = Box::pin(service.call(shop::get("/", "ann")));
    while shop.left(&queue, "ann").await == before {
        tokio::select! {
            biased;
            _ = &mut waits => panic!("it has to wait"),
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
    }
    drop(waits);
    shop.comes_back(&hundred(), "ann", 99).await;
    shop.comes_back(&queue, "ann", before).await;
}
