//! Requests that pass one limiter more than once.

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::get;
use http::StatusCode;
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::RateLimitLayer;

use crate::service::{self, Hello, layer, per_minute, request, visit};
use support::answer::{ask, statuses};

fn of_ten() -> RateLimitLayer {
    layer(per_minute("ten", 10))
}

/// CVE-2026-30972 (Parse Server): the parts of a `/batch` request evaded the limiter. Here each part has the extensions
/// of the whole request, and with them its ledger.
#[tokio::test]
async fn parts_of_a_batched_request_are_not_charged_again() {
    async fn batch(State(parts): State<Router>, whole: Request) -> String {
        let mut allowed = 0;
        for _ in 0..5 {
            let mut part = request("GET /part");
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
    // A part costs 2, and the whole request 1. Three more parts of 2 fit into the limit of 10.
    assert_eq!(visit(&app, "GET /part").await.remaining(), 8);
    assert_eq!(visit(&app, "GET /batch").await.body, "3");
    assert_eq!(ask(&limits.layer(Hello::default()), service::get("/")).await.remaining(), 0);
}

/// A layer that is passed twice charges twice, independently of the costs of other routes.
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

/// Parts that were called in turn and awaited together used the same ledger entry.
#[tokio::test]
async fn concurrent_subrequests_are_not_charged_again() {
    let limits = of_ten();
    let part = limits.cost(2).layer(Hello::default());
    // A service that responds with the number of its 20 parts that were allowed.
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
    // The first part charges the difference of 1, and four more parts of 2 fit.
    assert_eq!(answer.body, "5");
}

/// A denied cost was counted as paid, so the next route was cheaper.
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
    // 1 of 9 tokens is used, and then a cost of 5 is denied.
    let statuses = statuses(&service, vec![service::get("/"); 20]).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1);
}
