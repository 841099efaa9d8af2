//! The contents of explanations.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use serde_json::json;
use tower_ratelimit::explain::{Conclusion, Explanation, LimitExplanation, LimitStatus};
use tower_ratelimit::key::{KeyError, KeyExtractor, TrustedProxies};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    AddressList, FixedWindow, KeyList, LeakyBucketQueue, Limit, Limiter, ListAction, OnMissingKey, Penalty,
    RateLimitLayer, RequestHead, TokenBucket, key,
};

use crate::service::{builder, from, get, layer, per_day, per_hour, with};
use crate::store::paused_store;

async fn explain(layer: &RateLimitLayer, request: &Request<()>) -> Explanation {
    layer.explain(&RequestHead::of(request)).await
}

/// Returns the text of an explanation, with `#` for each fingerprint, which depends on the secret of the store.
async fn text(layer: &RateLimitLayer, request: &Request<()>) -> String {
    let explanation = explain(layer, request).await;
    let applied = explanation.limits.iter().filter_map(LimitExplanation::applied);
    applied.fold(explanation.to_string(), |text, applied| text.replace(&applied.fingerprint, "#"))
}

#[tokio::test]
async fn each_limit_has_a_line_that_says_whether_it_applies_and_why() {
    let limits = layer([
        Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip()),
        per_hour("posts", 5).when(when::method(Method::POST)),
        per_day("users", 100).by(key::header("x-user")).on_missing_key(OnMissingKey::Skip),
        per_day("carts", 100).by(key::cookie("cart")).on_missing_key(OnMissingKey::Share),
        per_day("trial", 1).cost_by(|_| 2).shadow(),
        per_day("guests", 9).when(when::from_fn(|head| head.header("x-user").is_none()).label("client is a guest")),
    ]);
    assert_eq!(
        text(&limits, &from("2001:db8::7")).await,
        "\
allowed, decided by the store (memory)
  burst: allowed, 19 of 20 left, cost 1, reset after 100 ms, by peer address 2001:db8::/64, \
fingerprint #
  posts: does not apply: requires method is POST
  users: does not apply: the client did not send the key, by header x-user (missing)
  carts: allowed, 99 of 100 left, cost 1, reset after 1 day, in the bucket of requests without a key: the client did \
not send the key, by cookie cart (missing), fingerprint #
  trial: would deny, but is not enforced, 1 of 1 left, cost 2, fingerprint #
  guests: allowed, 8 of 9 left, cost 1, reset after 1 day, fingerprint #"
    );
}

#[tokio::test]
async fn the_descriptors_of_rules_files_are_named_by_their_paths() {
    let extractors = Extractors::new().register("path", key::path());
    let rules = rules::from_yaml(
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
        &extractors,
    );
    let limits = layer(rules.unwrap());
    let mut request = from("192.0.2.7");
    *request.uri_mut() = "/login".parse().unwrap();
    assert_eq!(
        text(&limits, &request).await,
        "\
allowed, decided by the store (memory)
  login (path=/login > remote_address): allowed, 1 of 2 left, cost 1, reset after 1 hour, by peer address 192.0.2.7, \
fingerprint #
  visits (remote_address): does not apply: replaced by another limit
  shop.header.x-plan_p* (header.x-plan=p*): does not match the request"
    );
}

#[tokio::test]
async fn lists_are_explained_before_limits() {
    let limits = builder(per_hour("all", 1))
        .always_reject(when::header("x-bot", "yes"))
        .never_limit(AddressList::new(key::peer_ip(), ["192.0.2.0/24", "198.51.100.7"]))
        .never_limit(KeyList::new(key::header("x-user"), ["ann", "bob"]))
        .build();
    let exempt = explain(&limits, &from("192.0.2.7")).await;
    assert_eq!(
        exempt.to_string(),
        "\
exempt by never_limit, without a decision of the limits
  always_reject does not match: requires header x-bot is \"yes\"
  never_limit matches: requires address is in a list of 2 networks
  never_limit does not match: requires key is in a list of 2 keys
  all: not reached"
    );
    assert!(exempt.is_allowed());
    let listed = explain(&limits, &with(&[("x-bot", "yes")])).await;
    assert!(matches!(listed.conclusion, Conclusion::Listed { .. }), "{listed}");
    assert!(!listed.is_allowed());
}

#[tokio::test]
async fn the_limit_that_rejects_a_request_without_a_key_is_named() {
    let one = per_hour("one", 1);
    let by = key::header("x-user").or(key::peer_ip());
    let limits = layer([one, per_hour("users", 1).by(by), per_hour("all", 9)]);
    let explanation = explain(&limits, &with(&[("x-user", "a"), ("x-user", "b")])).await;
    assert!(matches!(explanation.conclusion, Conclusion::MissingKey { error: KeyError::Ambiguous }), "{explanation}");
    assert!(matches!(explanation.limits[1].status, LimitStatus::Rejects { error: KeyError::Ambiguous, .. }));
    // The ambiguous key is the first of the two.
    assert_eq!(explanation.limits[1].key[0].name(), "header x-user");
    assert_eq!(explanation.limits[0].applied().unwrap().outcome, None);
    assert!(explanation.limits[1].denies() && !explanation.limits[0].denies());
    assert!(explanation.limits[2].applied().is_some(), "those behind it are explained, too: {explanation}");
    assert!(!explanation.is_allowed());
}

#[tokio::test]
async fn a_rejection_without_a_key_names_the_reason() {
    let by: [(Arc<dyn KeyExtractor>, _); 3] = [
        (Arc::new(key::header("x-user")), "the client did not send the key"),
        (Arc::new(key::peer_ip()), "the server does not provide the key"),
        (Arc::new(key::extension(|user: &User| user.0)), "the request lacks the extension of the key"),
    ];
    for (by, reason) in by {
        let [all, later, users] = ["all", "later", "users"].map(|name| per_hour(name, 9));
        let later = later.by(key::from_async_fn(|_| async { Some(7) }));
        let limits = RateLimitLayer::builder([all, later, users.by(by)]).cost(5).build();
        let text = text(&limits, &get("/")).await;
        let expected = format!(
            "\
rejected: {reason}, without a decision of the limits
  all: not decided, cost 5, fingerprint #
  later: not reached
  users: rejects the request: {reason}, by "
        );
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[tokio::test]
async fn outcomes_are_described_in_words() {
    let one = || per_hour("one", 1);
    let penalty = Penalty::after(1, Duration::from_secs(60)).locked_out_for(Duration::from_secs(7_200));
    for (limit, used, cost, conclusion, outcome) in [
        (
            one(),
            1,
            1,
            "denied, retry after 1 hour",
            "denied, retry after 1 hour, 0 of 1 left, cost 1, reset after 1 hour",
        ),
        (one(), 0, 2, "denied: the cost exceeds the capacity", "denied, 1 of 1 left, cost 2"),
        (one().shadow(), 1, 1, "allowed", "would deny, but is not enforced, retry after 1 hour, 0 of 1 left, cost 1"),
        (one().soft(100), 1, 1, "allowed", "allowed within the overage, 0 of 1 left, cost 1, reset after 1 hour"),
        (
            Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(9)),
            2,
            1,
            "allowed after a delay of 2 seconds",
            "allowed after a delay of 2 seconds, 7 of 10 left, cost 1, reset after 3 seconds",
        ),
        (
            one().penalty(penalty),
            2,
            1,
            "denied, retry after 2 hours",
            "denied, retry after 2 hours, locked out by a penalty, 0 of 1 left, cost 1",
        ),
    ] {
        let expected = format!("{conclusion}, decided by the store (memory)\n  {}: {outcome}", limit.name());
        let limiter = Limiter::builder(limit).store(paused_store()).build();
        for _ in 0..used {
            let _ = limiter.acquire("ann", 1).await.unwrap();
        }
        let explanation = limiter.explain("ann", cost).await;
        assert!(explanation.to_string().starts_with(&expected), "{explanation}\n{expected}");
        assert_eq!(explanation.limits[0].denies(), conclusion.starts_with("denied"), "{explanation}");
        assert_eq!(explanation.is_allowed(), conclusion.starts_with("allowed"), "{explanation}");
    }
}

#[tokio::test]
async fn few_of_many_rules_that_do_not_match_are_listed() {
    let descriptors = (0..12).map(|number| {
        format!("- {{ key: method, value: M{number}, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}\n")
    });
    let yaml = format!("domain: shop\ndescriptors:\n{}", descriptors.collect::<String>());
    let text = text(&layer(rules::from_yaml(&yaml, &Extractors::new()).unwrap()), &get("/")).await;
    assert_eq!(text.matches(": does not match the request").count(), 10, "{text}");
    assert!(text.ends_with("\n  2 more limits do not match the request"), "{text}");
}

#[derive(Clone)]
struct User(&'static str);

#[tokio::test]
async fn keys_are_named_by_their_extractors() {
    let later = key::from_async_fn(|_| async { Some(7) });
    let by: [(Arc<dyn KeyExtractor>, _); 9] = [
        (Arc::new(key::peer_ip()), "peer address 192.0.2.7"),
        (Arc::new(key::peer_ip().ipv4_prefix(24)), "peer address 192.0.2.0/24"),
        (Arc::new(TrustedProxies::hops(1).x_forwarded_for()), "client address 198.51.100.7"),
        (Arc::new(key::header("x-forwarded-for")), "header x-forwarded-for 198.51.100.7"),
        (Arc::new(key::query("user")), "query user ann"),
        (Arc::new(key::extension(|user: &User| user.0)), "extension User ann"),
        (Arc::new(key::method()), "method GET"),
        (Arc::new(key::from_fn(|_| Some("ann"))), "key ann"),
        // The first alternative is not known before it is looked up.
        (Arc::new(later.or(key::peer_ip())), "key (looked up)"),
    ];
    let mut request = from("192.0.2.7");
    *request.uri_mut() = "/?user=ann".parse().unwrap();
    request.headers_mut().insert("x-forwarded-for", "198.51.100.7".parse().unwrap());
    request.extensions_mut().insert(User("ann"));
    for (by, expected) in by {
        let limits = layer([per_hour("all", 9).by(by)]);
        let explanation = explain(&limits, &request).await.reveal_keys();
        assert_eq!(explanation.limits[0].key[0].to_string(), expected);
    }
}

#[tokio::test]
async fn conditions_show_no_credentials() {
    for name in ["authorization", "cookie", "x-api-key", "x-password", "x-secret", "x-session", "x-bypass-token"] {
        let limit = per_hour("all", 9).when(when::header(name, "s3cr3t"));
        let text = text(&layer(limit), &get("/")).await;
        assert!(text.contains(name) && !text.contains("s3cr3t"), "{text}");
    }
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
        per_hour("parts", 9).by(by),
        per_hour("later", 9).by(later),
        per_hour("either", 9).by(key::peer_ip().or(key::header("x-api-key"))),
        per_hour("users", 9).by(key::extension(|user: &String| user.clone())),
    ]);
    let mut request = with(&[("x-api-key", secret), ("cookie", "session=s3cr3t")]);
    *request.uri_mut() = "/?token=s3cr3t".parse().unwrap();
    request.extensions_mut().insert(secret.to_owned());
    let explanation = explain(&limits, &request).await;
    let shown = [explanation.to_string(), format!("{explanation:?}"), serde_json::to_string(&explanation).unwrap()];
    assert!(!shown.concat().contains(secret), "{shown:#?}");
    assert_eq!(serde_json::to_value(&explanation).unwrap()["limits"][0]["key"][0]["hidden"], true);
    // Four parts, and one of each of the other limits.
    assert_eq!(explanation.to_string().matches('#').count(), 7, "{explanation}");
    assert_eq!(explanation.reveal_keys().to_string().matches(secret).count(), 7);
}

#[tokio::test]
async fn an_explanation_serializes_to_json() {
    let limits = layer([
        Limit::new("burst", TokenBucket::per_second(10)).by(key::peer_ip()),
        per_hour("posts", 5).when(when::method(Method::POST)),
    ]);
    let explanation = explain(&limits, &from("192.0.2.7")).await;
    let fingerprint = &explanation.limits[0].applied().unwrap().fingerprint;
    assert_eq!(fingerprint.len(), 32);
    assert_eq!(
        serde_json::to_value(&explanation).unwrap(),
        json!({
            "conclusion": { "result": "allowed", "delay_seconds": 0.0 },
            "decided_by": "memory",
            "store": "memory",
            "store_error": null,
            "at_seconds": 1_767_225_600.0,
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
                        "delay_seconds": 0.0,
                        "retry_after_seconds": null,
                        "remaining": 9,
                        "more_after_seconds": 0.1,
                        "reset_after_seconds": 0.1,
                        "uses_overage": false,
                        "debt": 0,
                        "locked_out": false,
                    },
                },
                {
                    "name": "posts",
                    "rule": null,
                    "condition": "method is POST",
                    "key": [],
                    "status": "condition_not_met",
                },
            ],
        })
    );
}

#[tokio::test]
async fn the_capacity_is_that_of_the_request_and_its_key() {
    let daily = per_day("daily", 10)
        .by(key::header("x-user"))
        .size_when(when::header("x-plan", "pro"), FixedWindow::per_day(50))
        .overridable();
    let limits = layer([daily]);
    let overrides = limits.limit("daily").unwrap();
    overrides.set_override("bob", FixedWindow::per_day(7), None).await.unwrap();
    for (headers, expected) in [
        (&[("x-user", "ann")][..], 10),
        (&[("x-user", "ann"), ("x-plan", "pro")], 50),
        (&[("x-user", "bob")], 7),
        (&[("x-user", "bob"), ("x-plan", "pro")], 7),
    ] {
        let explanation = explain(&limits, &with(headers)).await;
        let applied = explanation.limit("daily").unwrap().applied().unwrap().clone();
        assert_eq!((applied.capacity, applied.outcome.unwrap().remaining()), (expected, expected - 1), "{headers:?}");
    }
}

#[tokio::test]
async fn a_limiter_without_limits_explains_that_none_applies() {
    let explanation = Limiter::new([]).explain("key", 1).await;
    assert_eq!(explanation.to_string(), "allowed, no limit applies");
    assert_eq!(text(&layer([]), &get("/")).await, "allowed, no limit applies");
}

#[tokio::test]
async fn explaining_reports_no_events() {
    let limits = RateLimitLayer::builder([per_hour("trial", 1).shadow()])
        .always_reject_with(ListAction::Shadow, when::path_prefix("/"))
        .observe(|event| panic!("{event:?} was reported"))
        .cost(2)
        .build();
    assert!(explain(&limits, &get("/")).await.lists[0].matches);
}

#[tokio::test]
async fn explaining_creates_no_keys_in_memory() {
    let store = Arc::new(paused_store());
    let limits = RateLimitLayer::builder([per_hour("all", 8).by(key::peer_ip())]).store(store.clone()).build();
    for _ in 0..10 {
        let _ = explain(&limits, &from("192.0.2.7")).await;
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
