//! The policies of limits for requests that the store does not decide.

use http::{Request, StatusCode, Version};
use support::calls::Calls;
use tower::Layer;
use tower_ratelimit::{
    AcquireError, DecidedBy, FixedWindow, HeaderStyle, LeakyBucketQueue, Limit, Limiter, OnMissingKey, OnStoreError,
    RateLimit, RateLimitLayer, ResetFormat, Share, StoreErrorKind, TokenBucket, key,
};

use crate::limited::{EventLog, Hello, LOCALLY, ask, hello, ms, ten, with, without_breaker};
use support::faulty_store::{FaultyStore, Mode};

const FAILING: [Mode; 3] = [Mode::FailsAtOnce, Mode::Fails, Mode::Hangs];

/// Returns a limit of two per day for requests with the header `name`.
fn two(name: &str, policy: OnStoreError) -> Limit {
    let limit = Limit::new(name, FixedWindow::per_day(2)).by(key::header(name));
    limit.on_missing_key(OnMissingKey::Skip).on_store_error(policy)
}

/// Sends a request with these headers to a layer with these limits on a failing store.
async fn status(layer: &RateLimitLayer, names: &[&str]) -> u16 {
    reported(layer, names).await.status.as_u16()
}

async fn reported(layer: &impl Layer<Hello, Service = RateLimit<Hello>>, names: &[&str]) -> EventLog {
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (*name, "ann")).collect();
    ask(&layer.layer(hello()), with(&headers)).await
}

#[tokio::test(start_paused = true)]
async fn a_rejecting_policy_rejects_without_local_charges() {
    for mode in FAILING {
        let limits = [two("a", OnStoreError::Reject), two("b", LOCALLY), two("c", OnStoreError::Allow)];
        let layer = RateLimitLayer::builder(limits).store(FaultyStore::new(mode)).build();
        for names in [&["a", "b", "c"][..], &["a", "b"], &["b", "a"], &["a", "c"], &["a"]] {
            for _ in 0..3 {
                let reported = reported(&layer, names).await;
                assert_eq!(reported.status, StatusCode::SERVICE_UNAVAILABLE, "{names:?}");
                assert_eq!((reported.header("retry-after"), reported.header("ratelimit")), (Some("1"), None));
            }
        }
        assert_eq!([status(&layer, &["b"]).await, status(&layer, &["b"]).await], [200, 200], "it was charged");
        assert_eq!(status(&layer, &["b"]).await, 429);
    }
}

#[tokio::test(start_paused = true)]
async fn limits_with_an_allowing_policy_are_not_decided_locally() {
    for mode in FAILING {
        let limits = [two("a", OnStoreError::Allow), two("b", LOCALLY)];
        let layer = RateLimitLayer::builder(limits).store(FaultyStore::new(mode)).build();
        for left in ["1", "0"] {
            let reported = reported(&layer, &["a", "b"]).await;
            assert_eq!(reported.status, 200);
            assert!(
                reported.header("ratelimit").is_some_and(|reported| reported.starts_with(&format!("\"b\";r={left}"))),
                "{reported:?}"
            );
            assert!(!reported.header("ratelimit").is_some_and(|reported| reported.contains("\"a\"")), "{reported:?}");
        }
        assert_eq!(status(&layer, &["a", "b"]).await, 429);
        for _ in 0..5 {
            let reported = reported(&layer, &["a"]).await;
            assert_eq!((reported.status, reported.header("ratelimit")), (StatusCode::OK, None));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn local_decisions_are_all_or_nothing() {
    for mode in FAILING {
        let layer =
            RateLimitLayer::builder([two("a", LOCALLY), two("b", LOCALLY)]).store(FaultyStore::new(mode)).build();
        assert_eq!([status(&layer, &["a"]).await, status(&layer, &["a"]).await], [200, 200]);
        for _ in 0..3 {
            assert_eq!(status(&layer, &["a", "b"]).await, 429);
        }
        assert_eq!([status(&layer, &["b"]).await, status(&layer, &["b"]).await], [200, 200], "b was charged");
        assert_eq!(status(&layer, &["b"]).await, 429);
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_limit_takes_precedence_over_the_layer() {
    for (layers, own, expected) in [
        (OnStoreError::Reject, OnStoreError::Allow, 200),
        (OnStoreError::Allow, OnStoreError::Reject, 503),
        (LOCALLY, OnStoreError::Reject, 503),
        (OnStoreError::Reject, LOCALLY, 200),
    ] {
        let store = FaultyStore::new(Mode::Fails);
        let layer = RateLimitLayer::builder([two("a", own)]).store(store.clone()).on_store_error(layers).build();
        assert_eq!(status(&layer, &["a"]).await, expected, "{layers:?}, {own:?}");
        // In either order of the calls.
        let layer = RateLimitLayer::builder([two("a", own)]).on_store_error(layers).store(store).build();
        assert_eq!(status(&layer, &["a"]).await, expected, "{layers:?}, {own:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn local_denials_have_the_usual_headers() {
    let layer = RateLimitLayer::builder(Limit::new("two", TokenBucket::per_minute(2)))
        .store(FaultyStore::new(Mode::Fails))
        .headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)])
        .on_store_error(LOCALLY)
        .build();
    for _ in 0..2 {
        assert_eq!(reported(&layer, &[]).await.status, 200);
    }
    let reported = reported(&layer, &[]).await;
    assert_eq!(reported.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(reported.header("retry-after"), Some("30"));
    assert_eq!(reported.header("ratelimit"), Some("\"two\";r=0;t=30"));
    assert_eq!(reported.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(reported.body, "Too many requests: try again in 30 seconds.\n");
}

#[tokio::test(start_paused = true)]
async fn costs_over_the_local_share_are_denied_until_the_store_is_back() {
    let store = FaultyStore::new(Mode::FailsAtOnce);
    let layer = RateLimitLayer::builder([ten()])
        .store(store)
        .on_store_error(OnStoreError::DecideLocally(Share::one_of(4)))
        .build();
    let of = |cost: u64| layer.cost_by(move |_| cost);
    for (cost, expected) in [(3, 503), (10, 503), (11, 429), (2, 200), (3, 503), (1, 429)] {
        let reported = reported(&of(cost), &[]).await;
        assert_eq!(reported.status, expected, "{cost}");
        let waits = reported.header("retry-after");
        match cost {
            11 => assert_eq!(waits, None, "it would never fit"),
            _ if expected == 503 => assert_eq!(waits, Some("1")),
            _ => assert_eq!(waits.is_some(), expected == 429),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_requests_get_a_grpc_status() {
    let ask = async |layer: &RateLimitLayer| {
        let request = Request::post("/a.B/C").version(Version::HTTP_2).header("content-type", "application/grpc");
        let request = request.body(()).expect("a request");
        let reported = crate::limited::ask(&layer.layer(hello()), request).await;
        (
            reported.status.as_u16(),
            reported.header("grpc-status").map(str::to_owned),
            reported.header("grpc-retry-pushback-ms").map(str::to_owned),
        )
    };
    let layer =
        RateLimitLayer::builder(Limit::new("one", TokenBucket::per_minute(1))).store(FaultyStore::new(Mode::Fails));
    // UNAVAILABLE
    assert_eq!(ask(&layer.clone().build()).await, (200, Some("14".to_owned()), Some("1000".to_owned())));
    let layer = layer.on_store_error(LOCALLY).build();
    assert_eq!(ask(&layer).await, (200, None, None));
    // RESOURCE_EXHAUSTED
    assert_eq!(ask(&layer).await, (200, Some("8".to_owned()), Some("60000".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn responses_reveal_nothing_about_the_store() {
    for mode in FAILING {
        for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
            let layer =
                RateLimitLayer::builder([two("a", policy)]).store(FaultyStore::new(mode)).problem_json().build();
            for _ in 0..8 {
                let reported = reported(&layer, &["a"]).await;
                let text = format!("{:?} {}", reported.headers, reported.body);
                for secret in ["redis", "secret", "10.0.0.7", "faulty", "breaker"] {
                    assert!(!text.contains(secret), "{text}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limiter_reports_who_decided() {
    let store = FaultyStore::new(Mode::Works);
    let builder = without_breaker(&store);
    let rejecting = builder.clone().build();
    let decided = async |limiter: &Limiter| {
        let decision = limiter.acquire("key", 1).await;
        decision.map(|decision| (decision.decided_by(), decision.outcomes().len())).map_err(|error| error.kind())
    };
    assert_eq!(decided(&rejecting).await, Ok((DecidedBy::Store, 1)));
    store.set(Mode::Fails);
    assert_eq!(decided(&rejecting).await, Err(StoreErrorKind::Failed));
    let allowing = builder.clone().on_store_error(OnStoreError::Allow).build();
    assert_eq!(decided(&allowing).await, Ok((DecidedBy::Unlimited, 0)));
    assert!(allowing.allows("key", 11).await);
    let deciding = builder.on_store_error(LOCALLY).build();
    for _ in 0..10 {
        assert_eq!(decided(&deciding).await, Ok((DecidedBy::Local, 1)));
    }
    assert!(!deciding.allows("key", 1).await);
    assert!(deciding.allows("another key", 1).await);
}

#[tokio::test(start_paused = true)]
async fn a_local_peek_charges_nothing() {
    let store = FaultyStore::new(Mode::Fails);
    let limiter = without_breaker(&store).on_store_error(LOCALLY).build();
    for _ in 0..20 {
        let decision = limiter.peek("key", 1).await.expect("a decision");
        assert_eq!((decision.decided_by(), decision.outcomes()[0].remaining()), (DecidedBy::Local, 10));
    }
    assert_eq!(limiter.acquire("key", 4).await.expect("a decision").outcomes()[0].remaining(), 6);
    assert_eq!(limiter.peek("key", 1).await.expect("a decision").outcomes()[0].remaining(), 6);
    // The reset that the store did not receive clears the local state.
    assert!(limiter.reset("key").await.is_err());
    assert_eq!(limiter.peek("key", 1).await.expect("a decision").outcomes()[0].remaining(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_wait_follows_the_store_error_policy() {
    let store = FaultyStore::new(Mode::Fails);
    let builder = Limiter::builder(Limit::new("one", TokenBucket::per_second(1))).store(store);
    assert!(matches!(builder.clone().build().wait("key", 1).await, Err(AcquireError::Store(_))));
    let start = tokio::time::Instant::now();
    let local = builder.clone().on_store_error(LOCALLY).build();
    for _ in 0..3 {
        assert_eq!(local.wait("key", 1).await.expect("a decision").decided_by(), DecidedBy::Local);
    }
    assert_eq!(start.elapsed().as_secs(), 2);
    let allowing = builder.on_store_error(OnStoreError::Allow).build();
    assert_eq!(allowing.wait("key", 1).await.expect("a decision").decided_by(), DecidedBy::Unlimited);
    assert_eq!(start.elapsed().as_secs(), 2);
}

/// Requests queue locally, too.
#[tokio::test(start_paused = true)]
async fn a_queue_continues_locally() {
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(2));
    let layer =
        RateLimitLayer::builder([queue]).store(FaultyStore::new(Mode::FailsAtOnce)).on_store_error(LOCALLY).build();
    let service = layer.layer(hello());
    let (one, two, three, four) = tokio::join!(
        ask(&service, Request::new(())),
        ask(&service, Request::new(())),
        ask(&service, Request::new(())),
        ask(&service, Request::new(())),
    );
    assert_eq!([one.after.as_secs(), two.after.as_secs(), three.after.as_secs()], [0, 1, 2]);
    assert_eq!((four.status.as_u16(), four.after), (429, ms(0)));
}
