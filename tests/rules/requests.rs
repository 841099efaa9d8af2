//! The buckets of requests, and requests without a key.

use std::future::ready;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use http::{Request, StatusCode};
use tower_ratelimit::key::{self, PeerAddr, TrustedProxies};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{DecisionRecord, RateLimitLayer, Recorder, RequestHead};

use crate::service::{Limited, from, with};

#[test]
fn each_value_has_a_bucket_of_its_own() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    assert!(limited.allows(from("192.0.2.1")));
    assert!(!limited.allows(from("192.0.2.1")));
    assert!(!limited.allows(from("::ffff:192.0.2.1")));
    assert!(limited.allows(from("192.0.2.2")));
}

#[test]
fn a_limit_of_zero_denies_a_single_value() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: remote_address, value: 192.0.2.9, rate_limit: { unit: second, requests_per_unit: 0 } }
- { key: remote_address, value: '2001:db8::1', rate_limit: { unit: second, requests_per_unit: 0 } }
",
    );
    let denied = limited.send(from("192.0.2.9"));
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    let left: Vec<_> = denied.left.iter().map(|(name, left)| (name.as_str(), *left)).collect();
    assert_eq!(left, [("shop.remote_address_192.0.2.9", 0)]);
    assert!(limited.allows(from("192.0.2.90")));
    // An IPv6 address has the bucket of its network of 64 bits, as everywhere.
    assert!(!limited.allows(from("2001:db8::2")));
    assert!(limited.allows(from("2001:db8:0:1::1")));
}

#[test]
fn patterns_match_the_text_of_addresses() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, value: 192.0.2.*, share_threshold: true, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: remote_address, value: '2001:db8:*', rate_limit: { unit: year, requests_per_unit: 0 } }
",
    );
    assert!(limited.allows(from("192.0.2.1")));
    assert!(limited.allows(from("192.0.2.2")));
    assert!(!limited.allows(from("192.0.2.3")));
    assert!(limited.allows(from("192.0.20.3")));
    assert!(!limited.allows(from("2001:db8::7")));
    assert!(limited.allows(from("2001:db9::7")));
}

#[test]
fn values_that_match_a_pattern_share_a_bucket_if_configured() {
    let yaml = |share: bool| {
        format!(
            "
domain: shop
descriptors:
- key: header.file
  value: files/*
  share_threshold: {share}
  rate_limit: {{ unit: year, requests_per_unit: 2 }}
"
        )
    };
    let file = |name: &str| with(&[("file", name)]);
    let shared = Limited::by(&yaml(true));
    assert!(shared.allows(file("files/a")) && shared.allows(file("files/b")));
    assert!(!shared.allows(file("files/c")));
    assert!(shared.allows(file("other/c")));
    let apart = Limited::by(&yaml(false));
    assert!(apart.allows(file("files/a")) && apart.allows(file("files/a")));
    assert!(!apart.allows(file("files/a")));
    assert!(apart.allows(file("files/b")));
}

#[test]
fn a_shared_threshold_keeps_nested_descriptors_apart() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- key: header.a
  value: x*
  share_threshold: true
  descriptors:
  - { key: header.b, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    assert!(limited.allows(with(&[("a", "x1"), ("b", "1")])));
    assert!(limited.allows(with(&[("a", "x2"), ("b", "2")])));
    assert!(!limited.allows(with(&[("a", "x3"), ("b", "1")])));
}

/// Otherwise, a key that proxies send, too, would have no value in requests, and their limits would not apply.
#[test]
fn a_key_of_descriptors_keeps_its_extractor() {
    let keys = ["remote_address", "header.a", "query.b"];
    let extractors = keys.into_iter().fold(Extractors::new(), Extractors::register_descriptor_key);
    let limited = Limited::with(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1, on_missing_key: skip } }
- { key: header.a, rate_limit: { unit: year, requests_per_unit: 1 } }
",
        &extractors,
    );
    assert!(limited.allows(from("2001:db8::1")));
    assert!(!limited.allows(from("2001:db8::2")), "both are in a network of 64 bits");
    assert!(limited.allows(with(&[("a", "x")])));
    assert!(!limited.allows(with(&[("a", "x")])));
}

/// The values of a path of descriptors are separate parts of the key.
#[test]
fn values_of_a_path_are_distinct() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- key: header.a
  descriptors:
  - { key: header.b, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    assert!(limited.allows(with(&[("a", "x"), ("b", "yz")])));
    assert!(limited.allows(with(&[("a", "xy"), ("b", "z")])));
    assert!(!limited.allows(with(&[("a", "x"), ("b", "yz")])));
}

#[test]
fn the_field_key_selects_another_bucket() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- key: method
  value: POST
  rate_limit: { unit: year, requests_per_unit: 1, key: [header.user, query.shop] }
",
    );
    let post = |user: &str, shop: &str| Request::post(format!("/?shop={shop}")).header("user", user).body(()).unwrap();
    assert!(limited.allows(post("ann", "a")));
    assert!(limited.allows(post("bob", "a")));
    assert!(limited.allows(post("ann", "b")));
    assert!(!limited.allows(post("ann", "a")));
    // In any percent-encoding.
    assert!(!limited.allows(post("ann", "%61")));
    // A rule with its own key applies to all requests, so a missing key is rejected.
    assert_eq!(limited.send(Request::post("/?shop=a").body(()).unwrap()).status, StatusCode::BAD_REQUEST);
    // But only requests that the rule matches.
    assert!(limited.allows(with(&[])));
}

#[test]
fn unknown_methods_share_a_bucket_unless_the_file_names_them() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: method, rate_limit: { unit: year, requests_per_unit: 1 } }
- { key: method, value: PURGE, rate_limit: { unit: year, requests_per_unit: 2 } }
- { key: method, value: LI*, rate_limit: { unit: year, requests_per_unit: 3 } }
- { key: method, value: POST, rate_limit: { unit: year, requests_per_unit: 1, key: method } }
",
    );
    let allowed = |methods: &[&str]| {
        let request = |method: &&str| Request::builder().method(*method).body(()).unwrap();
        methods.iter().filter(|method| limited.allows(request(method))).count()
    };
    let invented: Vec<String> = (0..200).map(|number| format!("INVENTED{number}")).collect();
    assert_eq!(allowed(&invented.iter().map(String::as_str).collect::<Vec<_>>()), 1);
    assert_eq!(allowed(&["GET", "HEAD", "PUT", "POST", "POST"]), 3);
    assert_eq!(allowed(&["PURGE", "PURGE", "PURGE"]), 2);
    // A pattern does not give each method a bucket, either.
    assert_eq!(allowed(&["LINK", "LIST", "LIKE", "LIMIT", "LIVE"]), 3);
}

#[test]
fn a_repeated_header_is_a_bad_request_for_every_descriptor_that_reads_it() {
    for policy in ["", ", on_missing_key: skip", ", on_missing_key: share"] {
        let limited = Limited::by(&format!(
            "
domain: shop
descriptors:
- {{ key: header.user, value: ann, rate_limit: {{ unit: year, requests_per_unit: 1{policy} }} }}
- {{ key: header.shop, rate_limit: {{ unit: year, requests_per_unit: 2{policy} }} }}
"
        ));
        assert!(limited.allows(with(&[("user", "ann")])));
        for repeated in [["bob", "ann"], ["ann", "bob"]] {
            let status = |name| limited.send(with(&[(name, repeated[0]), (name, repeated[1])])).status;
            assert_eq!((status("user"), status("shop")), (StatusCode::BAD_REQUEST, StatusCode::BAD_REQUEST));
        }
        // No limit was charged.
        assert!(!limited.allows(with(&[("user", "ann")])));
        assert!(limited.allows(with(&[("user", "bob"), ("shop", "a")])));
        assert!(limited.allows(with(&[("user", "bob"), ("shop", "a")])));
    }
}

#[test]
fn a_repeated_value_is_rejected_if_a_descriptor_with_its_key_has_an_enforced_limit() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: header.user, value: ann, rate_limit: { unit: year, requests_per_unit: 100 } }
- { key: header.team, value: red, descriptors: [{ key: method, rate_limit: { unit: year, requests_per_unit: 100 } }] }
- { key: header.team, value: free }
- { key: header.plan, value: free }
- { key: header.shop, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 100 } }
- { key: query.page, value: login, rate_limit: { unit: year, requests_per_unit: 100 } }
",
    );
    let header = |name| limited.send(with(&[(name, "bob"), (name, "bob")])).status.as_u16();
    assert_eq!(["user", "team", "plan", "shop", "other"].map(header), [400, 400, 200, 200, 200]);
    let query = |query| limited.send(Request::get(query).body(()).expect("a request")).status.as_u16();
    assert_eq!(["/?page=home", "/?page=home&page=cart", "/?a=1&a=2"].map(query), [200, 400, 200]);
}

#[test]
fn a_missing_key_is_skipped_denied_or_shared() {
    let send = |policy: &str| {
        let limited = Limited::by(&format!(
            "
domain: shop
descriptors:
- key: method
  value: GET
  descriptors:
  - key: header.user
    value: vip
  - key: header.user
    rate_limit: {{ unit: year, requests_per_unit: 1{policy} }}
"
        ));
        let post = Request::post("/").body(()).unwrap();
        assert_eq!(limited.send(post).status, StatusCode::OK, "{policy}");
        assert_eq!(limited.send(with(&[("user", "vip")])).status, StatusCode::OK, "{policy}");
        [(); 2].map(|()| limited.send(with(&[])).status.as_u16())
    };
    assert_eq!(send(""), [200, 200]);
    assert_eq!(send(", on_missing_key: skip"), [200, 200]);
    assert_eq!(send(", on_missing_key: reject"), [400, 400]);
    assert_eq!(send(", on_missing_key: share"), [200, 429]);
}

#[test]
fn a_missing_peer_address_is_answered_with_500() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1, on_missing_key: reject } }
",
    );
    assert_eq!(limited.send(with(&[])).status, StatusCode::INTERNAL_SERVER_ERROR);
    // A request without an address might come from the listed one.
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, value: 192.0.2.1, rate_limit: { unit: year, requests_per_unit: 1, on_missing_key: reject } }
",
    );
    assert_eq!(limited.send(with(&[])).status, StatusCode::INTERNAL_SERVER_ERROR);
}

/// Returns the rules of a service behind one proxy.
fn behind_a_proxy(rules: &str) -> Limited {
    let address = || TrustedProxies::hops(1).x_forwarded_for();
    Limited::with(rules, &Extractors::new().register_address("remote_address", address(), 64))
}

#[test]
fn requests_without_a_client_address_are_rejected_by_default() {
    let limited = behind_a_proxy(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    let send = |headers: &[(&str, &str)]| limited.send(with(headers)).status.as_u16();
    assert_eq!([send(&[]), send(&[]), send(&[("x-forwarded-for", "unknown")])], [400, 400, 400]);
    let ann = [("x-forwarded-for", "192.0.2.1")];
    assert_eq!([send(&ann), send(&ann)], [200, 429]);

    // Also by the name of the key, if the extractor is registered as text.
    let text = key::header("x-real-ip");
    let limited = Limited::with(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }
",
        &Extractors::new().register("remote_address", text),
    );
    assert_eq!(limited.send(with(&[])).status, StatusCode::BAD_REQUEST);
}

#[test]
fn a_file_can_skip_or_share_a_limit_without_a_client_address() {
    let rule = |fields: &str| {
        behind_a_proxy(&format!(
            "
domain: shop
descriptors:
- {{ key: remote_address, rate_limit: {{ unit: year, requests_per_unit: 1{fields} }} }}
"
        ))
    };
    let send = |fields: &str| {
        let limited = rule(fields);
        [(); 2].map(|()| limited.send(with(&[])).status.as_u16())
    };
    assert_eq!(send(", on_missing_key: skip"), [200, 200]);
    assert_eq!(send(", on_missing_key: share"), [200, 429]);
    assert_eq!(send(", shadow_mode: true"), [200, 200]);
}

#[test]
fn a_limit_that_does_not_match_rejects_no_request_without_an_address() {
    let limited = behind_a_proxy(
        "
domain: shop
descriptors:
- { key: remote_address, value: 192.0.2.9, rate_limit: { unit: year, requests_per_unit: 0 } }
- key: header.x-user
  value: ann
  descriptors:
  - { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    assert!(limited.allows(with(&[])));
    assert!(limited.allows(with(&[("x-user", "bob")])));
    assert_eq!(limited.send(with(&[("x-user", "ann")])).status, StatusCode::BAD_REQUEST);
}

#[test]
fn the_last_descriptor_of_a_path_rejects_requests_without_an_address() {
    for value in ["", ", value: 192.0.2.1"] {
        for key in ["", ", key: header.x-user"] {
            let limited = Limited::by(&format!(
                "
domain: shop
descriptors:
- key: method
  value: GET
  descriptors:
  - {{ key: remote_address{value}, rate_limit: {{ unit: year, requests_per_unit: 9{key}, on_missing_key: reject }} }}
"
            ));
            let status = limited.send(with(&[("x-user", "ann")])).status;
            assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{value} {key}");
        }
    }
}

/// Without `into_make_service_with_connect_info`, nothing was limited, without an error.
#[test]
fn a_server_that_provides_no_peer_address_does_not_disable_limits_by_it() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }
",
    );
    assert_eq!(limited.send(with(&[])).status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[test]
fn costs_of_a_file_take_precedence() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: method, value: GET, rate_limit: { name: get, unit: year, requests_per_unit: 10, cost: 3 } }
",
    );
    assert_eq!(limited.send(with(&[])).left["get"], 7);
}

#[test]
fn values_of_asynchronous_extractors_are_compared() {
    let later = key::from_async_fn(|head| ready(head.header("user").map(|user| format!("plan of {user}"))));
    let extractors = Extractors::new().register("plan", later);
    let yaml = "
domain: shop
descriptors:
- { key: plan, rate_limit: { name: other, unit: year, requests_per_unit: 9 } }
- { key: plan, value: plan of ann, rate_limit: { name: ann, unit: year, requests_per_unit: 1 } }
";
    let limited = Limited::with(yaml, &extractors);
    assert_eq!(limited.send(with(&[("user", "ann")])).left, [("ann".to_owned(), 0)].into());
    assert_eq!(limited.send(with(&[("user", "bob")])).left, [("other".to_owned(), 8)].into());
    assert_eq!(limited.send(with(&[("user", "eve")])).left, [("other".to_owned(), 8)].into());
    assert!(!limited.allows(with(&[("user", "ann")])));
    assert!(limited.send(with(&[])).left.is_empty());
}

/// Records the names of limits in the order in which decisions report them.
#[derive(Default)]
struct Names(Mutex<Vec<String>>);

impl Recorder for Names {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        self.0.lock().unwrap().extend(decision.limits().map(|limit| limit.name.to_owned()));
    }
}

#[test]
fn limits_in_another_order_than_in_the_file_are_reported_in_theirs() {
    let yaml = "
domain: shop
descriptors:
- { key: header.a, rate_limit: { name: first, unit: year, requests_per_unit: 9 } }
- { key: header.b, rate_limit: { name: second, unit: year, requests_per_unit: 9 } }
";
    let mut limits = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    limits.reverse();
    let names = Arc::new(Names::default());
    let limited = Limited::of_builder(RateLimitLayer::builder(limits).recorder(names.clone()));
    assert!(limited.allows(with(&[("a", "x"), ("b", "x")])));
    assert_eq!(*names.0.lock().unwrap(), ["second", "first"]);
}

#[test]
fn prefixes_are_compared_by_their_own_length() {
    let extractors = Extractors::new().register_address("client", key::peer_ip().ipv6_prefix(48), 48);
    let yaml = "
domain: shop
descriptors:
- { key: client, value: '2001:db8:1:2::3', rate_limit: { unit: second, requests_per_unit: 0 } }
";
    let limited = Limited::with(yaml, &extractors);
    assert!(!limited.allows(from("2001:db8:1:9::9")));
    assert!(limited.allows(from("2001:db8:2:2::3")));
}

#[test]
fn an_address_in_a_file_selects_the_bucket_of_its_extractor() {
    let address = |head: &RequestHead<'_>| head.extensions.get().map(|PeerAddr(peer): &PeerAddr| peer.ip());
    let mapped = move |head: &RequestHead<'_>| match address(head)? {
        IpAddr::V4(address) => Some(address.to_ipv6_mapped()),
        IpAddr::V6(address) => Some(address),
    };
    let new = Extractors::new;
    for (registered, value, near, far) in [
        // Without `register_address`: the extractor of addresses is recognized.
        (new().register("client", key::peer_ip()), "2001:db8:1:2::3", "2001:db8:1:2::9", "2001:db8:1:3::3"),
        (new().register("client", key::peer_ip()), "192.0.2.7", "::ffff:192.0.2.7", "192.0.2.8"),
        (new().register("client", key::peer_ip()), "::ffff:192.0.2.7", "192.0.2.7", "192.0.2.8"),
        (new().register("client", key::peer_ip().ipv4_prefix(24)), "192.0.2.7", "192.0.2.9", "192.0.3.7"),
        // With another prefix than the extractor's, the shorter one counts.
        (new().register_address("client", key::peer_ip(), 48), "2001:db8:1:2::3", "2001:db8:1:9::9", "2001:db8:2:2::3"),
        (
            new().register_address("client", key::peer_ip(), 128),
            "2001:db8:1:2::3",
            "2001:db8:1:2::9",
            "2001:db8:1:3::3",
        ),
        // An extractor of whole addresses.
        (
            new().register_address("client", key::from_fn(address), 64),
            "2001:db8:1:2::3",
            "2001:db8:1:2::9",
            "2001:db8:1:3::3",
        ),
        (new().register_address("client", key::from_fn(mapped), 64), "192.0.2.7", "192.0.2.7", "192.0.2.8"),
        (
            new().register_address("client", key::from_async_fn(move |head| ready(address(head))), 64),
            "2001:db8:1:2::3",
            "2001:db8:1:2::9",
            "2001:db8:1:3::3",
        ),
    ] {
        let yaml = format!(
            "
domain: shop
descriptors:
- {{ key: client, value: '{value}', rate_limit: {{ unit: year, requests_per_unit: 1 }} }}
"
        );
        let limited = Limited::with(&yaml, &registered);
        assert!(limited.allows(from(near)), "{value} {near}");
        assert!(!limited.allows(from(near)), "{value} {near} is not matched");
        assert!(limited.allows(from(far)) && limited.allows(from(far)), "{value} {far} is matched");
        if value != near && !value.contains("ffff") {
            assert!(!limited.allows(from(value)), "{value} has another bucket than {near}");
        }
    }
}

#[tokio::test]
async fn path_is_the_matched_route() {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_ratelimit::RateLimitLayer;

    let yaml = "
domain: shop
descriptors:
- { key: path, value: '/users/{id}', rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let limits = rules::from_yaml(yaml, &Extractors::new()).unwrap();
    let app = Router::new().route("/users/{id}", get(|| async {})).route("/", get(|| async {}));
    let app = app.layer(RateLimitLayer::new(limits));
    let mut answers = Vec::new();
    for path in ["/users/1", "/users/2", "/", "/"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        answers.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    assert_eq!(answers, [200, 429, 200, 200]);
}

#[test]
fn a_soft_limit_allows_more_and_a_shadow_limit_everything() {
    let limited = Limited::by(
        "
domain: shop
descriptors:
- { key: remote_address, rate_limit: { unit: year, requests_per_unit: 2, soft: 50% } }
- { key: method, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 0 } }
",
    );
    for expected in [true, true, true, false] {
        assert_eq!(limited.allows(from("192.0.2.1")), expected);
    }
}
