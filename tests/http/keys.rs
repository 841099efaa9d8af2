//! Every key extractor.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use support::faulty_store::{FaultyStore, Mode, Operation};

use axum::Router;
use axum::routing::{any, get as route};
use http::{HeaderValue, Method, Request};
use tower::{Layer, ServiceExt};
use tower_ratelimit::key::{Key, KeyBuf, KeyExtractor};
use tower_ratelimit::{CostTable, FixedWindow, OnMissingKey, key, when};

use crate::service::{
    Hello, builder, from, get, layer, limited, one, panic_message, per_minute, request, serve, visit, with,
};
use crate::store::paused_store;
use support::answer::{ask, statuses};

/// Checks that requests share a bucket with the first if they are in `same`, and not if they are in `others`.
async fn check(
    by: impl KeyExtractor,
    first: Request<()>,
    same: impl IntoIterator<Item = Request<()>>,
    others: impl IntoIterator<Item = Request<()>>,
) {
    let by: Arc<dyn KeyExtractor> = Arc::new(by);
    let all = same.into_iter().map(|request| (request, 429)).chain(others.into_iter().map(|request| (request, 200)));
    for (request, status) in all {
        let case = format!("{first:?} {request:?}");
        assert_eq!(statuses(&limited(one().by(by.clone())), [first.clone(), request]).await, [200, status], "{case}");
    }
}

fn user(name: &str) -> Request<()> {
    with(&[("x-user", name)])
}

/// Returns a request with headers that are not ASCII.
fn bytes(value: &[u8]) -> Request<()> {
    let mut request = get("/");
    for name in ["x-user", "x-cost", "authorization", "content-type"] {
        request.headers_mut().insert(name, HeaderValue::from_bytes(value).unwrap());
    }
    request
}

fn method(name: &str) -> Request<()> {
    Request::builder().method(name).body(()).unwrap()
}

#[derive(Clone)]
struct User {
    id: u64,
}

/// axum-limit key.rs:5: the key was the whole URI, so `?x=1` had a new bucket. GHSA-vpvj-hfh8-388m: HEAD and unknown
/// methods evaded a limit by method.
#[tokio::test]
async fn requests_with_equal_keys_share_a_bucket() {
    check(key::header("X-User"), user("ann"), [user("ann")], [user("Ann"), user("bob")]).await;
    check(key::header("x-user"), bytes(b"\xff\xfe"), [bytes(b"\xff\xfe")], [bytes(b"\xff\xfd")]).await;
    let same = ["/a?x=2", "/a", "/a?", "http://elsewhere.example/a"].map(get);
    check(key::path(), get("/a?x=1"), same, ["/b", "/a/"].map(get)).await;
    check(key::method(), method("GET"), [method("HEAD")], [method("POST"), method("get")]).await;
    check(key::method(), method("HEAD"), [method("GET")], []).await;
    let request = |id| {
        let mut request = get("/");
        request.extensions_mut().insert(User { id });
        request
    };
    let by_extension = || key::extension(|user: &User| user.id);
    check(by_extension(), request(1), [request(1)], [request(2)]).await;
    let by_closure = || key::from_fn(|head| head.uri.query().map(str::to_owned));
    check(by_closure(), get("/a?x=1"), [get("/b?x=1")], [get("/a?x=2")]).await;
    let by: [Arc<dyn KeyExtractor>; 2] = [Arc::new(by_extension()), Arc::new(by_closure())];
    for by in by {
        assert_eq!(ask(&limited(one().by(by)), get("/a")).await.status, 400);
    }
    // CVE-2026-25480 (Litestar) and envoyproxy/ratelimit: parts were concatenated.
    for (one, other) in [(["a:b", "c"], ["a", "b:c"]), (["a", "b_c"], ["a_b", "c"]), (["ab", "c"], ["a", "bc"])] {
        let [first, other] = [one, other].map(|[one, two]| with(&[("x-one", one), ("x-two", two)]));
        check((key::header("x-one"), key::header("x-two")), first.clone(), [first], [other]).await;
    }
}

/// axum_rate_limiter limiter.rs:30: `to_str().unwrap()` on a header of the client.
#[tokio::test]
async fn closures_do_not_see_headers_that_are_not_text() {
    let by = key::from_fn(|head| head.header("x-user").or(head.header("authorization")).map(str::to_owned));
    let limit = one().by(by).cost_by(|head| head.header("x-cost").map_or(1, str::len) as u64);
    assert_eq!(ask(&limited(limit), bytes(b"\xc3\xa4\xff")).await.status, 400);
}

#[test]
fn an_invalid_header_name_is_an_error() {
    assert!(panic_message(|| key::header("x user")).contains("\"x user\" is not a header's name"));
}

#[tokio::test]
async fn unknown_methods_share_a_bucket() {
    let service = limited(one().by(key::method()));
    let invented = (0..200).map(|number| method(&format!("INVENTED{number}")));
    assert_eq!(statuses(&service, invented).await.iter().filter(|status| **status == 200).count(), 1);
    assert_eq!(statuses(&service, ["get", "PURGE", "_OTHER"].map(method)).await, [429; 3]);
    // HEAD shares the bucket of GET.
    for standard in ["GET", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"] {
        assert_eq!(statuses(&service, [standard; 2].map(method)).await, [200, 429], "{standard}");
    }
}

#[tokio::test]
async fn an_override_of_unknown_methods_applies_to_all_of_them() {
    let limits = layer(one().by(key::method()).overridable());
    limits.limit("one").unwrap().set_override("_OTHER", FixedWindow::per_minute(3), None).await.unwrap();
    let service = limits.layer(Hello::default());
    for (name, left) in [("PURGE", 2), ("LINK", 1), ("PURGE", 0), ("POST", 0)] {
        assert_eq!(ask(&service, method(name)).await.remaining(), left, "{name}");
    }
}

#[tokio::test]
async fn alternatives_of_an_asynchronous_key_are_named_like_those_of_others() {
    let later = key::from_async_fn(|head| {
        let user = head.header("x-user").map(str::to_owned);
        async move { user }
    });
    let limits = layer(one().by(later.or(key::header("x-team"))).overridable());
    let overrides = limits.limit("one").unwrap();
    overrides.set_override(key::first("ann"), FixedWindow::per_minute(3), None).await.unwrap();
    overrides.set_override(key::second("ann"), FixedWindow::per_minute(5), None).await.unwrap();
    let service = limits.layer(Hello::default());
    assert_eq!(ask(&service, user("ann")).await.remaining(), 2);
    assert_eq!(ask(&service, with(&[("x-team", "ann")])).await.remaining(), 4);
}

/// Conditions and tables of costs name methods of the server's choice.
#[tokio::test]
async fn conditions_and_costs_know_methods_of_any_name() {
    let purge = || Method::from_bytes(b"PURGE").unwrap();
    let purges = per_minute("purges", 20).when(when::method(purge()));
    let costs = CostTable::new().route(purge(), "/", 10);
    let service = serve(builder(purges).costs(costs));
    for (name, standing) in [
        ("PURGE", Some("\"purges\";r=10;t=60")),
        ("LINK", None),
        ("purge", None),
        ("PURGE", Some("\"purges\";r=0;t=60")),
    ] {
        assert_eq!(ask(&service, method(name)).await.header("ratelimit"), standing, "{name}");
    }
}

#[tokio::test]
async fn limits_of_one_key_do_not_share_a_bucket() {
    let answer = ask(&limited([one().by(key::path()), per_minute("two", 2).by(key::path())]), get("/")).await;
    assert_eq!((answer.remaining_of("one"), answer.remaining_of("two")), (0, 1));
}

#[tokio::test]
async fn a_missing_key_follows_its_policy() {
    for (missing, expected) in [
        (OnMissingKey::Reject, [400, 400, 400, 200]),
        (OnMissingKey::default(), [400, 400, 400, 200]),
        (OnMissingKey::Skip, [200, 200, 200, 200]),
        (OnMissingKey::Share, [200, 429, 429, 200]),
    ] {
        let service = limited(one().by(key::header("x-user")).on_missing_key(missing));
        assert_eq!(statuses(&service, [get("/"), user(""), get("/"), user("ann")]).await, expected);
    }
}

#[tokio::test]
async fn a_skipped_limit_has_no_headers_and_the_others_hold() {
    let skipped = one().by(key::header("x-user")).on_missing_key(OnMissingKey::Skip);
    let service = limited([skipped, per_minute("two", 2)]);
    let answer = ask(&service, get("/")).await;
    assert_eq!((answer.header("ratelimit-policy"), answer.remaining()), (Some("\"two\";q=2;w=60"), 1));
    assert_eq!(statuses(&service, [get("/"), user("ann")]).await, [200, 429]);
}

/// A request that is rejected for a missing key is charged to no other key.
#[tokio::test]
async fn a_missing_key_charges_no_other_limit() {
    let service = limited([per_minute("two", 2), one().by(key::header("x-user"))]);
    assert_eq!(statuses(&service, ["/"; 3].map(get)).await, [400; 3]);
    assert_eq!(ask(&service, user("ann")).await.remaining_of("two"), 1);
}

/// The local stores of Kong and others keep whole keys, so long headers use up their memory.
#[tokio::test]
async fn a_key_as_large_as_a_header_takes_no_more_memory() {
    let bytes_with_keys_of = async |length: usize| {
        // Few enough keys for one table, whose size mainly depends on their number.
        let store = Arc::new(paused_store().max_keys(1_000));
        let service = serve(builder(one().by(key::header("x-user"))).store(store.clone()));
        for number in 0..64 {
            // The keys only differ in their last characters.
            let request = user(&format!("{number:0>length$}"));
            assert_eq!(statuses(&service, [request.clone(), request]).await, [200, 429]);
        }
        assert_eq!(store.keys(), 64);
        store.bytes()
    };
    let large = 8 << 10;
    assert!(bytes_with_keys_of(large).await < bytes_with_keys_of(2).await + large, "no long key is stored");
}

/// CVE-2025-71399 (Better Auth), Outline 13504, steemit/wallet F14: another spelling of a route, or another parameter,
/// had a new bucket.
#[tokio::test]
async fn no_spelling_of_a_path_evades_a_key_by_route() {
    let inner = Router::new().route("/{code}", route(async || "hello"));
    let app = Router::new().route("/reset/{code}", route(async || "hello")).nest("/api/{version}", inner);
    let app = app.layer(layer(one().by(key::matched_route())));
    for (path, status) in [
        ("/reset/1", 200),
        ("/reset/2", 429),
        ("/reset/1?x=1", 429),
        ("/reset/%31", 429),
        ("/reset/a%2Fb", 429),
        ("/api/1/reset", 200),
        ("/api/2/sent", 429),
        // Requests that match no route share one bucket. The first one is allowed.
        ("//reset/1", 404),
        ("/reset//1", 429),
        ("/reset/1/", 429),
        ("/Reset/1", 429),
        ("/api/1/2/3", 429),
        ("/", 429),
    ] {
        assert_eq!(visit(&app, &format!("GET {path}")).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn by_route_and_method() {
    let app = Router::new().route("/a", any(async || "a")).route("/b", any(async || "b"));
    let app = app.layer(layer(one().by((key::method(), key::matched_route()))));
    let requests = ["GET /a", "HEAD /a", "POST /a", "GET /b", "GET /a"].map(request);
    assert_eq!(statuses(&app, requests).await, [200, 429, 200, 200, 429]);
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
    let service = serve(builder([per_minute("two", 2), one().by(never)]).store(store.clone()));
    let mut asking = Box::pin(service.clone().oneshot(get("/")));
    assert!(matches!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    drop(asking);
    assert_eq!(store.asked(Operation::Decide), 0);
    let answer = ask(&service, user("ann")).await;
    assert_eq!((answer.remaining_of("two"), answer.remaining_of("one")), (1, 0));
}

/// express-rate-limit: `pk` was a hash of the address, which can be reversed by trying all addresses.
#[tokio::test]
async fn headers_do_not_depend_on_the_client() {
    let service = limited(one().by(key::peer_ip()));
    for _ in 0..2 {
        let [one, other] = [ask(&service, from("192.0.2.1")).await, ask(&service, from("198.51.100.7")).await];
        assert_eq!((&one.headers, one.all("ratelimit")), (&other.headers, vec!["\"one\";r=0;t=60"]));
    }
}

/// throttle-kit backend.rs:202, axum-governor: debug output contained the key.
#[test]
fn debug_output_hides_the_key() {
    let mut key = KeyBuf::default();
    "sk-ann".write(&mut key);
    let shown = format!("{key:?}");
    assert!(!shown.contains("sk-ann") && !shown.contains("115, 107, 45"), "{shown}");
}
