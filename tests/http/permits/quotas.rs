//! Charges after the first decision, by a handler, a route or a response, where limits have different modes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::Layer;
use tower::util::service_fn;
use tower_ratelimit::{CostTable, HeaderStyle, Limit, Permit, RateLimitLayer, TokenBucket, key};

use super::settle_each;
use crate::service::{Hello, builder, get, per_minute as limit, visit};
use support::answer::{ask, statuses};

fn quota(name: &str, tokens: u32) -> Limit {
    limit(name, tokens).quota_mode()
}

fn layer(limits: impl IntoIterator<Item = Limit>) -> RateLimitLayer {
    builder(limits).permits().build()
}

/// Returns the tokens that limits have left.
async fn left<const N: usize>(limits: &RateLimitLayer, names: [&str; N]) -> [u64; N] {
    let mut left = [0; N];
    for (left, name) in left.iter_mut().zip(names) {
        let state = limits.limit(name).expect("a limit").peek(key::Shared, 0).await.expect("a decision");
        *left = state.outcomes()[0].remaining();
    }
    left
}

/// Returns the statuses of requests to a service behind a route with a cost inside of a layer.
async fn nested(limits: &RateLimitLayer, cost: u64, requests: usize) -> Vec<u16> {
    statuses(&limits.layer(limits.cost(cost).layer(Hello::default())), vec![get("/"); requests]).await
}

/// Sends a request that a handler charges more for, which succeeds.
async fn handled<F: Future<Output = ()> + Send + 'static>(
    limits: &RateLimitLayer,
    handle: impl Fn(Permit) -> F + Clone + Send + Sync + 'static,
) {
    let app: Router = Router::new().route("/", route(handle)).layer(limits.clone());
    assert_eq!(visit(&app, "GET /").await.status, 200);
}

#[tokio::test]
async fn a_quota_that_is_not_charged_has_no_capacity_for_others() {
    let limits = layer([quota("own", 3), quota("team", 100)]);
    let charge = |permit: Permit| async move {
        let own = permit.limit("own").unwrap();
        assert!(!own.charge(50).await.unwrap().is_allowed());
        assert_eq!(own.settle(50).await.unwrap().shortfall, 47);
    };
    handled(&limits, charge).await;
    assert_eq!(left(&limits, ["own", "team"]).await, [0, 99]);
}

/// A request needs one quota with capacity for its cost, whatever its route adds to others.
#[tokio::test]
async fn a_quota_that_was_charged_has_had_capacity_for_the_cost_of_a_route() {
    let quotas = || [limit("requests", 100).cost(1).quota_mode(), quota("tokens", 60)];
    let (one, two) = (layer(quotas()), layer(quotas()));
    let whole = one.costs(CostTable::new().otherwise(50)).layer(Hello::default());
    for _ in 0..3 {
        assert_eq!(ask(&whole, get("/")).await.status, 200);
        assert_eq!(nested(&two, 50, 1).await, [200]);
        let names = ["requests", "tokens"];
        assert_eq!(left(&one, names).await, left(&two, names).await);
    }
}

#[tokio::test]
async fn limits_without_capacity_for_the_cost_of_a_route_are_charged_nothing() {
    for small in [limit("small", 8).shadow(), quota("small", 8)] {
        let limits = layer([quota("large", 100), small]);
        assert_eq!(nested(&limits, 6, 3).await, [200; 3]);
        assert_eq!(left(&limits, ["large", "small"]).await, [82, 2]);
    }
}

#[tokio::test]
async fn a_settlement_charges_what_all_quotas_have_left() {
    let quotas = [quota("own", 3), quota("team", 4)];
    for quotas in [quotas.clone(), [quotas[1].clone(), quotas[0].clone()]] {
        let limits = layer(quotas).cost(3);
        let settle = |permit: Permit| async move { assert_eq!(settle_each(&permit, 6).await, 3) };
        handled(&limits, settle).await;
        assert_eq!(left(&limits, ["own", "team"]).await, [0, 0]);
    }
}

#[tokio::test]
async fn a_response_does_not_charge_a_request_that_its_route_denied() {
    let limits = layer([limit("ten", 10).settle_by(|_| Some(1))]);
    ask(&limits.layer(Hello::default()), get("/")).await;
    assert_eq!(nested(&limits, 10, 3).await, [429; 3]);
    assert_eq!(left(&limits, ["ten"]).await, [9]);
}

#[tokio::test]
async fn a_store_that_answers_at_once_settles_before_the_response_in_a_busy_task() {
    let failures = layer([limit("failures", 1).count_if(|response| response.status == StatusCode::UNAUTHORIZED)]);
    let service = failures.layer(service_fn(async |_: Request<()>| {
        while tokio::task::coop::has_budget_remaining() {
            tokio::task::consume_budget().await;
        }
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    assert_eq!(ask(&service, get("/")).await.remaining(), 1);
}

#[tokio::test]
async fn a_refund_by_the_response_does_not_change_the_headers_of_a_denial() {
    let tokens = Limit::new("tokens", TokenBucket::per_second(1).burst(10)).cost(5);
    let failures = limit("failures", 5).count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let limits = layer([tokens, failures]);
    let app: Router = Router::new()
        .route("/", route(async |permit: Permit| permit.limit("tokens").unwrap().try_charge(6).await.map(drop)))
        .layer(limits.clone());
    let answer = visit(&app, "GET /").await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
    assert!(answer.all("ratelimit")[0].starts_with("\"tokens\";r=5;t=1, "), "{answer:?}");
    assert_eq!(left(&limits, ["failures"]).await, [5]);
}

/// A middleware between the layers may answer in place of the denied route.
#[tokio::test]
async fn a_permit_still_charges_after_the_layer_of_a_route_has_denied() {
    let limits = layer([limit("ten", 10)]);
    ask(&limits.layer(Hello::default()), get("/")).await;
    let route = limits.cost(10).layer(Hello::default());
    let between = service_fn(move |request: Request<()>| {
        let route = route.clone();
        async move {
            let permit = Permit::of(request.extensions()).unwrap();
            assert_eq!(ask(&route, request).await.status, 429);
            assert!(permit.limit("ten").unwrap().charge(5).await.unwrap().is_allowed());
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    assert_eq!(ask(&limits.layer(between), get("/")).await.status, 200);
    assert_eq!(left(&limits, ["ten"]).await, [4]);
}

#[tokio::test]
async fn a_settlement_leaves_quotas_alone_that_the_request_was_not_charged() {
    let quotas = || [quota("own", 3), quota("team", 20)];
    for (settled, team) in [(5, 15), (8, 12), (2, 18), (25, 0)] {
        let settle = move |permit: Permit| async move {
            assert_eq!(settle_each(&permit, settled).await, settled.saturating_sub(20));
        };
        // The same where the router charges both, and the route only one of them.
        for router in [5, 1] {
            let limits = layer(quotas());
            let app: Router = Router::new()
                .route("/", route(settle).route_layer(limits.cost_by(|_| 5)))
                .layer(limits.cost_by(move |_| router));
            assert_eq!(visit(&app, "GET /").await.status, 200);
            assert_eq!(left(&limits, ["own", "team"]).await, [3, team], "{settled} {router}");
        }
    }
    // Not even a permit for one of them alone charges it, unless the others were refunded.
    let limits = layer(quotas()).cost_by(|_| 5);
    let settle = |permit: Permit| async move {
        assert_eq!(permit.limit("own").unwrap().settle(2).await.unwrap().shortfall, 0);
        permit.refund().await.unwrap();
        assert_eq!(permit.limit("own").unwrap().settle(3).await.unwrap().shortfall, 0);
    };
    handled(&limits, settle).await;
    assert_eq!(left(&limits, ["own", "team"]).await, [0, 20]);
}

#[tokio::test]
async fn a_settlement_by_the_response_leaves_quotas_alone_that_the_request_was_not_charged() {
    let settled = |name, tokens| quota(name, tokens).settle_by(|_| Some(5));
    let limits = layer([settled("own", 6), settled("team", 20)]).cost(4);
    for expected in [[1, 15], [1, 10]] {
        assert_eq!(ask(&limits.layer(Hello::default()), get("/")).await.status, 200);
        assert_eq!(left(&limits, ["own", "team"]).await, expected);
    }
}

/// The settlement is lowered to what the other limit has left.
#[tokio::test]
async fn a_settlement_that_another_limit_denies_charges_no_quota_in_part() {
    let limits =
        layer([quota("own", 3), quota("team", 20), limit("hard", 4)].map(|limit| limit.settle_by(|_| Some(6))));
    assert_eq!(ask(&limits.layer(Hello::default()), get("/")).await.status, 200);
    assert_eq!(left(&limits, ["own", "team", "hard"]).await, [2, 14, 0]);
}

/// The request would be allowed as soon as any of the quotas has capacity.
#[tokio::test]
async fn the_wait_for_a_route_includes_quotas_with_a_cost_of_their_own() {
    let tokens = Limit::new("tokens", TokenBucket::new(10, 1, Duration::from_secs(8_000))).quota_mode();
    let fast = Limit::new("requests", TokenBucket::new(1, 1, Duration::from_secs(20))).cost(1).quota_mode();
    let limits = layer([fast, tokens]);
    assert_eq!(ask(&limits.layer(Hello::default()), get("/")).await.status, 200);
    let denied = ask(&limits.layer(limits.cost(10).layer(Hello::default())), get("/")).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("20")));
    assert_eq!(left(&limits, ["tokens"]).await, [9]);
}

#[tokio::test]
async fn an_exhausted_quota_is_not_reported_beside_one_with_capacity() {
    type Act = fn(Permit) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
    let acts: [Act; 4] = [
        |_| Box::pin(async {}),
        |permit| Box::pin(async move { assert!(permit.charge(1).await.unwrap().is_allowed()) }),
        |permit| Box::pin(async move { permit.refund().await.unwrap() }),
        |permit| Box::pin(async move { assert!(permit.limit("team").unwrap().charge(2).await.unwrap().is_allowed()) }),
    ];
    for own in [quota("own", 1), limit("own", 1).cost(1).quota_mode()] {
        for act in acts {
            let limits = layer([own.clone(), quota("team", 20)]);
            ask(&limits.layer(Hello::default()), get("/")).await;
            let app: Router =
                Router::new().route("/", route(act).route_layer(limits.cost_by(|_| 5))).layer(limits.clone());
            let answer = visit(&app, "GET /").await;
            assert_eq!(answer.status, 200);
            assert!(matches!(&answer.standings()[..], [only] if only.name == "team"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn overage_is_reported_after_other_charges() {
    // The request may have used none in the end.
    for (settled, expected) in [
        (None, Some("\"soft\"")),
        (Some(3), Some("\"soft\"")),
        (Some(4), Some("\"soft\"")),
        (Some(0), None),
        (Some(1), None),
        (Some(2), None),
    ] {
        let settle = move |permit: Permit| async move {
            assert!(permit.charge(2).await.unwrap().is_allowed());
            if let Some(settled) = settled {
                permit.limit("soft").unwrap().settle(settled).await.unwrap();
                assert!(permit.charge(1).await.unwrap().is_allowed());
            }
        };
        let limits = builder([limit("soft", 2).soft(100).cost(3), limit("hundred", 100)]);
        let limits = limits.permits().headers(HeaderStyle::Overage).build();
        let app: Router = Router::new().route("/", route(settle).route_layer(limits.cost(4))).layer(limits);
        let answer = visit(&app, "GET /").await;
        assert_eq!((answer.status, answer.header("ratelimit-overage")), (StatusCode::OK, expected), "{settled:?}");
    }
}
