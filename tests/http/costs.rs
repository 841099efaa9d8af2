//! Costs: on a route inside the same limiter on the router, and from a closure.

use support::faulty_store::{FaultyStore, Mode, Operation};

use axum::Router;
use axum::routing::get;
use http::{HeaderValue, Request};
use tower::util::MapRequestLayer;
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{
    Algorithm, CostTable, FixedWindow, LeakyBucket, Limit, OnMissingKey, RateLimitLayer, SlidingLog,
    SlidingWindowCounter, TokenBucket, key, when,
};

use crate::service::{self, Hello, builder, layer, panic_message, per_hour, per_minute, request, visit, with};
use crate::store::paused_store;
use support::answer::ask;

fn ten() -> Limit {
    per_minute("ten", 10)
}

fn hundred() -> Limit {
    per_hour("hundred", 100)
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

/// Checks whether requests are denied, and the remaining tokens of limits.
async fn check<const N: usize>(app: &Router, names: [&str; N], visits: &[(&str, bool, [i64; N])]) {
    for (path, is_denied, left) in visits {
        let answer = visit(app, &format!("GET {path}")).await;
        let found = names.map(|name| answer.remaining_of(name));
        assert_eq!((answer.is_denied(), found), (*is_denied, *left), "{path}");
        assert_eq!(answer.all("ratelimit-policy").len(), 1, "{path}");
        assert!(!is_denied || answer.header("retry-after").is_some());
    }
}

/// The cost of a route is the total, and headers show it once. If the total is denied, nothing is charged: the router's
/// charge is refunded.
#[tokio::test]
async fn the_difference_is_charged_or_nothing() {
    let algorithms: [Algorithm; 5] = [
        FixedWindow::per_minute(10).into(),
        SlidingLog::per_minute(10).into(),
        SlidingWindowCounter::per_minute(10).into(),
        TokenBucket::per_minute(10).into(),
        LeakyBucket::per_minute(10).into(),
    ];
    let limits = algorithms.map(|algorithm| builder(Limit::new("ten", algorithm)));
    let delayed = builder(ten()).store(FaultyStore::over(paused_store(), Mode::Works));
    for limits in limits.into_iter().chain([delayed]) {
        let visits = [
            ("/six", false, [4]),
            ("/five", true, [4]),
            ("/five", true, [4]),
            ("/one", false, [3]),
            ("/nothing", false, [3]),
            ("/five", true, [3]),
        ];
        check(&app(limits.build()), ["ten"], &visits).await;
    }
    let app = app(layer(ten()));
    let unknown = visit(&app, "GET /nowhere").await;
    assert_eq!((unknown.status.as_u16(), unknown.remaining()), (404, 9));
}

/// If one of several limits denies the difference, all charges are refunded.
#[tokio::test]
async fn a_route_cost_is_charged_to_all_limits_or_none() {
    let visits = [("/six", false, [4, 94]), ("/five", true, [4, 94]), ("/one", false, [3, 93])];
    check(&app(layer([ten(), hundred()])), ["ten", "hundred"], &visits).await;
}

#[tokio::test]
async fn cheaper_routes_refund_the_difference() {
    let limits = layer(ten());
    let app = Router::new()
        .route("/five", get(hello))
        .route("/two", get(hello).route_layer(limits.cost(2)))
        .route("/nothing", get(hello).route_layer(limits.cost(0)))
        .layer(limits.cost(5));
    // At last, the router's cost of 5 is denied.
    let visits = [("/two", false, [8]), ("/nothing", false, [8]), ("/five", false, [3]), ("/two", true, [3])];
    check(&app, ["ten"], &visits).await;
}

#[tokio::test]
async fn a_route_cost_without_an_outer_layer_charges_its_cost() {
    let limits = layer(ten());
    let app = Router::new()
        .route("/one", get(hello).route_layer(limits.clone()))
        .route("/five", get(hello).route_layer(limits.cost(5)));
    check(&app, ["ten"], &[("/five", false, [5]), ("/one", false, [4]), ("/five", true, [4])]).await;
}

#[tokio::test]
async fn a_table_charges_each_route_by_one_call() {
    let store = FaultyStore::over(paused_store(), Mode::Works);
    let costs = CostTable::new().path("/five", 5).path("/four", 4).path("/nothing", 0);
    let limits = builder(ten()).store(store.clone()).costs(costs).build();
    let routes = ["/five", "/four", "/nothing"].into_iter();
    let app = routes.fold(Router::new(), |app, path| app.route(path, get(hello))).layer(limits);
    let visits = [("/five", 200, 5), ("/nowhere", 404, 4), ("/five", 429, 4), ("/four", 200, 0), ("/nothing", 200, 0)];
    for (earlier, (path, status, left)) in visits.into_iter().enumerate() {
        let answer = visit(&app, &format!("GET {path}")).await;
        assert_eq!((answer.status.as_u16(), answer.remaining()), (status, left), "{path}");
        assert_eq!(store.asked(Operation::Decide) + store.asked(Operation::Peek), earlier + 1, "{path}");
    }
}

#[tokio::test]
async fn limits_with_their_own_cost_ignore_the_layers_cost() {
    let bytes = per_minute("bytes", 100).cost_by(|head| head.uri.path().len() as u64);
    let limits = [per_minute("requests", 10).cost(1), bytes, per_minute("tokens", 10)];
    let visits = [
        ("/six", false, [9, 96, 4]),
        ("/nothing", false, [8, 88, 4]),
        // One limit denied, so all were refunded.
        ("/five", true, [8, 88, 4]),
        ("/one", false, [7, 84, 3]),
    ];
    check(&app(layer(limits)), ["requests", "bytes", "tokens"], &visits).await;
}

#[tokio::test]
async fn two_layers_in_memory_do_not_share_usage() {
    let (ten, hundred) = (layer(ten()), layer(hundred()));
    let both = ServiceBuilder::new().layer(hundred.cost(20)).layer(ten.cost(3));
    let app = Router::new().route("/one", get(hello)).route("/both", get(hello).route_layer(both));
    let app = app.layer(ten).layer(hundred);
    for (path, left) in [("/both", (7, 80)), ("/one", (6, 79)), ("/both", (3, 59)), ("/both", (0, 39))] {
        let answer = visit(&app, &format!("GET {path}")).await;
        assert_eq!((answer.remaining_of("ten"), answer.remaining_of("hundred")), left);
        assert!(!answer.is_denied());
    }
}

/// The innermost cost applies, whatever the outer layers have charged.
#[tokio::test]
async fn costs_within_costs() {
    let algorithms: [Algorithm; 4] = [
        FixedWindow::per_minute(10).into(),
        SlidingLog::per_minute(10).into(),
        TokenBucket::per_minute(10).into(),
        LeakyBucket::per_minute(10).into(),
    ];
    for algorithm in algorithms {
        for (outer, inner, left) in [(8, 2, 8), (2, 8, 2), (0, 5, 5), (5, 0, 10), (7, 7, 3)] {
            let limits = layer(Limit::new("ten", algorithm));
            let nested = Router::new().route("/", get(hello).route_layer(limits.cost(inner))).layer(limits.cost(outer));
            let app = Router::new().nest("/nested", nested).layer(limits);
            assert_eq!(visit(&app, "GET /nested").await.remaining(), left, "{outer} around {inner}");
        }
    }
}

/// The outer layer finds no key, because an inner layer adds it.
#[tokio::test]
async fn the_route_charges_its_whole_cost_if_the_router_charged_nothing() {
    let limits = layer(ten().by(key::header("x-user")).on_missing_key(OnMissingKey::Skip));
    let authenticate = MapRequestLayer::new(|mut request: Request<()>| {
        request.headers_mut().insert("x-user", HeaderValue::from_static("ann"));
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
    let outer = layer(ten());
    let inner = builder(outer.limits().to_vec()).headers([]).cost(6).build();
    let service = outer.layer(inner.layer(Hello::default()));
    assert_eq!(ask(&service, service::get("/")).await.remaining(), 9);
    assert!(ask(&service, service::get("/")).await.is_denied());
}

fn by_header(limits: &RateLimitLayer) -> RateLimitLayer {
    limits.cost_by(|head| head.header("x-cost").map_or(1, |cost| cost.parse().unwrap()))
}

#[tokio::test]
async fn by_a_closure() {
    let service = by_header(&layer(ten())).layer(Hello::default());
    for (cost, left) in [("3", 7), ("0", 7), ("7", 0), ("0", 0)] {
        let answer = ask(&service, with(&[("x-cost", cost)])).await;
        assert_eq!((answer.is_denied(), answer.remaining()), (false, left), "{cost}");
    }
    assert!(ask(&service, service::get("/")).await.is_denied());
}

/// Also if the difference to the router's charge would be allowed.
#[tokio::test]
async fn a_cost_over_the_capacity_is_denied_without_retry_after() {
    for is_nested in [false, true] {
        let limits = layer(ten());
        let inner = by_header(&limits).layer(Hello::default());
        for cost in ["11", "4294967296", "18446744073709551615", "10"] {
            let request = with(&[("x-cost", cost)]);
            let answer =
                if is_nested { ask(&limits.layer(inner.clone()), request).await } else { ask(&inner, request).await };
            if cost == "10" {
                assert_eq!((answer.is_denied(), answer.remaining()), (false, 0));
                continue;
            }
            assert_eq!((answer.is_denied(), answer.remaining(), answer.header("retry-after")), (true, 10, None));
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            assert_eq!(answer.body, "Too much for one request: it costs more than its limit allows.\n");
        }
    }
}

#[test]
fn a_constant_cost_over_the_capacity_is_an_error() {
    let text = "a cost of 11 can never pass the limit \"ten\", which holds 10: lower the cost, raise the limit, or \
                give the limit a cost of its own with `Limit::cost`";
    let limits = layer(ten());
    assert!(limits.try_cost(10).is_ok());
    assert_eq!(limits.try_cost(11).unwrap_err().to_string(), text);
    assert_eq!(RateLimitLayer::builder(ten().cost(11)).try_build().unwrap_err().to_string(), text);
    assert_eq!(panic_message(|| layer(ten()).cost(11)), text);
    // A limit with its own cost ignores that of the route.
    assert!(RateLimitLayer::new(ten().cost(1)).try_cost(11).is_ok());
}

/// With a route cost, the response is written from the decision about the difference, or about the total.
#[tokio::test]
async fn a_denied_route_cost_shows_the_size_for_the_request() {
    let limits = layer(ten().size_when(when::header("x-plan", "pro"), FixedWindow::per_minute(20)));
    let app = Router::new().route("/", get(hello).route_layer(limits.cost(21))).layer(limits);
    let mut pro = request("GET /");
    pro.headers_mut().insert("x-plan", HeaderValue::from_static("pro"));
    let denied = ask(&app, pro).await;
    assert_eq!((denied.is_denied(), denied.all("ratelimit-policy")), (true, vec!["\"ten\";q=20;w=60"]));
}
