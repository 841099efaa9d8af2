//! Requests that meet one limiter more than once.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::routing::get;
use http::StatusCode;
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};

use crate::service::{self, Hello};
use crate::store::still;
use support::answer::ask;

fn of_ten() -> RateLimitLayer {
    RateLimitLayer::builder([Limit::new("ten", FixedWindow::per_minute(10))]).store(still()).build()
}

/// CVE-2026-30972 (Parse Server): what `/batch` asked for in turn passed the limiter unseen. Here
/// each part carries the extensions of the whole, and with them the note of what that was charged.
#[tokio::test]
async fn parts_of_a_batched_request_are_not_charged_again() {
    async fn batch(State(parts): State<Router>, whole: Request) -> String {
        let mut allowed = 0;
        for _ in 0..5 {
            let mut part = Request::get("/part").body(Body::empty()).expect("it is a request");
            *part.extensions_mut() = whole.extensions().clone();
            let answer = parts.clone().oneshot(part).await.expect("it never fails");
            allowed += u32::from(answer.status() == StatusCode::OK);
        }
        allowed.to_string()
    }
    let limits = of_ten();
    let parts = || Router::new().route("/part", get(async || "part").route_layer(limits.cost(2)));
    let within = parts().layer(limits.clone());
    let app = parts().route("/batch", get(batch).with_state(within)).layer(limits.clone());
    // Of 10, a part of its own takes 2 and the whole 1, so that three parts of 2 have room.
    let visit = async |path| ask(&app, Request::get(path).body(Body::empty()).expect("it is a request")).await;
    assert_eq!(visit("/part").await.remaining(), 8);
    assert_eq!(visit("/batch").await.body, "3");
    assert_eq!(ask(&limits.layer(Hello::default()), service::get("/")).await.remaining(), 0);
}

/// A limiter that is passed twice charges twice, whatever other routes cost.
#[tokio::test]
async fn a_request_that_passes_a_layer_twice_is_charged_twice() {
    for has_a_route_of_its_own_cost in [false, true] {
        let limits = of_ten();
        if has_a_route_of_its_own_cost {
            let _elsewhere = limits.cost(5).layer(Hello::default());
        }
        let twice = limits.layer(limits.layer(Hello::default()));
        ask(&twice, service::get("/")).await;
        let left = ask(&limits.layer(Hello::default()), service::get("/")).await.remaining();
        assert_eq!(left, 7, "{has_a_route_of_its_own_cost}");
    }
}

/// Called one after the other and awaited together, parts found the same note unused.
#[tokio::test]
async fn concurrent_subrequests_are_not_charged_again() {
    let limits = of_ten();
    let part = limits.cost(2).layer(Hello::default());
    // Answers how many of 20 parts of it have passed.
    let batch = tower::service_fn(move |whole: http::Request<()>| {
        let mut part = part.clone();
        async move {
            let mut parts = Vec::new();
            for _ in 0..20 {
                let mut request = service::get("/");
                *request.extensions_mut() = whole.extensions().clone();
                parts.push(part.call(request));
            }
            let mut allowed = 0;
            for part in parts {
                allowed += u32::from(part.await?.status() == StatusCode::OK);
            }
            Ok::<_, std::convert::Infallible>(http::Response::new(allowed.to_string()))
        }
    });
    let answer = ask(&limits.layer(batch), service::get("/")).await;
    // The first charges the difference of 1, and four more of 2 fit.
    assert_eq!(answer.body, "5");
}

/// What was denied on the way was counted as paid: the next route was the cheaper for it.
#[tokio::test]
async fn a_request_denied_by_one_route_cost_is_not_free_for_another() {
    let limits = of_ten();
    let [dear, cheap] = [limits.cost(9), limits.cost(5)].map(|route| route.layer(Hello::default()));
    let fallback = tower::service_fn(move |request: http::Request<()>| {
        let [dear, cheap] = [dear.clone(), cheap.clone()];
        async move {
            let mut first = service::get("/");
            *first.extensions_mut() = request.extensions().clone();
            let answer = dear.oneshot(first).await?;
            if answer.status() == StatusCode::OK {
                Ok::<_, std::convert::Infallible>(answer)
            } else {
                cheap.oneshot(request).await
            }
        }
    });
    let service = limits.layer(fallback);
    let mut allowed = 0;
    for _ in 0..20 {
        allowed += u32::from(ask(&service, service::get("/")).await.status == StatusCode::OK);
    }
    // One of 9; after that there is never room for 5.
    assert_eq!(allowed, 1);
}
