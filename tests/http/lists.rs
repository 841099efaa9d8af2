//! Lists of clients that are never limited, or always rejected.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::faulty_store::{FaultyStore, Mode, Operation};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Method, Request, Response, StatusCode, Version};
use ipnet::IpNet;
use proptest::prelude::*;
use tower::{Layer, Service};
use tower_ratelimit::key::{self, PeerAddr, TrustedProxies, UnixPeer};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    AddressList, Builder, Event, FixedWindow, HttpOptions, KeyList, Limit, ListAction, OnMissingKey, Permit, RateLimit,
    RateLimitLayer, Reason, RequestHead,
};

use crate::service::{self, Hello, from, with};
use crate::store::paused_store;
use support::answer::{Answer, ask};

/// A limit of one request per day for all clients.
fn one() -> Builder<HttpOptions> {
    RateLimitLayer::builder([Limit::new("one", FixedWindow::per_day(1))]).store(paused_store())
}

fn peers<const N: usize>(cidrs: [&str; N]) -> AddressList {
    AddressList::new(key::peer_ip(), cidrs)
}

/// Returns whether a list contains a request.
fn holds(list: &impl Condition, request: &Request<()>) -> bool {
    list.holds(&RequestHead::of(request))
}

/// An exempt request has no rate limit headers.
#[track_caller]
fn has_no_headers(answer: &Answer) {
    for header in ["ratelimit", "ratelimit-policy", "retry-after", "x-ratelimit-limit"] {
        assert_eq!(answer.header(header), None, "{header}");
    }
}

#[tokio::test]
async fn listed_clients_are_not_sent_to_the_store() {
    let store = FaultyStore::over(paused_store(), Mode::Works);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let by = key::from_fn(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some("all")
    });
    let inner = Hello::default();
    let service = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_day(1)).by(by)])
        .store(store.clone())
        .never_limit(peers(["192.0.2.1"]))
        .always_reject(peers(["192.0.2.2"]))
        .build()
        .layer(inner.clone());
    for _ in 0..3 {
        let exempt = ask(&service, from("192.0.2.1")).await;
        assert_eq!((exempt.status, exempt.body.as_str()), (StatusCode::OK, "hello"));
        has_no_headers(&exempt);
        let refused = ask(&service, from("192.0.2.2")).await;
        assert_eq!((refused.status, refused.body.as_str()), (StatusCode::FORBIDDEN, "The request is not permitted.\n"));
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        has_no_headers(&refused);
    }
    assert_eq!((store.asked(Operation::Decide), asked.load(Ordering::Relaxed), inner.calls()), (0, 0, 3));
    assert_eq!(ask(&service, from("192.0.2.3")).await.remaining(), 0);
    assert_eq!((store.asked(Operation::Decide), asked.load(Ordering::Relaxed), inner.calls()), (1, 1, 4));
    assert!(ask(&service, from("192.0.2.3")).await.is_refused());
}

#[tokio::test]
async fn lists_apply_while_the_store_fails() {
    let service = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_day(1))])
        .store(FaultyStore::new(Mode::FailsAtOnce))
        .never_limit(peers(["192.0.2.1"]))
        .always_reject(peers(["192.0.2.2"]))
        .build()
        .layer(Hello::default());
    assert_eq!(ask(&service, from("192.0.2.1")).await.status, StatusCode::OK);
    assert_eq!(ask(&service, from("192.0.2.2")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(ask(&service, from("192.0.2.3")).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn always_reject_takes_precedence_over_never_limit() {
    let service =
        one().never_limit(peers(["10.0.0.0/8"])).always_reject(peers(["10.1.0.0/16"])).build().layer(Hello::default());
    assert_eq!(ask(&service, from("10.1.2.3")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(ask(&service, from("10.2.2.3")).await.status, StatusCode::OK);

    let blocked = peers(["10.1.0.0/16"]).and(when::not(peers(["10.1.2.3"])));
    let service = one().always_reject(blocked).build().layer(Hello::default());
    assert_eq!(ask(&service, from("10.1.2.3")).await.remaining(), 0);
    assert_eq!(ask(&service, from("10.1.2.4")).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn observers_see_list_matches_also_in_shadow_mode() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let noted = reported.clone();
    let layer = one().observe(move |event| {
        if let Event::ListMatched { action, .. } = event {
            noted.lock().unwrap().push(*action);
        }
    });
    let service = layer
        .always_reject_with(ListAction::Shadow, peers(["192.0.2.0/24"]))
        .always_reject_with(ListAction::TooManyRequests, peers(["192.0.2.2"]))
        .always_reject(peers(["192.0.2.2", "192.0.2.3"]))
        .build()
        .layer(Hello::default());
    assert_eq!(ask(&service, from("192.0.2.1")).await.remaining(), 0);
    assert_eq!(std::mem::take(&mut *reported.lock().unwrap()), [ListAction::Shadow]);
    let refused = ask(&service, from("192.0.2.2")).await;
    assert_eq!((refused.status, refused.body.as_str()), (StatusCode::TOO_MANY_REQUESTS, "Too many requests.\n"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    has_no_headers(&refused);
    assert_eq!(ask(&service, from("192.0.2.3")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(
        *reported.lock().unwrap(),
        [ListAction::Shadow, ListAction::TooManyRequests, ListAction::Shadow, ListAction::Forbidden]
    );
    assert!(ask(&service, from("198.51.100.1")).await.is_refused(), "the allowed request was charged");
    assert_eq!(reported.lock().unwrap().len(), 4, "limits do not report list matches");
}

/// The layer and the route cost inside it check the same lists.
#[tokio::test]
async fn a_list_match_is_reported_once_if_a_route_has_a_cost() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let noted = reported.clone();
    // With a limit that applies, and with none.
    for limits in [vec![Limit::new("one", FixedWindow::per_day(10))], Vec::new()] {
        let noted = noted.clone();
        let limits = RateLimitLayer::builder(limits).store(paused_store()).observe(move |event| {
            if let Event::ListMatched { action, .. } = event {
                noted.lock().unwrap().push(*action);
            }
        });
        let limits = limits.always_reject_with(ListAction::Shadow, peers(["192.0.2.0/24"])).build();
        let service = limits.layer(limits.cost(5).layer(Hello::default()));
        for _ in 0..2 {
            assert_eq!(ask(&service, from("192.0.2.1")).await.status, StatusCode::OK);
            assert_eq!(std::mem::take(&mut *reported.lock().unwrap()), [ListAction::Shadow]);
        }
    }
}

/// As by a handler that sends requests to its own service.
#[tokio::test]
async fn a_list_match_of_each_request_with_the_same_extensions_is_reported() {
    let reported = Arc::new(AtomicUsize::new(0));
    let noted = reported.clone();
    let limits = one().always_reject_with(ListAction::Shadow, peers(["192.0.2.0/24"])).observe(move |event| {
        noted.fetch_add(usize::from(matches!(event, Event::ListMatched { .. })), Ordering::Relaxed);
    });
    let limits = limits.build();
    // From the first cost of a route on, layers look who has reported.
    let _route = limits.cost(0);
    let own = limits.layer(Hello::default());
    let handler = tower::service_fn(move |request: Request<()>| own.clone().call(request));
    ask(&limits.layer(handler), from("192.0.2.1")).await;
    assert_eq!(reported.load(Ordering::Relaxed), 2);
}

/// Only the limits are in shadow mode.
#[tokio::test]
async fn lists_reject_while_limits_are_in_shadow_mode() {
    for layer in [
        one().always_reject(peers(["192.0.2.2"])).shadow().build(),
        one().shadow().always_reject(peers(["192.0.2.2"])).build(),
    ] {
        let service = layer.layer(Hello::default());
        for _ in 0..2 {
            assert_eq!(ask(&service, from("192.0.2.2")).await.status, StatusCode::FORBIDDEN);
            assert_eq!(ask(&service, from("192.0.2.1")).await.status, StatusCode::OK);
        }
    }
}

#[tokio::test]
async fn lists_have_a_rejection_in_every_format() {
    let layer = one()
        .always_reject(when::header("x-plan", "blocked"))
        .always_reject_with(ListAction::TooManyRequests, when::header("x-plan", "late"));
    let service = layer.clone().problem_json().build().layer(Hello::default());
    let problem = ask(&service, with(&[("x-plan", "blocked")])).await;
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        problem.body,
        r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":"The request is not permitted."}"#
    );
    let problem = ask(&service, with(&[("x-plan", "late")])).await;
    assert_eq!(
        problem.body,
        r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"Too many requests."}"#
    );
    has_no_headers(&problem);

    let worded = layer.clone().on_reject(|rejection| {
        assert!(rejection.denied_by().next().is_none());
        Response::new(format!("{:?} {:?}", rejection.reason, rejection.retry_after_seconds()))
    });
    let answer = ask(&worded.build().layer(Hello::default()), with(&[("x-plan", "late")])).await;
    assert_eq!(answer.body, format!("{:?} None", Reason::Listed(ListAction::TooManyRequests)));
    assert_eq!(answer.header("cache-control"), Some("no-store"));

    let service = layer.build().layer(Hello::default());
    for (plan, status) in [("blocked", "7"), ("late", "8")] {
        let mut call = with(&[("x-plan", plan), ("content-type", "application/grpc")]);
        (*call.method_mut(), *call.version_mut()) = (Method::POST, Version::HTTP_2);
        let answer = ask(&service, call).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, Some(status)));
        assert_eq!(answer.header("grpc-retry-pushback-ms"), Some("-1"), "a retry cannot succeed");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        has_no_headers(&answer);
    }
}

/// GHSA-5847-rm3g-23mw (OpenClaw) and CVE-2026-39409 (Hono): `1.2.3.4` and `::ffff:1.2.3.4` were different, so a
/// blocked client could use the other. GHSA-46wh-pxpv-q5gq (express-rate-limit): notations were compared.
#[test]
fn a_mapped_address_is_the_address() {
    for entry in ["192.0.2.1", "192.0.2.0/31", "::ffff:192.0.2.1", "::ffff:c000:201/128", "::ffff:192.0.2.0/127"] {
        let list = peers([entry]);
        for same in ["192.0.2.1", "::ffff:192.0.2.1", "::ffff:c000:201"] {
            assert!(holds(&list, &from(same)), "{entry} {same}");
        }
        for other in ["192.0.2.2", "::ffff:192.0.2.2", "2001:db8::192.0.2.1", "::192.0.2.1", "64:ff9b::192.0.2.1"] {
            assert!(!holds(&list, &from(other)), "{entry} {other}");
        }
    }
}

/// The reverse of CVE-2026-30827 (express-rate-limit): the prefix of a key is not the listed address.
#[test]
fn an_address_entry_matches_exactly_its_network() {
    let behind = TrustedProxies::cidrs(["10.0.0.1"]).x_forwarded_for();
    for bits in [1, 48, 64, 128] {
        let peers = |cidr| AddressList::new(key::peer_ip().ipv6_prefix(bits).ipv4_prefix(8), [cidr]);
        let clients = |cidr| AddressList::new(behind.clone().ipv6_prefix(bits).ipv4_prefix(8), [cidr]);
        for list in [peers("2001:db8::7"), clients("2001:db8::7/128")] {
            assert!(holds(&list, &from("2001:db8::7")), "{bits}");
            for near in ["2001:db8::6", "2001:db8::8", "2001:db8::", "2001:db8:0:1::7"] {
                assert!(!holds(&list, &from(near)), "{bits} {near}");
            }
        }
        for list in [peers("192.0.2.1"), clients("192.0.2.1/32")] {
            assert!(holds(&list, &from("192.0.2.1")) && !holds(&list, &from("192.0.2.2")), "{bits}");
        }
        let all = peers("2001:db8::/64");
        assert!(holds(&all, &from("2001:db8::ffff:0:0:1")) && !holds(&all, &from("2001:db8:0:1::")), "{bits}");
    }
}

/// All headers that a server might trust.
const SPOOFED: [&str; 8] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-original-forwarded-for",
    "client-ip",
];

fn spoofing(peer: &str, said: &str) -> Request<()> {
    let mut request = from(peer);
    for name in SPOOFED {
        let said = if name == "forwarded" { format!("for=\"{said}\"") } else { said.to_owned() };
        request.headers_mut().append(name, said.parse().unwrap());
    }
    request
}

/// CVE-2025-59152 (Litestar), CVE-2026-107271 (Gophish), CVE-2026-108162 (Pingvin) and CVE-2026-76835 (OAuth2 Proxy):
/// headers from any client were trusted.
#[tokio::test]
async fn no_header_puts_a_client_on_a_list_or_takes_it_off() {
    let trusted = || TrustedProxies::cidrs(["10.0.0.0/8"]);
    let lists = |cidr: &str| {
        [
            AddressList::new(key::peer_ip(), [cidr]),
            AddressList::new(trusted().x_forwarded_for(), [cidr]),
            AddressList::new(trusted().forwarded(), [cidr]),
            AddressList::new(trusted().single_valued("cf-connecting-ip"), [cidr]),
        ]
    };
    for (exempt, blocked) in lists("192.0.2.1").into_iter().zip(lists("198.51.100.7")) {
        let service = one().never_limit(exempt).always_reject(blocked).build().layer(Hello::default());
        assert_eq!(ask(&service, spoofing("198.51.100.7", "192.0.2.1")).await.status, StatusCode::FORBIDDEN);
        assert!(!ask(&service, spoofing("198.51.100.8", "192.0.2.1")).await.is_refused());
        assert!(ask(&service, spoofing("198.51.100.8", "192.0.2.1")).await.is_refused(), "the limit applies");
        assert_eq!(ask(&service, spoofing("192.0.2.1", "198.51.100.7")).await.status, StatusCode::OK);
    }
}

/// CVE-2026-110723, -110724 and -110726 (Eclipse ECSP): an address that the client prepended was taken for its own.
#[test]
fn addresses_that_a_client_prepends_are_ignored() {
    let trusted = || TrustedProxies::cidrs(["10.0.0.0/8"]);
    let by = |header: &str, said: &str| {
        let mut request = from("10.0.0.1");
        request.headers_mut().insert(http::HeaderName::try_from(header).unwrap(), said.parse().unwrap());
        request
    };
    let listed = AddressList::new(trusted().x_forwarded_for(), ["192.0.2.1"]);
    assert!(holds(&listed, &by("x-forwarded-for", "192.0.2.1")));
    assert!(!holds(&listed, &by("x-forwarded-for", "192.0.2.1, 198.51.100.7")));
    assert!(!holds(&listed, &by("x-forwarded-for", "192.0.2.1, 198.51.100.7, 10.0.0.2")));
    assert!(!holds(&listed, &by("x-forwarded-for", "192.0.2.1, unknown")), "the resolution ends at the unknown hop");
    let listed = AddressList::new(trusted().forwarded(), ["192.0.2.1"]);
    assert!(!holds(&listed, &by("forwarded", "for=192.0.2.1, for=198.51.100.7")));
    assert!(!holds(&listed, &by("forwarded", "for=\"192.0.2.1, for=198.51.100.7")));
    let listed = AddressList::new(TrustedProxies::hops(1).x_forwarded_for(), ["192.0.2.1"]);
    assert!(!holds(&listed, &by("x-forwarded-for", "192.0.2.1, 198.51.100.7")));
}

#[tokio::test]
async fn a_request_without_an_address_is_on_no_list() {
    let everyone = ["0.0.0.0/0", "::/0"];
    let trusted = TrustedProxies::hops(2).x_forwarded_for();
    for list in [AddressList::new(key::peer_ip(), everyone), AddressList::new(trusted, everyone)] {
        let mut on_a_socket = service::get("/");
        on_a_socket.extensions_mut().insert(UnixPeer);
        assert!(!holds(&list, &on_a_socket) && !holds(&list, &service::get("/")));
    }
    // The limit may still reject the request.
    let limit = |missing| Limit::new("one", FixedWindow::per_day(1)).by(key::peer_ip()).on_missing_key(missing);
    let layer = |missing| {
        RateLimitLayer::builder([limit(missing)]).store(paused_store()).always_reject(peers(everyone)).build()
    };
    let service = layer(OnMissingKey::Skip).layer(Hello::default());
    assert_eq!(ask(&service, service::get("/")).await.status, StatusCode::OK);
    let service = layer(OnMissingKey::Reject).layer(Hello::default());
    assert_eq!(ask(&service, service::get("/")).await.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn lists_are_replaced_while_requests_are_served() {
    let (exempt, blocked) = (peers([]), KeyList::new(key::header("x-api-key"), ["leaked"]));
    let service = one().never_limit(exempt.clone()).always_reject(blocked.clone()).build().layer(Hello::default());
    assert!(!ask(&service, from("192.0.2.1")).await.is_refused());
    assert!(ask(&service, from("192.0.2.1")).await.is_refused());
    exempt.replace(["192.0.2.1"]).unwrap();
    assert!(!ask(&service, from("192.0.2.1")).await.is_refused());
    let error = exempt.replace(["198.51.100.0/24", "192.0.2.1/8"]).unwrap_err().to_string();
    assert!(error.starts_with("the network \"192.0.2.1/8\" has bits beyond its prefix"), "{error}");
    assert!(!ask(&service, from("192.0.2.1")).await.is_refused(), "nothing was replaced");
    exempt.replace(["192.0.2.2"]).unwrap();
    assert!(ask(&service, from("192.0.2.1")).await.is_refused());

    assert_eq!(ask(&service, with(&[("x-api-key", "leaked")])).await.status, StatusCode::FORBIDDEN);
    blocked.replace(["other"]).unwrap();
    assert!(ask(&service, with(&[("x-api-key", "leaked")])).await.is_refused());
    assert_eq!(ask(&service, with(&[("x-api-key", "other")])).await.status, StatusCode::FORBIDDEN);
}

#[test]
fn invalid_networks_are_errors() {
    for wrong in ["example.org", "10.0.0.0/33", "10.0.0.1/8", "", "10.0.0.0/8 "] {
        assert!(AddressList::try_new(key::peer_ip(), ["192.0.2.1", wrong]).is_err(), "{wrong:?}");
    }
}

#[derive(Clone)]
struct User(u64);

#[test]
fn keys_are_compared_as_the_extractor_returns_them() {
    let by_header = KeyList::new(key::header("x-api-key"), ["one", "two"]);
    assert!(holds(&by_header, &with(&[("x-api-key", "two")])));
    for other in ["three", "on", "onetwo", "ONE", "o ne", "\u{3}one"] {
        let mut request = service::get("/");
        let Ok(value) = http::HeaderValue::from_bytes(other.as_bytes()) else { continue };
        request.headers_mut().insert("x-api-key", value);
        assert!(!holds(&by_header, &request), "{other:?}");
    }
    assert!(!holds(&by_header, &service::get("/")), "without the key");
    assert!(!holds(&by_header, &with(&[("x-api-key", "")])), "with an empty one");
    assert!(
        !holds(&by_header, &with(&[("x-api-key", "three"), ("x-api-key", "one")])),
        "the first counts, as for limits"
    );

    let by_user = KeyList::new(key::extension(|user: &User| user.0), [7_u64]);
    let as_user = |id| {
        let mut request = service::get("/");
        request.extensions_mut().insert(User(id));
        request
    };
    assert!(holds(&by_user, &as_user(7)) && !holds(&by_user, &as_user(8)));

    let by_both = KeyList::new((key::header("x-tenant"), key::header("x-user")), [("a:b", "c")]);
    assert!(holds(&by_both, &with(&[("x-tenant", "a:b"), ("x-user", "c")])));
    // CVE-2026-25480 (Litestar): parts were concatenated.
    assert!(!holds(&by_both, &with(&[("x-tenant", "a"), ("x-user", "b:c")])));
}

#[test]
fn an_asynchronous_key_in_a_key_list_is_an_error() {
    let later = || key::from_async_fn(|_| async { Some("key") });
    let error = KeyList::try_new(later(), ["key"]).unwrap_err().to_string();
    assert!(error.starts_with("a list can't have an asynchronous extractor"), "{error}");
    use key::KeyExtractor;
    assert!(KeyList::try_new(key::header("x-api-key").or(later()), ["key"]).is_err());
    assert!(KeyList::try_new((key::path(), later()), [("/", "key")]).is_err());
    let boxed: Arc<dyn KeyExtractor> = Arc::new(later());
    assert!(KeyList::try_new(boxed, ["key"]).is_err());
    assert!(KeyList::try_new(key::header("x-api-key").or(key::path()), ["key"]).is_ok());
}

#[test]
fn debug_output_hides_listed_keys() {
    let list = KeyList::new(key::header("x-api-key"), ["secret"]);
    assert_eq!(format!("{list:?}"), "KeyList { keys: 1, .. }");
}

/// A layer on the router and a cost on a route are one limiter. Neither charges, and the handler still has its permit.
#[tokio::test]
async fn lists_apply_to_routes_with_a_cost() {
    let limits = RateLimitLayer::builder([Limit::new("few", FixedWindow::per_day(5))])
        .store(paused_store())
        .permits()
        .never_limit(peers(["192.0.2.1"]))
        .always_reject(peers(["192.0.2.2"]))
        .build();
    let app = Router::new()
        .route("/report", get(async |permit: Permit| permit.limits().len().to_string()).route_layer(limits.cost(5)))
        .layer(limits);
    let visit = |peer: &str| {
        let mut request = Request::get("/report").body(Body::empty()).unwrap();
        let peer: IpAddr = peer.parse().unwrap();
        request.extensions_mut().insert(PeerAddr((peer, 1).into()));
        request
    };
    for _ in 0..3 {
        let exempt = ask(&app, visit("192.0.2.1")).await;
        assert_eq!((exempt.status, exempt.body.as_str()), (StatusCode::OK, "1"));
        has_no_headers(&exempt);
        assert_eq!(ask(&app, visit("192.0.2.2")).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(ask(&app, visit("192.0.2.3")).await.remaining(), 0);
    assert!(ask(&app, visit("192.0.2.3")).await.is_refused());
}

#[tokio::test]
async fn an_asynchronous_key_of_an_exempt_request_is_not_awaited() {
    let forever = key::from_async_fn(|_| std::future::pending::<Option<u8>>());
    let layer = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_day(1)).by(forever)]).store(paused_store());
    let service: RateLimit<Hello> = layer.never_limit(peers(["192.0.2.1"])).build().layer(Hello::default());
    assert_eq!(ask(&service, from("192.0.2.1")).await.status, StatusCode::OK);
}

fn a_network() -> impl Strategy<Value = IpNet> {
    let near = prop_oneof![Just(0x0a00_0000_u32), Just(0xc000_0200), any::<u32>()];
    let v4 = (near, 8_u32..33)
        .prop_map(|(bits, length)| IpNet::new(IpAddr::from(bits.to_be_bytes()), length as u8).unwrap().trunc());
    let near = prop_oneof![Just(0x2001_0db8_u128 << 96), any::<u128>()];
    let v6 = (near, 16_u32..129)
        .prop_map(|(bits, length)| IpNet::new(IpAddr::from(bits.to_be_bytes()), length as u8).unwrap().trunc())
        // Mapped addresses belong to the other family.
        .prop_filter("it is not mapped", |network| network.addr().to_canonical() == network.addr());
    prop_oneof![v4, v6]
}

proptest! {
    /// Even if networks overlap, the list contains the addresses of each.
    #[test]
    fn a_list_contains_exactly_the_addresses_of_its_networks(networks in prop::collection::vec(a_network(), 0..40), others in prop::collection::vec(a_network(), 1..10)) {
        let list = AddressList::new(key::peer_ip(), networks.iter().map(IpNet::to_string));
        for network in networks.iter().chain(&others) {
            let mut asked = vec![network.network(), network.broadcast()];
            // The addresses before and after the network.
            asked.extend([(network.network(), u128::MAX), (network.broadcast(), 1)].map(|(address, step)| match address {
                IpAddr::V4(address) => IpAddr::from(address.to_bits().wrapping_add(step as u32).to_be_bytes()),
                IpAddr::V6(address) => IpAddr::from(address.to_bits().wrapping_add(step).to_be_bytes()),
            }));
            for address in asked {
                let is_listed = networks.iter().any(|network| network.contains(&address.to_canonical()));
                prop_assert_eq!(holds(&list, &from(&address.to_string())), is_listed, "{} {:?}", address, networks);
            }
        }
    }
}

/// The search is not a scan: 10,000 times the entries take less than 100 times as long.
#[test]
fn a_hundred_thousand_entries_take_little_longer_than_ten() {
    let list = |entries: u32| {
        // Every second address, so that no two networks are merged.
        let cidrs = (0..entries).map(|n| IpAddr::from((0x0a00_0000 + 2 * n).to_be_bytes()).to_string());
        AddressList::new(key::peer_ip(), cidrs)
    };
    // The last entry, which a scan would find last.
    let time = |list: &AddressList, last: &str| {
        let request = from(last);
        let fastest = (0..10).map(|_| {
            let started = Instant::now();
            for _ in 0..100 {
                assert!(holds(list, &request));
            }
            started.elapsed()
        });
        fastest.min().unwrap_or_default().max(Duration::from_nanos(1))
    };
    let (few, many) = (list(10), list(100_000));
    assert!(holds(&many, &from("10.3.13.62")) && !holds(&many, &from("10.3.13.63")), "the last, and none");
    let (few, many) = (time(&few, "10.0.0.18"), time(&many, "10.3.13.62"));
    assert!(many < few * 100, "{few:?} and {many:?}");
}
