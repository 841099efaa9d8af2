//! The contents of explanations.

use http::{Method, Request};
use serde_json::json;
use tower_ratelimit::explain::{Conclusion, LimitStatus};
use tower_ratelimit::key::{KeyError, KeyExtractor};
use tower_ratelimit::rules::{Extractors, Rules};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    AddressList, FixedWindow, Limit, Limiter, OnMissingKey, RateLimitLayer, RequestHead, TokenBucket, key,
};

use crate::service::{from, get, with};
use crate::store::paused_store;

fn layer(limits: impl IntoIterator<Item = Limit>) -> RateLimitLayer {
    RateLimitLayer::builder(limits).store(paused_store()).build()
}

async fn text(layer: &RateLimitLayer, request: &Request<()>) -> String {
    layer.explain(&RequestHead::of(request)).await.to_string()
}

#[tokio::test]
async fn each_limit_has_a_line_that_says_whether_it_applies_and_why() {
    let limits = layer([
        Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip()),
        Limit::new("posts", FixedWindow::per_hour(5)).when(when::method(Method::POST)),
        Limit::new("users", FixedWindow::per_day(100)).by(key::header("x-user")).on_missing_key(OnMissingKey::Skip),
        Limit::new("carts", FixedWindow::per_day(100)).by(key::cookie("cart")).on_missing_key(OnMissingKey::Share),
        Limit::new("trial", FixedWindow::per_day(1)).cost_by(|_| 2).shadow(),
        Limit::new("guests", FixedWindow::per_day(9))
            .when(when::from_fn(|head| head.header("x-user").is_none()).label("client is a guest")),
    ]);
    assert_eq!(
        text(&limits, &from("2001:db8::7")).await,
        "\
allowed, decided by the store (memory)
  burst: allowed, 19 of 20 left, cost 1, reset after 100ms, by peer address 2001:db8::/64
  posts: does not apply: requires method is POST
  users: does not apply: the client did not send the key, by header x-user (missing)
  carts: allowed, 99 of 100 left, cost 1, reset after 86400s, in the bucket of requests without a key: the client did \
not send the key, by cookie cart (missing)
  trial: would deny, but is not enforced, 1 of 1 left, cost 2
  guests: allowed, 8 of 9 left, cost 1, reset after 86400s"
    );
}

#[tokio::test]
async fn the_descriptors_of_rules_files_are_named_by_their_paths() {
    let rules = Rules::from_yaml(
        "
domain: shop
descriptors:
- key: path
  value: /login
  descriptors:
  - key: remote_address
    rate_limit: { name: login, unit: hour, requests_per_unit: 2, replaces: [{ name: visits }] }
- { key: remote_address, rate_limit: { name: visits, unit: hour, requests_per_unit: 60 } }
- { key: header.x-plan, value: 'p*', rate_limit: { unit: day, requests_per_unit: 9 } }
",
    );
    let extractors = Extractors::new().register("path", key::path());
    let limits = layer(rules.unwrap().limits(&extractors).unwrap());
    let mut request = from("192.0.2.7");
    *request.uri_mut() = "/login".parse().unwrap();
    assert_eq!(
        text(&limits, &request).await,
        "\
allowed, decided by the store (memory)
  login (path=/login > remote_address): allowed, 1 of 2 left, cost 1, reset after 3600s, by peer address 192.0.2.7
  visits (remote_address): does not apply: replaced by another limit
  shop.header.x-plan_p* (header.x-plan=p*): does not match the request"
    );
}

#[tokio::test]
async fn lists_are_explained_before_limits() {
    let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_hour(1))])
        .store(paused_store())
        .always_reject(when::header("x-bot", "yes"))
        .never_limit(AddressList::new(key::peer_ip(), ["192.0.2.0/24", "198.51.100.7"]))
        .build();
    assert_eq!(
        text(&limits, &from("192.0.2.7")).await,
        "\
exempt by never_limit, without a decision of the limits
  always_reject does not match: requires header x-bot is \"yes\"
  never_limit matches: requires address is in a list of 2 networks
  all: not reached"
    );
    let explanation = limits.explain(&RequestHead::of(&with(&[("x-bot", "yes")]))).await;
    assert!(matches!(explanation.conclusion, Conclusion::Listed { .. }), "{explanation}");
}

#[tokio::test]
async fn the_limit_that_rejects_a_request_without_a_key_is_named() {
    let one = Limit::new("one", FixedWindow::per_hour(1));
    let limits = layer([one, Limit::new("users", FixedWindow::per_hour(1)).by(key::header("x-user"))]);
    let explanation = limits.explain(&RequestHead::of(&with(&[("x-user", "a"), ("x-user", "b")]))).await;
    assert!(matches!(explanation.conclusion, Conclusion::MissingKey { error: KeyError::Ambiguous }), "{explanation}");
    assert!(matches!(explanation.limits[1].status, LimitStatus::Rejects { error: KeyError::Ambiguous, .. }));
    assert_eq!(explanation.limits[0].applied().unwrap().outcome, None);
}

#[tokio::test]
async fn credentials_are_hidden_until_they_are_revealed() {
    let secret = "s3cr3t";
    let by = (
        key::header("x-api-key"),
        key::cookie("session"),
        key::query("token"),
        key::from_fn(|head| head.header("x-api-key").map(str::to_owned)),
    );
    let later = key::from_async_fn(|head| {
        let found = head.header("x-api-key").map(str::to_owned);
        async move { found }
    });
    let limits = layer([
        Limit::new("parts", FixedWindow::per_hour(9)).by(by),
        Limit::new("later", FixedWindow::per_hour(9)).by(later),
        Limit::new("either", FixedWindow::per_hour(9)).by(key::peer_ip().or(key::header("x-api-key"))),
        Limit::new("users", FixedWindow::per_hour(9)).by(key::extension(|user: &String| user.clone())),
    ]);
    let mut request = with(&[("x-api-key", secret), ("cookie", "session=s3cr3t")]);
    *request.uri_mut() = "/?token=s3cr3t".parse().unwrap();
    request.extensions_mut().insert(secret.to_owned());
    let explanation = limits.explain(&RequestHead::of(&request)).await;
    let shown = [explanation.to_string(), format!("{explanation:?}"), serde_json::to_string(&explanation).unwrap()];
    assert!(!shown.concat().contains(secret), "{shown:#?}");
    // Four parts, and one of each of the other limits.
    assert_eq!(explanation.to_string().matches('#').count(), 7, "{explanation}");
    assert_eq!(explanation.reveal_keys().to_string().matches(secret).count(), 7);
}

#[tokio::test]
async fn an_explanation_serializes_to_json() {
    let limits = layer([
        Limit::new("burst", TokenBucket::per_second(10)).by(key::peer_ip()),
        Limit::new("posts", FixedWindow::per_hour(5)).when(when::method(Method::POST)),
    ]);
    let explanation = limits.explain(&RequestHead::of(&from("192.0.2.7"))).await;
    let fingerprint = &explanation.limits[0].applied().unwrap().fingerprint;
    assert_eq!(fingerprint.len(), 32);
    assert_eq!(
        serde_json::to_value(&explanation).unwrap(),
        json!({
            "conclusion": { "result": "allowed", "delay": 0.0 },
            "decided_by": { "store": { "name": "memory" } },
            "at": 1_767_225_600.0,
            "lists": [],
            "limits": [
                {
                    "name": "burst",
                    "rule": null,
                    "condition": null,
                    "status": "applies",
                    "key": [{ "name": "peer address", "value": "192.0.2.7", "hidden": false }],
                    "missing_key": null,
                    "fingerprint": fingerprint,
                    "cost": 1,
                    "capacity": 10,
                    "outcome": {
                        "allowed": true,
                        "enforced": true,
                        "delay": 0.0,
                        "retry_after": null,
                        "remaining": 9,
                        "more_after": 0.1,
                        "reset_after": 0.1,
                        "uses_overage": false,
                        "locked_out": false,
                    },
                },
                {
                    "name": "posts",
                    "rule": null,
                    "condition": "method is POST",
                    "status": "condition_not_met",
                },
            ],
        })
    );
}

#[tokio::test]
async fn the_capacity_is_that_of_the_request_and_its_key() {
    let daily = Limit::new("daily", FixedWindow::per_day(10))
        .by(key::header("x-user"))
        .size_when(when::header("x-plan", "pro"), FixedWindow::per_day(50))
        .overridable();
    let limits = layer([daily]);
    let overrides = limits.overrides("daily").unwrap();
    overrides.set("bob", FixedWindow::per_day(7), None).await.unwrap();
    for (headers, expected) in [
        (&[("x-user", "ann")][..], 10),
        (&[("x-user", "ann"), ("x-plan", "pro")], 50),
        (&[("x-user", "bob")], 7),
        (&[("x-user", "bob"), ("x-plan", "pro")], 7),
    ] {
        let explanation = limits.explain(&RequestHead::of(&with(headers))).await;
        let applied = explanation.limit("daily").unwrap().applied().unwrap().clone();
        assert_eq!((applied.capacity, applied.outcome.unwrap().remaining), (expected, expected - 1), "{headers:?}");
    }
}

#[tokio::test]
async fn a_limiter_without_limits_explains_that_none_applies() {
    let explanation = Limiter::new([]).explain("key", 1).await;
    assert_eq!(explanation.to_string(), "allowed, no limit applies");
    assert_eq!(text(&layer([]), &get("/")).await, "allowed, no limit applies");
}

#[tokio::test]
async fn explaining_creates_no_keys_in_memory() {
    let store = std::sync::Arc::new(paused_store());
    let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_hour(8)).by(key::peer_ip())])
        .store(store.clone())
        .build();
    for _ in 0..10 {
        let _ = limits.explain(&RequestHead::of(&from("192.0.2.7"))).await;
    }
    assert_eq!(store.keys(), 0);
}

/// Axum's handlers must be `Send`.
#[test]
fn explanations_can_be_awaited_on_any_thread() {
    fn assert_send(_: impl Future + Send) {}
    let limits = layer([]);
    let request = get("/");
    let head = RequestHead::of(&request);
    assert_send(limits.explain(&head));
    assert_send(Limiter::new([]).explain("key", 1));
}
