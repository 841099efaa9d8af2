//! Costs: on a route inside the same limiter on the router, and from a closure.

use std::fmt::Debug;
use support::faulty_store::{FaultyStore, Mode, Operation};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceBuilder};
use tower_ratelimit::{
    CostTable, FixedWindow, LeakyBucket, Limit, OnMissingKey, RateLimitLayer, SlidingLog, SlidingWindowCounter, Store,
    TokenBucket, key, when,
};

use crate::service::{self, Hello, with};
use crate::store::paused_store;
use support::answer::{Answer, ask};

fn of_ten(store: impl Store) -> RateLimitLayer {
    RateLimitLayer::builder([Limit::new("ten", FixedWindow::per_minute(10))]).store(store).build()
}

async fn hello() -> &'static str {
    "hello"
}

/// Routes with different costs inside the same limiter on the router.
fn app(limits: RateLimitLayer) -> Router {
    Router::new()
        .route("/one", get(hello))
        .route("/nothing", get(hello).route_layer(limits.cost(0)))
        .route("/five", get(hello).route_layer(limits.cost(5)))
        .route("/six", get(hello).route_layer(limits.cost(6)))
        .layer(limits)
}

async fn visit(app: &Router, path: &str) -> Answer {
    ask(app, Request::get(path).body(Body::empty()).unwrap()).await
}

/// The cost of a route is the total, and headers show it once.
async fn the_cost_of_a_route_is_the_total(limits: RateLimitLayer) {
    let app = app(limits);
    for (path, left) in [("/five", 5), ("/one", 4), ("/nothing", 4), ("/nowhere", 3)] {
        let answer = visit(&app, path).await;
        assert_eq!(answer.all("ratelimit-policy"), ["\"ten\";q=10;w=60"], "{path}");
        assert_eq!(answer.remaining(), left, "{path}");
    }
}

#[tokio::test]
async fn the_difference_is_charged() {
    the_cost_of_a_route_is_the_total(of_ten(paused_store())).await;
    the_cost_of_a_route_is_the_total(of_ten(FaultyStore::over(paused_store(), Mode::Works))).await;
}

/// If the total is denied, nothing is charged: the router's charge is refunded.
async fn all_or_nothing(limits: RateLimitLayer) {
    let app = app(limits);
    assert_eq!(visit(&app, "/six").await.remaining(), 4);
    for _ in 0..2 {
        let refused = visit(&app, "/five").await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.remaining(), 4);
        assert_eq!(refused.header("retry-after"), Some("60"));
    }
    assert_eq!(visit(&app, "/one").await.remaining(), 3);
}

#[tokio::test]
async fn a_difference_that_is_denied_takes_nothing() {
    all_or_nothing(of_ten(paused_store())).await;
    all_or_nothing(of_ten(FaultyStore::over(paused_store(), Mode::Works))).await;
}

#[tokio::test]
async fn route_costs_work_with_every_algorithm() {
    let algorithms = [
        FixedWindow::per_minute(10).into(),
        SlidingLog::per_minute(10).into(),
        SlidingWindowCounter::per_minute(10).into(),
        TokenBucket::per_minute(10).into(),
        LeakyBucket::per_minute(10).into(),
    ] as [tower_ratelimit::Algorithm; 5];
    for algorithm in algorithms {
        let app = app(RateLimitLayer::builder([Limit::new("ten", algorithm)]).store(paused_store()).build());
        for (path, left) in [("/six", 4), ("/five", 4), ("/nothing", 4), ("/one", 3), ("/five", 3)] {
            assert_eq!(visit(&app, path).await.remaining(), left, "{path} under {algorithm:?}");
        }
    }
}

/// If one of several limits denies the difference, all charges are refunded.
#[tokio::test]
async fn a_route_cost_is_charged_to_all_limits_or_none() {
    let limits = [Limit::new("ten", FixedWindow::per_minute(10)), Limit::new("hundred", FixedWindow::per_hour(100))];
    let app = app(RateLimitLayer::builder(limits).store(paused_store()).build());
    let left = async |path| {
        let answer = visit(&app, path).await;
        (answer.is_refused(), answer.remaining_of("ten"), answer.remaining_of("hundred"))
    };
    assert_eq!(left("/six").await, (false, 4, 94));
    assert_eq!(left("/five").await, (true, 4, 94));
    assert_eq!(left("/one").await, (false, 3, 93));
}

#[tokio::test]
async fn cheaper_routes_refund_the_difference() {
    let limits = of_ten(paused_store());
    let app = Router::new()
        .route("/five", get(hello))
        .route("/two", get(hello).route_layer(limits.cost(2)))
        .route("/nothing", get(hello).route_layer(limits.cost(0)))
        .layer(limits.cost(5));
    for (path, left) in [("/two", 8), ("/nothing", 8), ("/five", 3)] {
        assert_eq!(visit(&app, path).await.remaining(), left, "{path}");
    }
    // The router's cost of 5 is denied.
    assert!(visit(&app, "/two").await.is_refused());
}

#[tokio::test]
async fn a_route_cost_without_an_outer_layer_charges_its_cost() {
    let limits = of_ten(paused_store());
    let app = Router::new()
        .route("/one", get(hello).route_layer(limits.clone()))
        .route("/five", get(hello).route_layer(limits.cost(5)));
    for (path, left) in [("/five", 5), ("/one", 4)] {
        assert_eq!(visit(&app, path).await.remaining(), left, "{path}");
    }
    assert_eq!(visit(&app, "/five").await.remaining(), 4);
}

#[tokio::test]
async fn a_table_charges_each_route_by_one_call() {
    let store = FaultyStore::over(paused_store(), Mode::Works);
    let limits = of_ten(store.clone());
    let costs = CostTable::new().path("/five", 5).path("/four", 4).path("/nothing", 0);
    let app = Router::new()
        .route("/five", get(hello))
        .route("/four", get(hello))
        .route("/nothing", get(hello))
        .layer(limits.costs(costs));
    let visits = [("/five", 200, 5), ("/nowhere", 404, 4), ("/five", 429, 4), ("/four", 200, 0), ("/nothing", 200, 0)];
    for (earlier, (path, status, left)) in visits.into_iter().enumerate() {
        let answer = visit(&app, path).await;
        assert_eq!((answer.status.as_u16(), answer.remaining()), (status, left), "{path}");
        assert_eq!(store.asked(Operation::Decide) + store.asked(Operation::Peek), earlier + 1, "{path}");
    }
}

#[tokio::test]
async fn limits_with_their_own_cost_ignore_the_layers_cost() {
    let limits = [
        Limit::new("requests", FixedWindow::per_minute(10)).cost(1),
        Limit::new("bytes", FixedWindow::per_minute(100)).cost_by(|head| head.uri.path().len() as u64),
        Limit::new("tokens", FixedWindow::per_minute(10)),
    ];
    let app = app(RateLimitLayer::builder(limits).store(paused_store()).build());
    let left = async |path| {
        let answer = visit(&app, path).await;
        ["requests", "bytes", "tokens"].map(|name| answer.remaining_of(name))
    };
    assert_eq!(left("/six").await, [9, 96, 4]);
    assert_eq!(left("/nothing").await, [8, 88, 4]);
    assert_eq!(left("/five").await, [8, 88, 4], "one limit denied, so all were refunded");
    assert_eq!(left("/one").await, [7, 84, 3]);
}

#[tokio::test]
async fn two_layers_in_memory_do_not_share_usage() {
    let (ten, hundred) = (of_ten(paused_store()), Limit::new("hundred", FixedWindow::per_hour(100)));
    let hundred = RateLimitLayer::builder([hundred]).store(paused_store()).build();
    let both = || ServiceBuilder::new().layer(hundred.cost(20)).layer(ten.cost(3));
    let app = Router::new()
        .route("/one", get(hello))
        .route("/both", get(hello).route_layer(both()))
        .layer(ten.clone())
        .layer(hundred.clone());
    let left = async |path| {
        let answer = visit(&app, path).await;
        (answer.is_refused(), answer.remaining_of("ten"), answer.remaining_of("hundred"))
    };
    assert_eq!(left("/both").await, (false, 7, 80));
    assert_eq!(left("/one").await, (false, 6, 79));
    assert_eq!(left("/both").await, (false, 3, 59));
    assert_eq!(left("/both").await, (false, 0, 39));
}

/// The innermost cost applies, whatever the outer layers have charged.
async fn the_innermost_cost_applies(limit: Limit) {
    let builder = RateLimitLayer::builder([limit]);
    for (outer, inner, left) in [(8, 2, 8), (2, 8, 2), (0, 5, 5), (5, 0, 10), (7, 7, 3)] {
        let limits = builder.clone().store(paused_store()).build();
        let nested = Router::new().route("/", get(hello).route_layer(limits.cost(inner))).layer(limits.cost(outer));
        let app = Router::new().nest("/nested", nested).layer(limits);
        assert_eq!(visit(&app, "/nested").await.remaining(), left, "{outer} around {inner}");
    }
}

#[tokio::test]
async fn costs_within_costs() {
    the_innermost_cost_applies(Limit::new("ten", FixedWindow::per_minute(10))).await;
    the_innermost_cost_applies(Limit::new("ten", SlidingLog::per_minute(10))).await;
    the_innermost_cost_applies(Limit::new("ten", TokenBucket::per_minute(10))).await;
    the_innermost_cost_applies(Limit::new("ten", LeakyBucket::per_minute(10))).await;
}

/// The outer layer finds no key, because an inner layer adds it.
#[tokio::test]
async fn the_route_charges_its_whole_cost_if_the_router_charged_nothing() {
    let limit = Limit::new("ten", FixedWindow::per_minute(10));
    let limit = limit.by(key::header("x-user")).on_missing_key(OnMissingKey::Skip);
    let limits = RateLimitLayer::builder([limit]).store(paused_store()).build();
    let authenticate = tower::util::MapRequestLayer::new(|mut request: Request<()>| {
        request.headers_mut().insert("x-user", http::HeaderValue::from_static("ann"));
        request
    });
    let service =
        ServiceBuilder::new().layer(limits.clone()).layer(authenticate).layer(limits.cost(4)).service(Hello::default());
    assert_eq!(ask(&service, service::get("/")).await.remaining(), 6);
    assert_eq!(ask(&service, with(&[("x-user", "ann")])).await.remaining(), 2);
}

/// A charge to one store cannot be refunded by another.
#[tokio::test]
async fn a_layer_with_another_store_has_its_own_state() {
    let outer = of_ten(paused_store());
    let inner = RateLimitLayer::builder(outer.limits().to_vec()).store(paused_store()).headers([]).cost(6).build();
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(Hello::default());
    assert_eq!(ask(&service, service::get("/")).await.remaining(), 9);
    assert_eq!(ask(&service, service::get("/")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

fn by_header(limits: &RateLimitLayer) -> RateLimitLayer {
    limits.cost_by(|head| head.header("x-cost").map_or(1, |cost| cost.parse().unwrap()))
}

#[tokio::test]
async fn by_a_closure() {
    let service = by_header(&of_ten(paused_store())).layer(Hello::default());
    for (cost, left) in [("3", 7), ("0", 7), ("7", 0), ("0", 0)] {
        let answer = ask(&service, with(&[("x-cost", cost)])).await;
        assert_eq!((answer.is_refused(), answer.remaining()), (false, left), "{cost}");
    }
    assert!(ask(&service, service::get("/")).await.is_refused());
}

async fn is_denied_permanently<S, R>(service: &S)
where
    S: Service<Request<()>, Response = Response<R>, Error: Debug> + Clone,
    R: http_body::Body<Error: Debug>,
{
    for cost in ["11", "4294967296", "18446744073709551615"] {
        let refused = ask(service, with(&[("x-cost", cost)])).await;
        assert!(refused.is_refused(), "{cost}");
        assert_eq!(refused.header("retry-after"), None, "{cost}");
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        assert_eq!(refused.remaining(), 10, "{cost}");
        assert_eq!(refused.body, "Too much for one request: it costs more than its limit allows.\n");
    }
    assert_eq!(ask(service, with(&[("x-cost", "10")])).await.remaining(), 0);
}

#[tokio::test]
async fn a_cost_over_the_capacity_is_denied_without_retry_after() {
    is_denied_permanently(&by_header(&of_ten(paused_store())).layer(Hello::default())).await;
    // The difference to the router's charge would be allowed.
    let limits = of_ten(paused_store());
    is_denied_permanently(&limits.layer(by_header(&limits).layer(Hello::default()))).await;
}

#[test]
fn a_constant_cost_over_the_capacity_is_an_error() {
    let text = "a cost of 11 can never pass the limit \"ten\", which holds 10: lower the cost, raise the limit, or \
                give the limit a cost of its own with `Limit::cost`";
    let limits = of_ten(paused_store());
    assert!(limits.try_cost(10).is_ok());
    assert_eq!(limits.try_cost(11).unwrap_err().to_string(), text);
    let limit = Limit::new("ten", FixedWindow::per_minute(10));
    assert_eq!(RateLimitLayer::builder([limit.clone().cost(11)]).try_build().unwrap_err().to_string(), text);
    // A limit with its own cost ignores that of the route.
    assert!(RateLimitLayer::new([limit.cost(1)]).try_cost(11).is_ok());
}

#[test]
#[should_panic(expected = "a cost of 11 can never pass the limit \"ten\"")]
fn a_constant_cost_over_the_capacity_panics_where_it_is_written() {
    let _ = of_ten(paused_store()).cost(11);
}

/// With a route cost, the response is written from the decision about the difference, or about the total.
#[tokio::test]
async fn a_denied_route_cost_shows_the_size_for_the_request() {
    let limit = Limit::new("ten", FixedWindow::per_minute(10))
        .size_when(when::header("x-plan", "pro"), FixedWindow::per_minute(20));
    let limits = RateLimitLayer::builder([limit]).store(paused_store()).build();
    let app = Router::new().route("/", get(hello).route_layer(limits.cost(21))).layer(limits);
    let denied = ask(&app, Request::get("/").header("x-plan", "pro").body(Body::empty()).unwrap()).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.all("ratelimit-policy"), ["\"ten\";q=20;w=60"]);
}
