//! Lists of clients that are never limited, or always rejected.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::faulty_store::{FaultyStore, Mode, Operation};

use axum::Router;
use axum::routing::get;
use http::{Request, Response};
use ipnet::IpNet;
use proptest::prelude::*;
use tower::{Layer, Service};
use tower_ratelimit::key::{self, KeyExtractor, PeerAddr, TrustedProxies, UnixPeer};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    AddressList, Builder, Event, HttpOptions, KeyList, Limit, ListAction, OnMissingKey, Permit, Reason, RequestHead,
};

use crate::service::{self, Hello, KEY, builder, from, grpc, lines, one, per_minute, request, serve, with};
use crate::store::paused_store;
use support::answer::{Answer, ask, statuses};

fn peers<const N: usize>(cidrs: [&str; N]) -> AddressList {
    AddressList::new(key::peer_ip(), cidrs)
}

/// Returns whether a list contains a request.
fn holds(list: &impl Condition, request: &Request<()>) -> bool {
    list.holds(&RequestHead::of(request))
}

/// Checks the status and the body of a response without rate limit headers.
#[track_caller]
fn is_outside_limits(answer: &Answer, status: u16, body: &str) {
    for header in ["ratelimit", "ratelimit-policy", "retry-after", "x-ratelimit-limit"] {
        assert_eq!(answer.header(header), None, "{header}");
    }
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body));
    assert_eq!(answer.header("cache-control"), (body != "hello").then_some("no-store"));
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
    let limits = builder(one().by(by)).store(store.clone());
    let limits = limits.never_limit(peers(["192.0.2.1"])).always_reject(peers(["192.0.2.2"]));
    let service = limits.build().layer(inner.clone());
    for _ in 0..3 {
        is_outside_limits(&ask(&service, from("192.0.2.1")).await, 200, "hello");
        is_outside_limits(&ask(&service, from("192.0.2.2")).await, 403, "The request is not permitted.\n");
    }
    let calls = || (store.asked(Operation::Decide), asked.load(Ordering::Relaxed), inner.calls());
    assert_eq!(calls(), (0, 0, 3));
    assert_eq!(ask(&service, from("192.0.2.3")).await.remaining(), 0);
    assert_eq!(calls(), (1, 1, 4));
    assert!(ask(&service, from("192.0.2.3")).await.is_denied());
}

#[tokio::test]
async fn lists_apply_while_the_store_fails_or_the_limits_are_in_shadow_mode() {
    let failing = builder(one()).store(FaultyStore::new(Mode::FailsAtOnce));
    for (builder, limited) in [(failing, 503), (builder(one()).shadow(), 200)] {
        let service = serve(builder.never_limit(peers(["192.0.2.1"])).always_reject(peers(["192.0.2.2"])));
        let requests = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.3"].map(from);
        assert_eq!(statuses(&service, requests).await, [200, 403, limited, limited]);
    }
    let service = serve(builder(one()).always_reject(peers(["192.0.2.2"])).shadow());
    assert_eq!(statuses(&service, ["192.0.2.2", "192.0.2.1", "192.0.2.1"].map(from)).await, [403, 200, 200]);
}

#[tokio::test]
async fn always_reject_takes_precedence_over_never_limit() {
    let service = serve(builder(one()).never_limit(peers(["10.0.0.0/8"])).always_reject(peers(["10.1.0.0/16"])));
    assert_eq!(statuses(&service, ["10.1.2.3", "10.2.2.3", "10.2.2.3"].map(from)).await, [403, 200, 200]);
    let blocked = peers(["10.1.0.0/16"]).and(when::not(peers(["10.1.2.3"])));
    let service = serve(builder(one()).always_reject(blocked));
    assert_eq!(statuses(&service, ["10.1.2.3", "10.1.2.3", "10.1.2.4"].map(from)).await, [200, 429, 403]);
}

/// Returns a builder and the actions of the list matches that it reports.
fn observed(limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, Arc<Mutex<Vec<ListAction>>>) {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let noted = reported.clone();
    let builder = builder(limits).observe(move |event| {
        if let Event::ListMatched { action, .. } = event {
            noted.lock().unwrap().push(*action);
        }
    });
    (builder.always_reject_with(ListAction::Shadow, peers(["192.0.2.0/24"])), reported)
}

#[tokio::test]
async fn observers_see_list_matches_also_in_shadow_mode() {
    let (builder, reported) = observed(one());
    let service = serve(
        builder
            .always_reject_with(ListAction::TooManyRequests, peers(["192.0.2.2"]))
            .always_reject(peers(["192.0.2.2", "192.0.2.3"])),
    );
    assert_eq!(ask(&service, from("192.0.2.1")).await.remaining(), 0);
    is_outside_limits(&ask(&service, from("192.0.2.2")).await, 429, "Too many requests.\n");
    assert_eq!(ask(&service, from("192.0.2.3")).await.status, 403);
    let (shadow, rejected) = (ListAction::Shadow, ListAction::TooManyRequests);
    let expected = [shadow, shadow, rejected, shadow, ListAction::Forbidden];
    assert!(ask(&service, from("198.51.100.1")).await.is_denied(), "the allowed request was charged");
    assert_eq!(*reported.lock().unwrap(), expected, "limits do not report list matches");
}

/// The layer and the route cost inside it check the same lists, with a limit that applies, and with none.
#[tokio::test]
async fn a_list_match_is_reported_once_if_a_route_has_a_cost() {
    for limits in [vec![per_minute("ten", 10)], Vec::new()] {
        let (builder, reported) = observed(limits);
        let limits = builder.build();
        let service = limits.layer(limits.cost(5).layer(Hello::default()));
        assert_eq!(statuses(&service, ["192.0.2.1"; 2].map(from)).await, [200; 2]);
        assert_eq!(*reported.lock().unwrap(), [ListAction::Shadow; 2]);
    }
}

/// As by a handler that sends requests to its own service.
#[tokio::test]
async fn a_list_match_of_each_request_with_the_same_extensions_is_reported() {
    let (builder, reported) = observed(one());
    let limits = builder.build();
    // From the first cost of a route on, layers look who has reported.
    let _route = limits.cost(0);
    let own = limits.layer(Hello::default());
    let handler = tower::service_fn(move |request: Request<()>| own.clone().call(request));
    ask(&limits.layer(handler), from("192.0.2.1")).await;
    assert_eq!(*reported.lock().unwrap(), [ListAction::Shadow; 2]);
}

#[tokio::test]
async fn lists_have_a_rejection_in_every_format() {
    let plan = |plan| when::header("x-plan", plan);
    let lists = builder(one()).always_reject(plan("blocked"));
    let lists = lists.always_reject_with(ListAction::TooManyRequests, plan("late"));
    let problems = serve(lists.clone().problem_json());
    let closure = serve(lists.clone().on_reject(|rejection| {
        assert!(rejection.denied_by().next().is_none());
        Response::new(format!("{:?} {:?}", rejection.reason, rejection.retry_after_seconds()))
    }));
    let service = serve(lists);
    for (plan, action, grpc_status, status, title, detail) in [
        ("blocked", ListAction::Forbidden, "7", 403, "Forbidden", "The request is not permitted."),
        ("late", ListAction::TooManyRequests, "8", 429, "Too Many Requests", "Too many requests."),
    ] {
        let problem = ask(&problems, with(&[("x-plan", plan)])).await;
        assert_eq!(problem.header("content-type"), Some("application/problem+json"));
        let start = format!(r#"{{"type":"about:blank","title":"{title}","#);
        is_outside_limits(&problem, status, &format!(r#"{start}"status":{status},"detail":"{detail}"}}"#));
        let answer = ask(&closure, with(&[("x-plan", plan)])).await;
        is_outside_limits(&answer, 200, &format!("{:?} None", Reason::Listed(action)));
        let mut call = grpc();
        call.headers_mut().insert("x-plan", plan.parse().unwrap());
        let answer = ask(&service, call).await;
        is_outside_limits(&answer, 200, "");
        assert_eq!(answer.header("grpc-status"), Some(grpc_status));
        assert_eq!(answer.header("grpc-retry-pushback-ms"), Some("-1"), "a retry cannot succeed");
    }
}

/// GHSA-5847-rm3g-23mw (OpenClaw) and CVE-2026-39409 (Hono): `1.2.3.4` and `::ffff:1.2.3.4` were different, so a
/// blocked client could use the other. GHSA-46wh-pxpv-q5gq (express-rate-limit): notations were compared. The reverse of
/// CVE-2026-30827 (express-rate-limit): the prefix of a key is not the listed address.
#[test]
fn an_address_entry_matches_exactly_its_network() {
    let near = &["2001:db8::6", "2001:db8::8", "2001:db8::", "2001:db8:0:1::7"][..];
    let others = &["192.0.2.2", "::ffff:192.0.2.2", "2001:db8::192.0.2.1", "::192.0.2.1", "64:ff9b::192.0.2.1"][..];
    let mapped = &["192.0.2.1", "::ffff:192.0.2.1", "::ffff:c000:201"][..];
    for (entry, same, others) in [
        ("192.0.2.1", mapped, others),
        ("192.0.2.1/32", mapped, others),
        ("192.0.2.0/31", mapped, others),
        ("::ffff:192.0.2.1", mapped, others),
        ("::ffff:c000:201/128", mapped, others),
        ("::ffff:192.0.2.0/127", mapped, others),
        ("2001:db8::7", &["2001:db8::7"], near),
        ("2001:db8::7/128", &["2001:db8::7"], near),
        ("2001:db8::/64", &["2001:db8::ffff:0:0:1"], &["2001:db8:0:1::"]),
    ] {
        let behind = TrustedProxies::cidrs(["10.0.0.1"]).x_forwarded_for();
        let prefixes = [1, 48, 128].iter().flat_map(|bits| {
            [key::peer_ip(), behind.clone()].map(|by| AddressList::new(by.ipv6_prefix(*bits).ipv4_prefix(8), [entry]))
        });
        for list in prefixes.chain([peers([entry])]) {
            same.iter().for_each(|same| assert!(holds(&list, &from(same)), "{entry} {same}"));
            others.iter().for_each(|other| assert!(!holds(&list, &from(other)), "{entry} {other}"));
        }
    }
}

/// CVE-2025-59152 (Litestar), CVE-2026-107271 (Gophish), CVE-2026-108162 (Pingvin) and CVE-2026-76835 (OAuth2 Proxy):
/// headers from any client were trusted.
#[tokio::test]
async fn no_header_puts_a_client_on_a_list_or_takes_it_off() {
    let spoofing = |peer: &str, claimed: &str| {
        let mut request = from(peer);
        request.headers_mut().insert("forwarded", format!("for=\"{claimed}\"").parse().unwrap());
        for name in [
            "x-forwarded-for",
            "x-real-ip",
            "x-client-ip",
            "true-client-ip",
            "cf-connecting-ip",
            "x-original-forwarded-for",
            "client-ip",
        ] {
            request.headers_mut().insert(name, claimed.parse().unwrap());
        }
        request
    };
    let trusted = || TrustedProxies::cidrs(["10.0.0.0/8"]);
    let by = [
        key::peer_ip(),
        trusted().x_forwarded_for(),
        trusted().forwarded(),
        trusted().single_valued("cf-connecting-ip"),
    ];
    for by in by {
        let exempt = AddressList::new(by.clone(), ["192.0.2.1"]);
        let service = serve(builder(one()).never_limit(exempt).always_reject(AddressList::new(by, ["198.51.100.7"])));
        let requests = [
            spoofing("198.51.100.7", "192.0.2.1"),
            spoofing("198.51.100.8", "192.0.2.1"),
            spoofing("198.51.100.8", "192.0.2.1"),
            spoofing("192.0.2.1", "198.51.100.7"),
        ];
        assert_eq!(statuses(&service, requests).await, [403, 200, 429, 200]);
    }
}

/// CVE-2026-110723, -110724 and -110726 (Eclipse ECSP): an address that the client prepended was taken for its own. The
/// resolution ends at an unknown hop.
#[test]
fn addresses_that_a_client_prepends_are_ignored() {
    let listed =
        AddressList::new(TrustedProxies::cidrs(["192.0.2.1", "10.0.0.0/8"]).x_forwarded_for(), ["198.51.100.1"]);
    for (forwarded, expected) in [
        ("198.51.100.1", true),
        ("198.51.100.1, 10.0.0.2", true),
        ("198.51.100.1, 198.51.100.7", false),
        ("198.51.100.1, 198.51.100.7, 10.0.0.2", false),
        ("198.51.100.1, unknown", false),
    ] {
        assert_eq!(holds(&listed, &lines("x-forwarded-for", &[forwarded])), expected, "{forwarded}");
    }
}

/// The limit may still reject the request.
#[tokio::test]
async fn a_request_without_an_address_is_on_no_list() {
    let everyone = ["0.0.0.0/0", "::/0"];
    let trusted = TrustedProxies::hops(2).x_forwarded_for();
    let mut on_a_socket = service::get("/");
    on_a_socket.extensions_mut().insert(UnixPeer);
    for list in [peers(everyone), AddressList::new(trusted, everyone)] {
        assert!(!holds(&list, &on_a_socket) && !holds(&list, &service::get("/")));
    }
    for (missing, status) in [(OnMissingKey::Skip, 200), (OnMissingKey::Reject, 500)] {
        let limits = builder(one().by(key::peer_ip()).on_missing_key(missing));
        assert_eq!(ask(&serve(limits.always_reject(peers(everyone))), service::get("/")).await.status, status);
    }
}

#[tokio::test]
async fn lists_are_replaced_while_requests_are_served() {
    let (exempt, blocked) = (peers([]), KeyList::new(key::header(KEY), ["leaked"]));
    let service = serve(builder(one()).never_limit(exempt.clone()).always_reject(blocked.clone()));
    let requests = || [from("192.0.2.1"), with(&[(KEY, "leaked")]), with(&[(KEY, "other")])];
    assert_eq!(statuses(&service, requests()).await, [200, 403, 429]);
    exempt.replace(["192.0.2.1"]).unwrap();
    assert_eq!(statuses(&service, requests()).await, [200, 403, 429]);
    let error = exempt.replace(["198.51.100.0/24", "192.0.2.1/8"]).unwrap_err().to_string();
    assert!(error.starts_with("the network \"192.0.2.1/8\" has bits beyond its prefix"), "{error}");
    blocked.replace(["other"]).unwrap();
    assert_eq!(statuses(&service, requests()).await, [200, 429, 403]);
    exempt.replace(["192.0.2.2"]).unwrap();
    assert_eq!(statuses(&service, requests()).await, [429, 429, 403]);
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
    let by_header = KeyList::new(key::header(KEY), ["one", "two"]);
    assert!(holds(&by_header, &with(&[(KEY, "two")])));
    // Without the key, and if it is repeated.
    for others in [&[][..], &["three", "one"], &["three"], &["on"], &["onetwo"], &["ONE"], &["o ne"], &[""]] {
        assert!(!holds(&by_header, &lines(KEY, others)), "{others:?}");
    }
    let by_user = KeyList::new(key::extension(|user: &User| user.0), [7_u64]);
    for (id, is_listed) in [(7, true), (8, false)] {
        let mut request = service::get("/");
        request.extensions_mut().insert(User(id));
        assert_eq!(holds(&by_user, &request), is_listed);
    }
    let by_both = KeyList::new((key::header("x-tenant"), key::header("x-user")), [("a:b", "c")]);
    // CVE-2026-25480 (Litestar): parts were concatenated.
    for (tenant, user, is_listed) in [("a:b", "c", true), ("a", "b:c", false)] {
        assert_eq!(holds(&by_both, &with(&[("x-tenant", tenant), ("x-user", user)])), is_listed);
    }
}

#[test]
fn an_asynchronous_key_in_a_key_list_is_an_error() {
    let later = || key::from_async_fn(|_| async { Some("key") });
    let error = KeyList::try_new(later(), ["key"]).unwrap_err().to_string();
    assert!(error.starts_with("a list can't have an asynchronous extractor"), "{error}");
    assert!(KeyList::try_new(key::header(KEY).or(later()), ["key"]).is_err());
    assert!(KeyList::try_new((key::path(), later()), [("/", "key")]).is_err());
    let boxed: Arc<dyn KeyExtractor> = Arc::new(later());
    assert!(KeyList::try_new(boxed, ["key"]).is_err());
    assert!(KeyList::try_new(key::header(KEY).or(key::path()), ["key"]).is_ok());
}

#[test]
fn debug_output_hides_listed_keys() {
    let list = KeyList::new(key::header(KEY), ["secret"]);
    assert_eq!(format!("{list:?}"), "KeyList { keys: 1, .. }");
}

/// A layer on the router and a cost on a route are one limiter. Neither charges, and the handler still has its permit.
#[tokio::test]
async fn lists_apply_to_routes_with_a_cost() {
    let limits = builder(per_minute("few", 5)).permits();
    let limits = limits.never_limit(peers(["192.0.2.1"])).always_reject(peers(["192.0.2.2"])).build();
    let handler = get(async |permit: Permit| permit.limits().len().to_string());
    let app = Router::new().route("/", handler.route_layer(limits.cost(5))).layer(limits);
    let visit = async |peer: [u8; 4]| {
        let mut request = request("GET /");
        request.extensions_mut().insert(PeerAddr((peer, 1).into()));
        ask(&app, request).await
    };
    for _ in 0..3 {
        let exempt = visit([192, 0, 2, 1]).await;
        assert_eq!((exempt.body.as_str(), exempt.header("ratelimit")), ("1", None));
        assert_eq!(visit([192, 0, 2, 2]).await.status, 403);
    }
    assert_eq!(visit([192, 0, 2, 3]).await.remaining(), 0);
    assert!(visit([192, 0, 2, 3]).await.is_denied());
}

#[tokio::test]
async fn an_asynchronous_key_of_an_exempt_request_is_not_awaited() {
    let forever = key::from_async_fn(|_| std::future::pending::<Option<u8>>());
    let service = serve(builder(one().by(forever)).never_limit(peers(["192.0.2.1"])));
    assert_eq!(ask(&service, from("192.0.2.1")).await.status, 200);
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
