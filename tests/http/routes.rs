//! Routes and paths, as in the table of the guide's page on keys.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get as route, post};
use http::Method;
use tower::Layer;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{CostTable, Limit, RateLimitLayer, RequestHead, key, when};

use crate::service::{Hello, get, layer, per_hour, per_minute, visit};
use crate::store::paused_store;
use support::answer::{ask, statuses};

fn hundred() -> Limit {
    per_minute("hundred", 100)
}

/// Returns a nested router with the route `/api/users/{id}`.
fn users() -> Router {
    Router::new().nest("/api", Router::new().route("/users/{id}", route(async || "a user")))
}

/// Returns the remaining tokens of a limit after a request to each path.
async fn left(app: Router, paths: [&str; 2]) -> [i64; 2] {
    let mut left = [0; 2];
    for (left, path) in left.iter_mut().zip(paths) {
        *left = visit(&app, &format!("GET {path}")).await.remaining();
    }
    left
}

/// Returns a router in which `layer` limits two nested routers from within.
fn nested(layer: RateLimitLayer) -> Router {
    let inner = || {
        let fallback = async || "nothing";
        Router::new().route("/login", route(async || "a login")).fallback(fallback).layer(layer.clone())
    };
    Router::new().nest("/api", inner()).nest("/shop", inner())
}

const PATHS: [&str; 2] = ["/api/users/1", "/api/users/2"];

#[tokio::test]
async fn keys_by_route_share_a_bucket_and_keys_by_path_do_not() {
    assert_eq!(left(users().layer(layer([hundred().by(key::matched_route())])), PATHS).await, [99, 98]);
    assert_eq!(left(users().layer(layer([hundred().by(key::path())])), PATHS).await, [99, 99]);
}

#[tokio::test]
async fn conditions_and_costs_match_the_route() {
    let paths = ["/api/users/1", "/api/users/1"];
    for condition in [hundred().when(when::route("/api/users/{id}")), hundred().when(when::path_prefix("/api/users"))] {
        assert_eq!(left(users().layer(layer([condition])), paths).await, [99, 98]);
    }
    let tables = [
        CostTable::new().path("/api/users/{id}", 2),
        CostTable::new().route(Method::GET, "/api/users/{id}", 2).otherwise(50),
    ];
    for table in tables {
        assert_eq!(left(users().layer(layer(hundred()).costs(table)), paths).await, [98, 96]);
    }
}

#[tokio::test]
async fn nested_routers_see_the_path_that_the_client_sent() {
    let path_prefix = || layer([hundred().when(when::path_prefix("/api/login"))]);
    assert_eq!(left(nested(path_prefix()), ["/api/login", "/api/login?x=1"]).await, [99, 98]);
    let answer = visit(&nested(path_prefix()), "GET /shop/login").await;
    assert_eq!(answer.header("ratelimit"), None);
    let by_path = || layer([hundred().by(key::path())]);
    assert_eq!(left(nested(by_path()), ["/api/login", "/shop/login"]).await, [99, 99]);
    assert_eq!(left(nested(by_path()), ["/api/login", "/api/login"]).await, [99, 98]);
    // No route has matched, so the path is compared.
    let condition = layer([hundred().when(when::route("/api/other"))]);
    assert_eq!(left(nested(condition), ["/api/other", "/api/other"]).await, [99, 98]);
    let table = CostTable::new().path("/api/other", 2).path("/api/login", 5);
    let costs = RateLimitLayer::builder(hundred()).costs(table).store(paused_store()).build();
    assert_eq!(left(nested(costs), ["/api/other", "/api/login"]).await, [98, 93]);
    let closure = layer([hundred().when(when::from_fn(|head| head.path() == "/shop/login"))]);
    assert_eq!(left(nested(closure), ["/shop/login", "/shop/login"]).await, [99, 98]);
}

/// An explanation in the place of the layer reads the same path.
#[tokio::test]
async fn explanations_in_nested_routers_see_the_path_that_the_client_sent() {
    async fn explain(State(limits): State<RateLimitLayer>, request: Request, next: Next) -> Response {
        let explanation = limits.explain(&RequestHead::of(&request)).await;
        let answer = next.run(request).await;
        assert!(explanation.to_string().contains(", by path /api/login,"), "{explanation}");
        answer
    }
    let limits = layer([hundred().by(key::path()).when(when::path_prefix("/api"))]);
    let inner = Router::new().route("/login", route(async || "a login")).layer(limits.clone());
    let app = Router::new().nest("/api", inner.layer(middleware::from_fn_with_state(limits, explain)));
    assert_eq!(visit(&app, "GET /api/login").await.remaining(), 99);
}

#[tokio::test]
async fn a_layer_limits_unknown_paths_of_the_router_that_others_are_merged_into() {
    let limited = || Router::new().route("/limited", route(async || "")).layer(layer(hundred()));
    let other = || Router::new().route("/other", route(async || ""));
    let with_fallback = Router::new().fallback(async || "").layer(layer(hundred()));
    for (app, is_limited) in
        [(other().merge(limited()), true), (limited().merge(other()), false), (with_fallback.merge(other()), true)]
    {
        let answer = visit(&app, "GET /unknown").await;
        assert_eq!(answer.header("ratelimit").is_some(), is_limited);
    }
}

#[tokio::test]
async fn only_a_route_layer_of_a_single_route_does_not_limit_methods_that_it_lacks() {
    let one = || layer(hundred());
    for (app, is_limited) in [
        (Router::new().route("/", post(async || "")).layer(one()), true),
        (Router::new().route("/", post(async || "").layer(one())), true),
        (Router::new().route("/", post(async || "")).route_layer(one()), true),
        (Router::new().route("/", post(async || "").route_layer(one())), false),
    ] {
        let answer = visit(&app, "GET /").await;
        assert_eq!((answer.status.as_u16(), answer.header("ratelimit").is_some()), (405, is_limited));
    }
}

#[tokio::test]
async fn the_path_of_a_rules_file_is_the_route() {
    let rule = |path: &str| {
        let yaml = format!(
            "domain: shop\ndescriptors:\n- key: path\n  value: '{path}'\n  rate_limit: {{ unit: minute, \
             requests_per_unit: 100 }}\n"
        );
        layer(rules::from_yaml(&yaml, &Extractors::new()).unwrap())
    };
    assert_eq!(left(users().layer(rule("/api/users/{id}")), PATHS).await, [99, 98]);
}

#[tokio::test]
async fn without_a_router_conditions_and_costs_match_the_path() {
    let limits =
        layer([hundred().when(when::route("/users")), per_hour("prefix", 9).when(when::path_prefix("/users"))]);
    let answer = ask(&limits.layer(Hello::default()), get("/users")).await;
    assert_eq!((answer.remaining_of("hundred"), answer.remaining_of("prefix")), (99, 8));
    let tables = [CostTable::new().path("/users", 2), CostTable::new().route(Method::GET, "/users", 2).otherwise(50)];
    for table in tables {
        let service = layer(hundred()).costs(table).layer(Hello::default());
        assert_eq!(ask(&service, get("/users")).await.remaining(), 98);
    }
    let service = layer([hundred().by(key::path())]).layer(Hello::default());
    assert_eq!(ask(&service, get("/users")).await.remaining(), 99);
    assert_eq!(ask(&service, get("/other")).await.remaining(), 99);
}

#[tokio::test]
async fn other_routers_tell_the_route_by_an_extension() {
    let extractors = Extractors::new();
    let yaml = "
domain: shop
descriptors:
- { key: path, value: '/users/{id}', rate_limit: { unit: day, requests_per_unit: 1 } }
";
    let limits = rules::from_yaml(yaml, &extractors).unwrap();
    let service = layer(limits).layer(Hello::default());
    let requests = ["/users/1", "/users/2"].map(|path| {
        let mut request = get(path);
        request.extensions_mut().insert(key::RoutePattern("/users/{id}".to_owned()));
        request
    });
    assert_eq!(statuses(&service, requests).await, [200, 429]);
}
