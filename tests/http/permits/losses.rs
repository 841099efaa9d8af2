//! Requests without a response, because a handler panics or a client disconnects: their charges stay.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{Request, Response};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{LeakyBucketQueue, Limit, Permit, Stats};

use crate::service::per_day;
use support::answer::ask;
use support::store_fixture::{self, StoreFixture, on_both_stores, user_key, visit};

on_both_stores!(
    the_charge_of_a_handler_that_panics_or_is_dropped_stays,
    the_charge_of_a_service_that_fails_stays,
    a_slot_in_a_queue_is_refunded,
);

/// A limit that refunds each request by its response.
fn hundred() -> Limit {
    per_day("hundred", 100).by(user_key())
}

async fn the_charge_of_a_handler_that_panics_or_is_dropped_stays(fixture: StoreFixture) {
    let limits = fixture.builder([hundred().count_if(|_| false)]).permits().cost(10).build();
    let is_there = Arc::new(Notify::new());
    let arrived = is_there.clone();
    let handler = async move |permit: Permit, Path(more): Path<u64>| {
        assert!(permit.charge(more).await.expect("a decision").is_allowed());
        arrived.notify_one();
        assert_ne!(more, 5, "too much for this handler");
        if more == 6 {
            std::future::pending::<()>().await;
        }
    };
    let app = Router::new().route("/{more}", get(handler)).layer(limits);
    for (path, panics, left) in [("/5", true, 85), ("/6", false, 69), ("/5", true, 54), ("/6", false, 38)] {
        let visit = tokio::spawn(app.clone().oneshot(store_fixture::get(path, "ann")));
        is_there.notified().await;
        if !panics {
            visit.abort();
        }
        assert_eq!(visit.await.expect_err("no response").is_panic(), panics);
        assert_eq!(fixture.remaining(&hundred(), "ann").await, left);
    }
    // Other requests are not affected.
    assert_eq!(visit(&app, "/4", "ann").await.status, 200);
    fixture.wait_for_remaining(&hundred(), "ann", 38).await;
}

async fn the_charge_of_a_service_that_fails_stays(fixture: StoreFixture) {
    let fails = service_fn(async |_| Err::<Response<Body>, _>("it fails"));
    let service = fixture.builder([hundred().count_if(|_| false)]).cost(10).build().layer(fails);
    assert_eq!(service.oneshot(store_fixture::get("/", "ann")).await.map(drop), Err("it fails"));
    assert_eq!(fixture.remaining(&hundred(), "ann").await, 90);
}

async fn a_slot_in_a_queue_is_refunded(fixture: StoreFixture) {
    let queue = Limit::new("queue", LeakyBucketQueue::per_hour(1).waiting(2)).by(user_key());
    let stats = Stats::new();
    let limits = fixture.builder([queue.clone(), hundred()]).permits().recorder(stats.clone()).build();
    let hello = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut service = limits.layer(hello);
    assert_eq!(ask(&service, store_fixture::get("/", "ann")).await.status, 200);
    let before = fixture.remaining(&queue, "ann").await;
    let mut waits = Box::pin(service.call(store_fixture::get("/", "ann")));
    // A request that is dropped before it knows that it is allowed is not refunded.
    while stats.limits()[0].allowed < 2 {
        tokio::select! {
            biased;
            _ = &mut waits => panic!("the request does not wait"),
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
    }
    assert!(fixture.remaining(&queue, "ann").await < before);
    drop(waits);
    fixture.wait_for_remaining(&hundred(), "ann", 99).await;
    fixture.wait_for_remaining(&queue, "ann", before).await;
}
