//! Overage that is available while the application has spare capacity.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tokio::sync::Semaphore;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::{FixedWindow, InFlight, Limit, Limiter, RateLimitLayer, SlidingLog, SpareCapacity};

use support::answer::ask;
use support::calls::Now;
use support::store_fixture::{StoreFixture, on_both_stores};
use support::time::DAY;

use crate::thresholds::{app, layer, status};

on_both_stores!(elastic_overage_is_used_only_with_spare_capacity,);

async fn elastic_overage_is_used_only_with_spare_capacity(fixture: StoreFixture) {
    let is_idle = Arc::new(AtomicBool::new(true));
    let signal = is_idle.clone();
    let limit = Limit::new("daily", SlidingLog::new(2, DAY)).elastic(150, move || signal.load(Ordering::Relaxed));
    let (layer, events) = layer(&fixture, limit);
    let app = app(layer);
    // Usage counts on.
    for (idle, expected) in [(true, 200), (true, 200), (true, 200), (false, 429), (true, 200), (true, 200), (true, 429)]
    {
        is_idle.store(idle, Ordering::Relaxed);
        assert_eq!(status(&app, "/").await, expected);
    }
    assert_eq!(events.take(), ["over daily 0"; 3]);
}

#[tokio::test]
async fn requests_in_flight_are_counted_until_they_are_answered_or_given_up() {
    let in_flight = InFlight::below(2);
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let handler = get(async move || held.acquire().await.map(|permit| permit.forget()).map_err(|_| "closed"));
    let limit = Limit::new("daily", FixedWindow::new(1, DAY)).elastic(400, in_flight.clone());
    let layer = RateLimitLayer::new(limit);
    let app: Router = Router::new().route("/", handler).layer(in_flight.clone()).layer(layer);
    let request = || Request::get("/").body(Body::empty()).unwrap();
    let go = || {
        let app = app.clone();
        tokio::spawn(async move { ask(&app, request()).await.status })
    };
    let count = async |expected| {
        while in_flight.count() != expected {
            tokio::task::yield_now().await;
        }
    };
    let [first, second] = [go(), go()];
    count(2).await;
    assert!(!in_flight.is_available());
    assert_eq!(ask(&app, request()).await.status, 429, "two are in flight, and more than one was used");
    second.abort();
    count(1).await;
    let third = go();
    count(2).await;
    gate.add_permits(2);
    assert_eq!((first.await.unwrap(), third.await.unwrap()), (200.try_into().unwrap(), 200.try_into().unwrap()));
    assert_eq!(in_flight.count(), 0);
    // A future that has returned its response may be kept for as long as the body is sent.
    let mut service = in_flight.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(())));
    let mut answered = Box::pin(service.call(Request::new(())));
    assert_eq!(in_flight.count(), 1);
    answered.as_mut().await.unwrap();
    assert_eq!(in_flight.count(), 0, "the future is not dropped yet");
    let entered = in_flight.enter();
    assert_eq!(in_flight.count(), 1);
    drop(entered);
    assert_eq!(in_flight.count(), 0);
}

/// Nothing would ever count a request, so the overage would always be available.
#[test]
fn an_elastic_limit_has_no_overage_until_requests_are_counted() {
    let in_flight = InFlight::below(2);
    let limiter = Limiter::new(Limit::new("daily", FixedWindow::new(2, DAY)).elastic(100, in_flight.clone()));
    let is_allowed = |limiter: &Limiter| limiter.acquire("ann", 1).now().is_allowed();
    assert_eq!([(); 3].map(|()| is_allowed(&limiter)), [true, true, false]);
    assert_eq!(in_flight.count(), 0);
    drop(in_flight.enter());
    assert_eq!([(); 3].map(|()| is_allowed(&limiter)), [true, true, false]);
    let layered = InFlight::below(1);
    assert!(!layered.is_available());
    let _ = layered.layer(());
    assert!(layered.clone().is_available());
}
