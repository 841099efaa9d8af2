//! Bugs of other rate limiters. The other modules contain many more, next to the behaviour that they are about.

use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use support::faulty_store::{FaultyStore, Mode};

use axum::Router;
use axum::body::Body;
use axum::routing::{any, get as route};
use http::{HeaderValue, Request, Response, StatusCode};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{
    FixedWindow, HeaderStyle, Limit, ManualClock, MemoryStore, RateLimit, RateLimitLayer, ResetFormat, TokenBucket, key,
};

use crate::service::{Hello, from, get, with};
use crate::store::{midnight, paused_store};
use support::answer::ask;

fn limited(limit: Limit) -> (RateLimit<Hello>, ManualClock) {
    let clock = midnight();
    let store = MemoryStore::new().clock(clock.clone());
    (RateLimitLayer::builder([limit]).store(store).build().layer(Hello::default()), clock)
}

/// tower_governor lib.rs:125, benwis/tower-governor#65: `Retry-After: 0` for a wait below a second.
#[tokio::test]
async fn retry_after_zero() {
    let (service, _) = limited(Limit::new("fast", TokenBucket::per_second(1_000).burst(1)));
    ask(&service, get("/")).await;
    assert_eq!(ask(&service, get("/")).await.header("retry-after"), Some("1"));
}

/// axum-governor respond.rs:63: a wait of 1.99 s was rounded down to 1, and `t` below a second to 0.
#[tokio::test]
async fn retry_after_floored() {
    let (service, clock) = limited(Limit::new("slow", TokenBucket::new(1, 1, Duration::from_millis(1_990))));
    ask(&service, get("/")).await;
    let refused = ask(&service, get("/")).await;
    assert_eq!(refused.header("retry-after"), Some("2"));
    assert_eq!(refused.standings()[0].get("t"), Some(2));
    clock.advance(Duration::from_millis(1_989));
    let refused = ask(&service, get("/")).await;
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.standings()[0].get("t"), Some(1));
}

/// throttle-kit tower_layer.rs:269: always 1. qdrant#5917, kgateway#4316: the whole window instead of the rest of it.
#[tokio::test]
async fn retry_after_constant() {
    let (service, clock) = limited(Limit::new("hour", FixedWindow::per_hour(1)));
    ask(&service, get("/")).await;
    for (minutes, seconds) in [(0, "3600"), (1, "3540"), (58, "60")] {
        clock.advance(Duration::from_secs(60 * minutes));
        assert_eq!(ask(&service, get("/")).await.header("retry-after"), Some(seconds));
    }
}

/// throttle-kit tower_layer.rs:226, tokio-rate-limit middleware.rs:268, axum_gcra lib.rs:555: a clone was called
/// instead of the service that had been polled ready.
#[tokio::test]
async fn unreadied_clone_called() {
    // A service with a permit for each readiness. It panics if it is called without having been polled ready.
    let inner = || ServiceBuilder::new().concurrency_limit(1).service(Hello::default());
    let looked_up = key::from_async_fn(|_| async { Some(1) });
    let limit = || Limit::new("two", FixedWindow::per_minute(2));
    let layers = [
        RateLimitLayer::builder([limit()]).store(paused_store()).build(),
        RateLimitLayer::builder([limit()]).store(FaultyStore::over(paused_store(), Mode::Works)).build(),
        RateLimitLayer::builder([limit().by(looked_up)]).store(paused_store()).build(),
    ];
    for layer in layers {
        let mut service = layer.layer(inner());
        for expected in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let ready = ServiceExt::<Request<()>>::ready(&mut service).await.unwrap();
            assert_eq!(ready.call(get("/")).await.unwrap().status(), expected);
        }
    }
}

/// tower-rate-limit-redis service.rs:103: `inner.call(request)` ran before the store's decision, so services that spawn
/// or buffer did the work of rejected requests.
#[tokio::test]
async fn inner_service_called_before_the_decision() {
    let inner = Hello::default();
    let layer = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_minute(1))])
        .store(FaultyStore::over(paused_store(), Mode::Works))
        .build();
    let service = layer.layer(inner.clone());
    for _ in 0..5 {
        let mut asking = pin!(service.clone().oneshot(get("/")));
        let calls = inner.calls();
        let pending = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(pending, Poll::Pending));
        assert_eq!(inner.calls(), calls, "there is no decision yet");
        asking.await.unwrap();
    }
    assert_eq!(inner.calls(), 1);
}

/// throttle-kit backend.rs:78: `X-RateLimit-Remaining` contained the used tokens.
#[tokio::test]
async fn remaining_counts_up() {
    let layer = RateLimitLayer::builder([Limit::new("three", FixedWindow::per_minute(3))]).store(paused_store());
    let service = layer.headers([HeaderStyle::XRateLimit(ResetFormat::Seconds)]).build().layer(Hello::default());
    for left in ["2", "1", "0", "0"] {
        assert_eq!(ask(&service, get("/")).await.header("x-ratelimit-remaining"), Some(left));
    }
}

/// tower-resilience layer.rs:160, traefik#13706: Axum applies a layer to each route, and each route had its own state.
/// Tower's own limit, axum#2634: each connection had its own state.
#[tokio::test]
async fn state_rebuilt_per_route() {
    let layer =
        RateLimitLayer::builder([Limit::new("three", FixedWindow::per_minute(3))]).store(paused_store()).build();
    let app = Router::new()
        .route("/a", route(async || "a").post(async || "a"))
        .route("/b", route(async || "b"))
        .nest("/c", Router::new().route("/", route(async || "c")))
        .layer(layer);
    for (path, refused) in [("/a", false), ("/b", false), ("/c", false), ("/a", true), ("/b", true), ("/c", true)] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(ask(&app, request).await.is_refused(), refused, "{path}");
    }
}

/// axum_rate_limiter limiter.rs:30: `to_str().unwrap()` on a header of the client.
#[tokio::test]
async fn non_ascii_header_panics() {
    let limit = Limit::new("one", FixedWindow::per_minute(1))
        .by(key::from_fn(|head| head.header("x-user").or(head.header("authorization")).map(str::to_owned)));
    let (by_closure, _) = limited(limit.clone().cost_by(|head| head.header("x-cost").map_or(1, str::len) as u64));
    let (by_header, _) = limited(limit.by(key::header("x-user")));
    let request = || {
        let mut request = get("/");
        for name in ["x-user", "x-cost", "authorization", "content-type"] {
            request.headers_mut().insert(name, HeaderValue::from_bytes(b"\xc3\xa4\xff").unwrap());
        }
        request
    };
    assert_eq!(ask(&by_closure, request()).await.status, StatusCode::BAD_REQUEST);
    assert!(!ask(&by_header, request()).await.is_refused());
    assert!(ask(&by_header, request()).await.is_refused());
}

/// axum-limit key.rs:5: the key was the whole URI, so `?x=1` had a new bucket.
#[tokio::test]
async fn uri_with_query_is_a_new_bucket() {
    let (service, _) = limited(Limit::new("one", FixedWindow::per_minute(1)).by(key::path()));
    assert!(!ask(&service, get("/a")).await.is_refused());
    for uri in ["/a?x=1", "/a?", "http://elsewhere.example/a"] {
        assert!(ask(&service, get(uri)).await.is_refused(), "{uri}");
    }
}

/// express-rate-limit 8.3.2: a client that closed its connection early was not counted. Here it is charged when its
/// request is forwarded.
#[tokio::test]
async fn early_closed_connection_skips_accounting() {
    let limit = || Limit::new("ten", FixedWindow::per_minute(10));
    let stuck = service_fn(|request: Request<()>| async move {
        if request.uri().path() == "/stuck" {
            std::future::pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let slow = FaultyStore::over(paused_store(), Mode::Works);
    for layer in [
        RateLimitLayer::builder([limit()]).store(paused_store()).build(),
        RateLimitLayer::builder([limit()]).store(slow).build(),
    ] {
        let service = layer.layer(stuck);
        // The request is dropped at the first await, at the second, and so on.
        for polls in 1..=3 {
            let mut asking = Box::pin(service.clone().oneshot(get("/stuck")));
            for _ in 0..polls {
                assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
        }
        assert_eq!(ask(&service, get("/")).await.remaining(), 6);
    }
}

/// express-rate-limit: `pk` was a hash of the address, which can be reversed by trying all addresses.
#[tokio::test]
async fn partition_key_leaks_the_address() {
    let (service, _) = limited(Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip()));
    for _ in 0..2 {
        let [one, other] = [ask(&service, from("192.0.2.1")).await, ask(&service, from("198.51.100.7")).await];
        assert_eq!(one.headers, other.headers, "the headers do not depend on the client");
        let [standing] = &one.standings()[..] else { panic!("the limit is reported once") };
        assert_eq!(standing.parameters.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["r", "t"]);
    }
}

/// axum-governor decide.rs:85, langfuse#14280, Kong, APISIX: a limit was charged although a later one denied.
#[tokio::test]
async fn earlier_limits_charged_on_denial() {
    let limits = [Limit::new("hour", FixedWindow::per_hour(10)), Limit::new("minute", FixedWindow::per_minute(1))];
    let service = RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default());
    for _ in 0..4 {
        assert_eq!(ask(&service, get("/")).await.remaining_of("hour"), 9);
    }
}

/// throttle-kit backend.rs:202, axum-governor: debug output contained the key.
#[test]
fn debug_output_shows_the_key() {
    use tower_ratelimit::key::{Key, KeyBuf};
    let mut key = KeyBuf::default();
    "sk-ann".write(&mut key);
    let shown = format!("{key:?}");
    assert!(!shown.contains("sk-ann") && !shown.contains("115, 107, 45"), "{shown}");
}

/// go-limiter, flask-limiter#62, AspNetCoreRateLimit#209: dates that end in "UTC", fractions and signs.
#[tokio::test]
async fn retry_after_is_not_an_integer() {
    let (service, clock) = limited(Limit::new("one", TokenBucket::new(1, 1, Duration::from_millis(2_500))));
    for _ in 0..40 {
        let answer = ask(&service, get("/")).await;
        if let Some(seconds) = answer.header("retry-after") {
            assert!(seconds.bytes().all(|digit| digit.is_ascii_digit()), "{seconds}");
            assert!((1..=3).contains(&seconds.parse::<u64>().unwrap()));
        }
        clock.advance(Duration::from_millis(333));
    }
}

/// GHSA-vpvj-hfh8-388m: HEAD and unknown methods evaded a limit by method.
#[tokio::test]
async fn head_escapes_the_limit_of_get() {
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by((key::method(), key::matched_route()));
    let app = Router::new()
        .route("/", any(async || "hello"))
        .layer(RateLimitLayer::builder([limit]).store(paused_store()).build());
    let head = |method: &str| Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
    assert!(!ask(&app, head("HEAD")).await.is_refused());
    assert!(ask(&app, head("GET")).await.is_refused());
    assert!(ask(&app, head("HEAD")).await.is_refused());
}

/// CVE-2025-59152 (Litestar) and many others: a client could choose its bucket by a header.
#[tokio::test]
async fn forwarded_for_is_believed() {
    let (service, _) = limited(Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip()));
    let forwarded = |name: &str, value: &str| {
        let mut request = from("192.0.2.1");
        request.headers_mut().extend(with(&[(name, value)]).headers().clone());
        request
    };
    assert!(!ask(&service, forwarded("x-forwarded-for", "198.51.100.1")).await.is_refused());
    for name in ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip"] {
        assert!(ask(&service, forwarded(name, "198.51.100.2")).await.is_refused(), "{name}");
    }
}
