//! Keys by the address of a peer, or of a client behind a proxy.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::connect_info::MockConnectInfo;
use axum::routing::get;
use tower::Layer;
use tower_ratelimit::OnMissingKey;
use tower_ratelimit::key::{self, ClientIp, PeerAddr, TrustedProxies};

use crate::service::{self, Hello, from, layer, limited, one, visit, with};
use support::answer::{ask, statuses};
use support::server::Server;

type Configure = fn(ClientIp) -> ClientIp;

/// GHSA-5847-rm3g-23mw (OpenClaw), CVE-2026-30827 and GHSA-46wh-pxpv-q5gq (express-rate-limit), axum-governor ip.rs:23,
/// actix-governor key_extractor.rs:263: mapped addresses were masked before conversion, so all of IPv4 had one key, or they
/// had a bucket of their own. express-rate-limit 8.0.0 and others: each IPv6 address had a bucket, but a client has 2^64
/// of them.
#[tokio::test]
async fn addresses_of_one_network_share_a_bucket() {
    let default = |by: ClientIp| by;
    let (near, hundred) = ("2001:db8:0:1::1", "2001:db8:0:100::1");
    let cases: [(Configure, &str, &[&str], &[&str]); 9] = [
        (
            default,
            "192.0.2.1",
            &["192.0.2.1", "::ffff:192.0.2.1", "::ffff:c000:201"],
            &["192.0.2.2", "::ffff:192.0.2.2", "2001:db8::192.0.2.1"],
        ),
        (default, near, &[near, "2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::192.0.2.1"], &["2001:db8:0:2::1"]),
        (|by| by.ipv6_prefix(56), hundred, &["2001:db8:0:1ff::2"], &["2001:db8:0:200::1"]),
        (|by| by.ipv6_prefix(128), hundred, &[hundred], &["2001:db8:0:100::2"]),
        (|by| by.ipv6_prefix(1), hundred, &["7fff::"], &["8000::"]),
        (|by| by.ipv6_prefix(1), "::ffff:192.0.2.1", &["192.0.2.1"], &["::ffff:192.0.2.2"]),
        // IPv4-compatible addresses, which are deprecated and not mapped.
        (|by| by.ipv6_prefix(128), "192.0.2.1", &[], &["::192.0.2.1"]),
        (|by| by.ipv4_prefix(24), "192.0.2.1", &["::ffff:192.0.2.200"], &["192.0.3.1"]),
        (|by| by.ipv4_prefix(1), "192.0.2.1", &["128.0.0.0"], &["10.0.0.1"]),
    ];
    for (configure, address, same, different) in cases {
        let behind = |address: &str| {
            let mut request = from("127.0.0.1");
            request.headers_mut().insert("x-forwarded-for", address.parse().unwrap());
            request
        };
        let proxies = TrustedProxies::cidrs(["127.0.0.1"]).x_forwarded_for();
        for (others, status) in [(same, 429), (different, 200)] {
            for other in others {
                let peers = limited(one().by(configure(key::peer_ip())));
                assert_eq!(statuses(&peers, [address, other].map(from)).await, [200, status], "{address} {other}");
                let clients = limited(one().by(configure(proxies.clone())));
                assert_eq!(statuses(&clients, [address, other].map(behind)).await, [200, status], "{address} {other}");
                // A client has the same key with and without a proxy.
                let requests = [behind(address), from(other)];
                let clients = limited(one().by(configure(proxies.clone())));
                assert_eq!(statuses(&clients, requests).await, [200, status], "{address} {other}");
            }
        }
    }
}

/// CVE-2025-59152 (Litestar) and many others: a client could choose its bucket by a header.
#[tokio::test]
async fn a_key_by_peer_reads_no_header() {
    let service = limited(one().by(key::peer_ip()));
    let forwarded = |(name, value): (&str, &str)| {
        let mut request = from("192.0.2.1");
        request.headers_mut().extend(with(&[(name, value)]).headers().clone());
        request
    };
    let names = ["x-forwarded-for", "x-forwarded-for", "x-real-ip", "cf-connecting-ip", "true-client-ip"];
    let addresses = ["198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"];
    let requests = names.into_iter().zip(addresses).chain([("forwarded", "for=198.51.100.6")]).map(forwarded);
    assert_eq!(statuses(&service, requests).await, [200, 429, 429, 429, 429, 429]);
}

/// The port changes with each connection. An outer layer can replace the server's address.
#[tokio::test]
async fn the_port_does_not_count_and_peer_addr_wins() {
    let requests = [
        ("192.0.2.1:1", None),
        ("192.0.2.1:2", None),
        ("192.0.2.1:3", Some("192.0.2.9:3")),
        ("192.0.2.2:4", Some("192.0.2.9:4")),
    ];
    let requests = requests.map(|(connect, peer)| {
        let mut request = service::get("/");
        request.extensions_mut().insert(ConnectInfo::<SocketAddr>(connect.parse().unwrap()));
        if let Some(peer) = peer {
            request.extensions_mut().insert(PeerAddr(peer.parse().unwrap()));
        }
        request
    });
    assert_eq!(statuses(&limited(one().by(key::peer_ip())), requests).await, [200, 429, 200, 429]);
}

/// benwis/tower-governor#10: without `into_make_service_with_connect_info`, all requests shared a bucket, or panicked.
#[tokio::test]
async fn a_missing_peer_address_is_an_internal_error() {
    let inner = Hello::default();
    let service = layer(one().by(key::peer_ip())).layer(inner.clone());
    for _ in 0..3 {
        let answer = ask(&service, service::get("/")).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (500, "Client address unavailable.\n"));
        assert_eq!((answer.header("ratelimit"), answer.header("retry-after")), (None, None));
    }
    assert_eq!(inner.calls(), 0);
    // The rejected requests charged no other bucket.
    assert!(!ask(&service, from("192.0.2.1")).await.is_denied());
}

#[tokio::test]
async fn a_missing_peer_address_follows_its_policy() {
    for (missing, expected) in [(OnMissingKey::Skip, [200, 200]), (OnMissingKey::Share, [200, 429])] {
        let service = limited(one().by(key::peer_ip()).on_missing_key(missing));
        assert_eq!(statuses(&service, ["/", "/"].map(service::get)).await, expected);
    }
}

/// In-process tests have no connection. Axum provides a mock.
#[tokio::test]
async fn axum_provides_the_peer_if_it_is_configured_to() {
    let app = Router::new().route("/", get(async || "hello")).layer(layer(one().by(key::peer_ip())));
    let mocked = app.clone().layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 80))));
    assert_eq!(visit(&mocked, "GET /").await.body, "hello");
    assert!(visit(&mocked, "GET /").await.is_denied());
    let server = Server::axum(app.clone()).await;
    assert_eq!(server.get("/").await.body, "hello");
    let silent = Server::run(async |listener| axum::serve(listener, app).await.unwrap()).await;
    assert_eq!(silent.get("/").await.status, 500);
    assert!(server.get("/").await.is_denied());
}
