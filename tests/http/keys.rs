//! Every key extractor.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use support::faulty_store::{FaultyStore, Mode, Operation};

use axum::Router;
use axum::routing::{any, get as route};
use http::{HeaderValue, Method, Request, StatusCode};
use tower::{Layer, ServiceExt};
use tower_ratelimit::key::KeyExtractor;
use tower_ratelimit::{CostTable, FixedWindow, Limit, OnMissingKey, RateLimit, RateLimitLayer, key, when};

use crate::service::{Hello, get, with};
use crate::store::paused_store;
use support::answer::ask;

fn one() -> Limit {
    Limit::new("one", FixedWindow::per_minute(1))
}

fn limited(limit: Limit) -> RateLimit<Hello> {
    RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default())
}

/// Returns whether two requests share a bucket with one token.
async fn share<B>(by: impl KeyExtractor, first: Request<B>, second: Request<B>) -> bool {
    let service = limited(one().by(by));
    assert!(!ask(&service, first).await.is_refused());
    ask(&service, second).await.is_refused()
}

#[tokio::test]
async fn without_a_key_all_requests_share_a_bucket() {
    let service = limited(one());
    assert!(!ask(&service, get("/one")).await.is_refused());
    assert!(ask(&service, with(&[("x-user", "ann")])).await.is_refused());
}

#[tokio::test]
async fn by_a_header() {
    let by = || key::header("X-User");
    assert!(share(by(), with(&[("x-user", "ann")]), with(&[("x-user", "ann")])).await);
    assert!(!share(by(), with(&[("x-user", "ann")]), with(&[("x-user", "Ann")])).await);
    assert!(!share(by(), with(&[("x-user", "ann")]), with(&[("x-user", "bob")])).await);
}

#[test]
#[should_panic(expected = "\"x user\" is not a header's name")]
fn an_invalid_header_name_is_an_error() {
    key::header("x user");
}

#[tokio::test]
async fn by_path() {
    assert!(share(key::path(), get("/a?x=1"), get("/a?x=2")).await);
    assert!(!share(key::path(), get("/a"), get("/b")).await);
    assert!(!share(key::path(), get("/a"), get("/a/")).await);
}

#[tokio::test]
async fn by_method() {
    let request = |method: Method| Request::builder().method(method).body(()).unwrap();
    assert!(share(key::method(), request(Method::GET), request(Method::HEAD)).await);
    assert!(share(key::method(), request(Method::HEAD), request(Method::GET)).await);
    assert!(!share(key::method(), request(Method::GET), request(Method::POST)).await);
    // Methods are case-sensitive: `get` is not `GET` (GHSA-vpvj-hfh8-388m).
    assert!(!share(key::method(), request(Method::GET), request(Method::from_bytes(b"get").unwrap())).await);
}

#[tokio::test]
async fn unknown_methods_share_a_bucket() {
    let service = limited(one().by(key::method()));
    let mut admitted = 0;
    for number in 0..200 {
        let request = Request::builder().method(format!("INVENTED{number}").as_str()).body(()).unwrap();
        admitted += u32::from(!ask(&service, request).await.is_refused());
    }
    assert_eq!(admitted, 1);
    // Methods are case-sensitive.
    for invented in ["get", "PURGE", "_OTHER"] {
        let request = Request::builder().method(invented).body(()).unwrap();
        assert!(ask(&service, request).await.is_refused(), "{invented}");
    }
    // HEAD shares the bucket of GET.
    for standard in ["GET", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"] {
        for expected in [false, true] {
            let request = Request::builder().method(standard).body(()).unwrap();
            assert_eq!(ask(&service, request).await.is_refused(), expected, "{standard}");
        }
    }
}

#[tokio::test]
async fn an_override_of_unknown_methods_applies_to_all_of_them() {
    let limits = RateLimitLayer::builder([one().by(key::method()).overridable()]).store(paused_store()).build();
    limits.limit("one").unwrap().set_override("_OTHER", FixedWindow::per_minute(3), None).await.unwrap();
    let service = limits.layer(Hello::default());
    for (method, left) in [("PURGE", 2), ("LINK", 1), ("PURGE", 0), ("POST", 0)] {
        let request = Request::builder().method(method).body(()).unwrap();
        assert_eq!(ask(&service, request).await.remaining(), left, "{method}");
    }
}

#[tokio::test]
async fn alternatives_of_an_asynchronous_key_are_named_like_those_of_others() {
    let later = key::from_async_fn(|head| {
        let user = head.header("x-user").map(str::to_owned);
        async move { user }
    });
    let limit = one().by(later.or(key::header("x-team"))).overridable();
    let limits = RateLimitLayer::builder([limit]).store(paused_store()).build();
    let overrides = limits.limit("one").unwrap();
    overrides.set_override(key::first("ann"), FixedWindow::per_minute(3), None).await.unwrap();
    overrides.set_override(key::second("ann"), FixedWindow::per_minute(5), None).await.unwrap();
    let service = limits.layer(Hello::default());
    assert_eq!(ask(&service, with(&[("x-user", "ann")])).await.remaining(), 2);
    assert_eq!(ask(&service, with(&[("x-team", "ann")])).await.remaining(), 4);
}

/// Conditions and tables of costs name methods of the server's choice.
#[tokio::test]
async fn conditions_and_costs_know_methods_of_any_name() {
    let method = |name: &str| Method::from_bytes(name.as_bytes()).unwrap();
    let purges = Limit::new("purges", FixedWindow::per_minute(20)).when(when::method(method("PURGE")));
    let costs = CostTable::new().route(method("PURGE"), "/", 10);
    let service = RateLimitLayer::builder([purges]).store(paused_store()).costs(costs).build().layer(Hello::default());
    let request = |name: &str| Request::builder().method(name).uri("/").body(()).unwrap();
    assert_eq!(ask(&service, request("PURGE")).await.remaining(), 10);
    for other in ["LINK", "purge"] {
        assert_eq!(ask(&service, request(other)).await.header("ratelimit"), None, "{other}");
    }
    assert_eq!(ask(&service, request("PURGE")).await.remaining(), 0);
}

#[derive(Clone)]
struct User {
    id: u64,
}

#[tokio::test]
async fn by_an_extension() {
    let by = || key::extension(|user: &User| user.id);
    let request = |id| {
        let mut request = get("/");
        request.extensions_mut().insert(User { id });
        request
    };
    assert!(share(by(), request(1), request(1)).await);
    assert!(!share(by(), request(1), request(2)).await);
    assert_eq!(ask(&limited(one().by(by())), get("/")).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn by_a_closure() {
    let by = || key::from_fn(|head| head.uri.query().map(str::to_owned));
    assert!(share(by(), get("/a?x=1"), get("/b?x=1")).await);
    assert!(!share(by(), get("/a?x=1"), get("/a?x=2")).await);
    assert_eq!(ask(&limited(one().by(by())), get("/a")).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn by_an_extractor_that_is_shared() {
    let by: Arc<dyn KeyExtractor> = Arc::new(key::path());
    assert!(share(by.clone(), get("/a"), get("/a")).await);
    assert!(!share(by, get("/a"), get("/b")).await);
}

/// CVE-2026-25480 (Litestar) and envoyproxy/ratelimit: parts were concatenated.
#[tokio::test]
async fn parts_of_a_key_are_not_concatenated() {
    let pairs = [(["a:b", "c"], ["a", "b:c"]), (["a", "b_c"], ["a_b", "c"]), (["ab", "c"], ["a", "bc"])];
    for ([one, two], [three, four]) in pairs {
        let by = (key::header("x-one"), key::header("x-two"));
        let first = with(&[("x-one", one), ("x-two", two)]);
        assert!(!share(by.clone(), first.clone(), with(&[("x-one", three), ("x-two", four)])).await);
        assert!(share(by, first.clone(), first).await);
    }
}

#[tokio::test]
async fn limits_of_one_key_do_not_share_a_bucket() {
    let limits = [one().by(key::path()), Limit::new("two", FixedWindow::per_minute(2)).by(key::path())];
    let service = RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default());
    let answer = ask(&service, get("/")).await;
    assert_eq!((answer.remaining_of("one"), answer.remaining_of("two")), (0, 1));
}

#[tokio::test]
async fn a_missing_key_follows_its_policy() {
    let asked = async |missing| {
        let service = limited(one().by(key::header("x-user")).on_missing_key(missing));
        let mut statuses = Vec::new();
        // A request without a key, one with an empty key, and one with a key that has a bucket.
        for request in [get("/"), with(&[("x-user", "")]), get("/"), with(&[("x-user", "ann")])] {
            statuses.push(ask(&service, request).await.status.as_u16());
        }
        statuses
    };
    assert_eq!(asked(OnMissingKey::Reject).await, [400, 400, 400, 200]);
    assert_eq!(asked(OnMissingKey::default()).await, [400, 400, 400, 200]);
    assert_eq!(asked(OnMissingKey::Skip).await, [200, 200, 200, 200]);
    assert_eq!(asked(OnMissingKey::Share).await, [200, 429, 429, 200]);
}

#[tokio::test]
async fn a_skipped_limit_has_no_headers_and_the_others_hold() {
    let skipped = one().by(key::header("x-user")).on_missing_key(OnMissingKey::Skip);
    let limits = [skipped, Limit::new("two", FixedWindow::per_minute(2))];
    let service = RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default());
    let answer = ask(&service, get("/")).await;
    assert_eq!(answer.header("ratelimit-policy"), Some("\"two\";q=2;w=60"));
    assert_eq!(answer.remaining(), 1);
    // If the second limit denies, the first is not charged.
    assert!(!ask(&service, get("/")).await.is_refused());
    assert!(ask(&service, with(&[("x-user", "ann")])).await.is_refused());
}

/// A request that is rejected for a missing key is charged to no other key.
#[tokio::test]
async fn a_missing_key_charges_no_other_limit() {
    let limits = [Limit::new("two", FixedWindow::per_minute(2)), one().by(key::header("x-user"))];
    let service = RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default());
    for _ in 0..3 {
        assert_eq!(ask(&service, get("/")).await.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(ask(&service, with(&[("x-user", "ann")])).await.remaining_of("two"), 1);
}

/// The local stores of Kong and others keep whole keys, so long headers use up their memory.
#[tokio::test]
async fn a_key_as_large_as_a_header_takes_no_more_memory() {
    let bytes_with_keys_of = async |length: usize| {
        // Few enough keys for one table, whose size mainly depends on their number.
        let store = Arc::new(paused_store().max_keys(1_000));
        let limit = Limit::new("two", FixedWindow::per_minute(2)).by(key::header("x-user"));
        let service = RateLimitLayer::builder([limit]).store(store.clone()).build().layer(Hello::default());
        for number in 0..64 {
            // The keys only differ in their last characters.
            let user = format!("{number:0>length$}");
            assert_eq!(ask(&service, with(&[("x-user", &user)])).await.remaining(), 1);
            assert_eq!(ask(&service, with(&[("x-user", &user)])).await.remaining(), 0);
        }
        assert_eq!(store.keys(), 64);
        store.bytes()
    };
    let large = 8 << 10;
    assert!(bytes_with_keys_of(large).await < bytes_with_keys_of(2).await + large, "no long key is stored");
}

#[tokio::test]
async fn a_header_that_is_not_text_is_a_key_like_any_other() {
    let request =
        |bytes: &[u8]| Request::get("/").header("x-user", HeaderValue::from_bytes(bytes).unwrap()).body(()).unwrap();
    assert!(share(key::header("x-user"), request(b"\xff\xfe"), request(b"\xff\xfe")).await);
    assert!(!share(key::header("x-user"), request(b"\xff\xfe"), request(b"\xff\xfd")).await);
}

/// CVE-2025-71399 (Better Auth), Outline 13504, steemit/wallet F14: another spelling of a route, or another parameter,
/// had a new bucket.
#[tokio::test]
async fn no_spelling_of_a_path_evades_a_key_by_route() {
    let inner = Router::new().route("/{code}", route(async || "hello"));
    let app = Router::new().route("/reset/{code}", route(async || "hello")).nest("/api/{version}", inner);
    let app = app.layer(RateLimitLayer::builder([one().by(key::matched_route())]).store(paused_store()).build());
    let status = async |path: &str| {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        ask(&app, request).await.status.as_u16()
    };
    assert_eq!(status("/reset/1").await, 200);
    for path in ["/reset/2", "/reset/1?x=1", "/reset/%31", "/reset/a%2Fb"] {
        assert_eq!(status(path).await, 429, "{path}");
    }
    assert_eq!(status("/api/1/reset").await, 200);
    assert_eq!(status("/api/2/sent").await, 429);
    // Requests that match no route share one bucket. The first one is allowed.
    assert_eq!(status("//reset/1").await, 404);
    for path in ["/reset//1", "/reset/1/", "/Reset/1", "/api/1/2/3", "/"] {
        assert_eq!(status(path).await, 429, "{path}");
    }
}

#[tokio::test]
async fn by_route_and_method() {
    let app = Router::new().route("/a", any(async || "a")).route("/b", any(async || "b"));
    let by = (key::method(), key::matched_route());
    let app = app.layer(RateLimitLayer::builder([one().by(by)]).store(paused_store()).build());
    let status = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).body(axum::body::Body::empty()).unwrap();
        ask(&app, request).await.status.as_u16()
    };
    assert_eq!(status("GET", "/a").await, 200);
    assert_eq!(status("HEAD", "/a").await, 429);
    assert_eq!(status("POST", "/a").await, 200);
    assert_eq!(status("GET", "/b").await, 200);
    assert_eq!(status("GET", "/a").await, 429);
}

/// express-rate-limit 8.3.2: a connection that closes early must be neither free nor partly charged.
#[tokio::test]
async fn a_key_that_is_never_found_charges_nothing() {
    let store = FaultyStore::over(paused_store(), Mode::Works);
    let never = key::from_async_fn(|head| {
        let is_ann = head.header("x-user") == Some("ann");
        async move {
            if is_ann {
                return Some(1);
            }
            std::future::pending().await
        }
    });
    let limits = [Limit::new("two", FixedWindow::per_minute(2)), one().by(never)];
    let service = RateLimitLayer::builder(limits).store(store.clone()).build().layer(Hello::default());
    let mut asking = Box::pin(service.clone().oneshot(get("/")));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(asking.as_mut().poll(&mut context), Poll::Pending));
    drop(asking);
    assert_eq!(store.asked(Operation::Decide), 0);
    let answer = ask(&service, with(&[("x-user", "ann")])).await;
    assert_eq!((answer.remaining_of("two"), answer.remaining_of("one")), (1, 0));
}
