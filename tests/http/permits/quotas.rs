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
use tower_ratelimit::{CostTable, FixedWindow, HeaderStyle, Limit, Permit, RateLimitLayer, TokenBucket, key};

use crate::service::{Hello, get};
use crate::store::paused_store;
use support::answer::{Answer, ask};

fn limit(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_minute(tokens))
}

fn layer(limits: impl IntoIterator<Item = Limit>) -> RateLimitLayer {
    RateLimitLayer::builder(limits).store(paused_store()).permits().build()
}

/// Returns the tokens that a limit has left.
async fn left(limits: &RateLimitLayer, name: &str) -> u64 {
    let state = limits.limit(name).expect("a limit").peek(key::Shared, 0).await.expect("a decision");
    state.outcomes()[0].remaining()
}

/// Sends a request that a handler charges more for.
async fn handled<F: Future<Output = ()> + Send + 'static>(
    limits: &RateLimitLayer,
    handle: impl Fn(Permit) -> F + Clone + Send + Sync + 'static,
) -> Answer {
    let app: Router = Router::new().route("/", route(handle)).layer(limits.clone());
    ask(&app, get("/").map(|()| axum::body::Body::empty())).await
}

#[tokio::test]
async fn a_quota_that_is_not_charged_has_no_capacity_for_others() {
    let limits = layer([limit("own", 3).quota_mode(), limit("team", 100).quota_mode()]);
    let charge = |permit: Permit| async move {
        let own = permit.limit("own").unwrap();
        assert!(!own.charge(50).await.unwrap().is_allowed());
        assert_eq!(own.settle(50).await.unwrap().shortfall, 47);
    };
    handled(&limits, charge).await;
    assert_eq!((left(&limits, "own").await, left(&limits, "team").await), (0, 99));
}

/// A request needs one quota with capacity for its cost, whatever its route adds to others.
#[tokio::test]
async fn a_quota_that_was_charged_has_had_capacity_for_the_cost_of_a_route() {
    let quotas = || [limit("requests", 100).cost(1).quota_mode(), limit("tokens", 60).quota_mode()];
    let (one, two) = (layer(quotas()), layer(quotas()));
    let whole = one.costs(CostTable::new().otherwise(50)).layer(Hello::default());
    let nested = two.layer(two.cost(50).layer(Hello::default()));
    for _ in 0..3 {
        assert_eq!(ask(&whole, get("/")).await.status, StatusCode::OK);
        assert_eq!(ask(&nested, get("/")).await.status, StatusCode::OK);
        for name in ["requests", "tokens"] {
            assert_eq!(left(&one, name).await, left(&two, name).await, "{name}");
        }
    }
}

#[tokio::test]
async fn limits_without_capacity_for_the_cost_of_a_route_are_charged_nothing() {
    for small in [limit("small", 8).shadow(), limit("small", 8).quota_mode()] {
        let limits = layer([limit("large", 100).quota_mode(), small]);
        let service = limits.layer(limits.cost(6).layer(Hello::default()));
        for _ in 0..3 {
            assert_eq!(ask(&service, get("/")).await.status, StatusCode::OK);
        }
        assert_eq!((left(&limits, "large").await, left(&limits, "small").await), (82, 2));
    }
}

#[tokio::test]
async fn a_settlement_charges_what_all_quotas_have_left() {
    let quotas = [limit("own", 3).quota_mode(), limit("team", 4).quota_mode()];
    for quotas in [quotas.clone(), [quotas[1].clone(), quotas[0].clone()]] {
        let limits = layer(quotas).cost(3);
        let settle = |permit: Permit| async move { assert_eq!(permit.settle(6).await.unwrap().shortfall, 3) };
        handled(&limits, settle).await;
        assert_eq!((left(&limits, "own").await, left(&limits, "team").await), (0, 0));
    }
}

#[tokio::test]
async fn a_response_does_not_charge_a_request_that_its_route_denied() {
    let limits = layer([limit("ten", 10).settle_by(|_| Some(1))]);
    ask(&limits.layer(Hello::default()), get("/")).await;
    let service = limits.layer(limits.cost(10).layer(Hello::default()));
    for _ in 0..3 {
        let answer = ask(&service, get("/")).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::TOO_MANY_REQUESTS, 9));
    }
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
    let answer = ask(&app, get("/").map(|()| axum::body::Body::empty())).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
    let standings = answer.standings();
    let tokens = standings.iter().find(|standing| standing.name == "tokens").unwrap();
    assert_eq!((tokens.get("r"), tokens.get("t")), (Some(5), Some(1)));
    assert_eq!(left(&limits, "failures").await, 5);
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
            assert_eq!(ask(&route, request).await.status, StatusCode::TOO_MANY_REQUESTS);
            assert!(permit.limit("ten").unwrap().charge(5).await.unwrap().is_allowed());
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    assert_eq!(ask(&limits.layer(between), get("/")).await.status, StatusCode::OK);
    assert_eq!(left(&limits, "ten").await, 4);
}

#[tokio::test]
async fn a_settlement_leaves_quotas_alone_that_the_request_was_not_charged() {
    let quotas = || [limit("own", 3).quota_mode(), limit("team", 20).quota_mode()];
    for (settled, team) in [(5, 15), (8, 12), (2, 18), (25, 0)] {
        let settle = move |permit: Permit| async move {
            assert_eq!(permit.settle(settled).await.unwrap().shortfall, settled.saturating_sub(20));
        };
        // The same where the router charges both, and the route only one of them.
        for router in [5, 1] {
            let limits = layer(quotas());
            let app: Router = Router::new()
                .route("/", route(settle).route_layer(limits.cost_by(|_| 5)))
                .layer(limits.cost_by(move |_| router));
            assert_eq!(ask(&app, get("/").map(|()| axum::body::Body::empty())).await.status, StatusCode::OK);
            assert_eq!((left(&limits, "own").await, left(&limits, "team").await), (3, team), "{settled} {router}");
        }
    }
    // Not even a permit for one of them alone charges it, unless the others were refunded.
    let limits = layer(quotas()).cost_by(|_| 5);
    let settle = |permit: Permit| async move {
        assert_eq!(permit.limit("own").unwrap().settle(2).await.unwrap().shortfall, 0);
        permit.refund().await.unwrap();
        assert_eq!(permit.settle(4).await.unwrap().shortfall, 0);
    };
    handled(&limits, settle).await;
    assert_eq!((left(&limits, "own").await, left(&limits, "team").await), (3, 16));
}

#[tokio::test]
async fn a_settlement_by_the_response_leaves_quotas_alone_that_the_request_was_not_charged() {
    let settled = |name, tokens| limit(name, tokens).quota_mode().settle_by(|_| Some(5));
    let limits = layer([settled("own", 3), settled("team", 20)]).cost_by(|_| 5);
    assert_eq!(ask(&limits.layer(Hello::default()), get("/")).await.status, StatusCode::OK);
    assert_eq!((left(&limits, "own").await, left(&limits, "team").await), (3, 15));
}

/// The settlement is lowered to what the other limit has left.
#[tokio::test]
async fn a_settlement_that_another_limit_denies_charges_no_quota_in_part() {
    let limits = layer([limit("own", 3).quota_mode(), limit("team", 20).quota_mode(), limit("hard", 4)]);
    let settle = |permit: Permit| async move { assert_eq!(permit.settle(6).await.unwrap().shortfall, 2) };
    handled(&limits, settle).await;
    assert_eq!((left(&limits, "own").await, left(&limits, "team").await, left(&limits, "hard").await), (2, 14, 0));
}

/// The request would be allowed as soon as any of the quotas has capacity.
#[tokio::test]
async fn the_wait_for_a_route_includes_quotas_with_a_cost_of_their_own() {
    let tokens = Limit::new("tokens", TokenBucket::new(10, 1, Duration::from_secs(8_000))).quota_mode();
    let fast = Limit::new("requests", TokenBucket::new(1, 1, Duration::from_secs(20))).cost(1).quota_mode();
    let limits = layer([fast, tokens]);
    assert_eq!(ask(&limits.layer(Hello::default()), get("/")).await.status, StatusCode::OK);
    let denied = ask(&limits.layer(limits.cost(10).layer(Hello::default())), get("/")).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("20")));
    assert_eq!(left(&limits, "tokens").await, 9);
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
    for own in [limit("own", 1).quota_mode(), limit("own", 1).cost(1).quota_mode()] {
        for act in acts {
            let limits = layer([own.clone(), limit("team", 20).quota_mode()]);
            ask(&limits.layer(Hello::default()), get("/")).await;
            let app: Router =
                Router::new().route("/", route(act).route_layer(limits.cost_by(|_| 5))).layer(limits.clone());
            let answer = ask(&app, get("/").map(|()| axum::body::Body::empty())).await;
            assert_eq!(answer.status, StatusCode::OK);
            let names: Vec<_> = answer.standings().into_iter().map(|standing| standing.name).collect();
            assert_eq!(names, ["team"]);
        }
    }
}

#[tokio::test]
async fn overage_is_reported_after_other_charges() {
    let builder = || {
        let limits = [limit("soft", 2).soft(100).cost(3), limit("hundred", 100)];
        RateLimitLayer::builder(limits).store(paused_store()).permits().headers(HeaderStyle::Overage)
    };
    let overage = async |limits: RateLimitLayer, settled: Option<u64>| {
        let settle = move |permit: Permit| async move {
            assert!(permit.charge(2).await.unwrap().is_allowed());
            if let Some(settled) = settled {
                permit.limit("soft").unwrap().settle(settled).await.unwrap();
                assert!(permit.charge(1).await.unwrap().is_allowed());
            }
        };
        let app: Router = Router::new().route("/", route(settle).route_layer(limits.cost(4))).layer(limits);
        let answer = ask(&app, get("/").map(|()| axum::body::Body::empty())).await;
        assert_eq!(answer.status, StatusCode::OK);
        answer.header("ratelimit-overage").map(str::to_owned)
    };
    for settled in [None, Some(3), Some(4)] {
        assert_eq!(overage(builder().build(), settled).await.as_deref(), Some("\"soft\""), "{settled:?}");
    }
    // The request has used none in the end.
    for settled in [0, 1, 2] {
        assert_eq!(overage(builder().build(), Some(settled)).await, None, "{settled}");
    }
}
