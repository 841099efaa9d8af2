//! Tasks whose requests are all rejected without waiting, and the other tasks of their runtime.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::service::per_day;
use axum::body::Body;
use http::{Request, Response};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::RateLimitLayer;

#[tokio::test]
async fn a_task_whose_requests_are_rejected_in_a_loop_yields_to_others() {
    let limits = RateLimitLayer::new([per_day("limit", 1)]);
    let service = ServiceBuilder::new()
        .layer(limits)
        .service(service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) }));
    let had_a_turn = Arc::new(AtomicBool::new(false));
    let seen = had_a_turn.clone();
    let looping = tokio::spawn(async move {
        let mut rejected = 0;
        while rejected < 10_000 && !seen.load(Ordering::Relaxed) {
            let response = service.clone().oneshot(Request::new(Body::empty())).await.expect("a response");
            rejected += u32::from(response.status() == 429);
        }
        rejected
    });
    tokio::spawn(async move { had_a_turn.store(true, Ordering::Relaxed) });
    let rejected = looping.await.expect("a task");
    assert!((2..1_000).contains(&rejected), "{rejected} rejections in a row");
}
