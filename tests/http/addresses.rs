//! Keys by the peer's address.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::StatusCode;
use tower::Layer;
use tower_ratelimit::key::{ClientIp, KeyExtractor, PeerAddr};
use tower_ratelimit::{FixedWindow, Limit, OnMissingKey, RateLimit, RateLimitLayer, key};

use crate::service::{self, Hello, from};
use crate::store::paused_store;
use support::answer::ask;
use support::server::Server;

fn one_each(by: impl KeyExtractor) -> RateLimit<Hello> {
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by(by);
    RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default())
}

/// Returns whether two peers share a bucket with one token.
async fn share(by: ClientIp, one: &str, other: &str) -> bool {
    let service = one_each(by);
    assert!(!ask(&service, from(one)).await.is_refused());
    ask(&service, from(other)).await.is_refused()
}

#[tokio::test]
async fn each_address_has_a_bucket() {
    assert!(share(key::peer_ip(), "192.0.2.1", "192.0.2.1").await);
    assert!(!share(key::peer_ip(), "192.0.2.1", "192.0.2.2").await);
    assert!(!share(key::peer_ip(), "192.0.2.1", "2001:db8::192.0.2.1").await);
}

/// Advisories GHSA-5847-rm3g-23mw (OpenClaw) and CVE-2026-30827 (express-rate-limit).
#[tokio::test]
async fn a_mapped_address_is_the_address() {
    assert!(share(key::peer_ip(), "192.0.2.1", "::ffff:192.0.2.1").await);
    assert!(share(key::peer_ip(), "::ffff:192.0.2.1", "::ffff:c000:201").await);
    assert!(!share(key::peer_ip(), "::ffff:192.0.2.1", "::ffff:192.0.2.2").await);
    assert!(!share(key::peer_ip().ipv6_prefix(1), "::ffff:192.0.2.1", "::ffff:192.0.2.2").await);
    // IPv4-compatible addresses, which are deprecated and not mapped.
    assert!(!share(key::peer_ip().ipv6_prefix(128), "192.0.2.1", "::192.0.2.1").await);
}

#[tokio::test]
async fn a_network_of_64_bits_is_one_client() {
    let near = "2001:db8:0:1::1";
    assert!(share(key::peer_ip(), near, "2001:db8:0:1:ffff:ffff:ffff:ffff").await);
    assert!(!share(key::peer_ip(), near, "2001:db8:0:2::1").await);
}

#[tokio::test]
async fn the_ipv6_prefix_is_configurable() {
    let near = "2001:db8:0:100::1";
    assert!(share(key::peer_ip().ipv6_prefix(56), near, "2001:db8:0:1ff::2").await);
    assert!(!share(key::peer_ip().ipv6_prefix(56), near, "2001:db8:0:200::1").await);
    assert!(!share(key::peer_ip().ipv6_prefix(128), near, "2001:db8:0:100::2").await);
    assert!(share(key::peer_ip().ipv6_prefix(128), near, near).await);
    assert!(share(key::peer_ip().ipv6_prefix(1), near, "7fff::").await);
    assert!(!share(key::peer_ip().ipv6_prefix(1), near, "8000::").await);
}

#[test]
#[should_panic(expected = "an IPv6 prefix has 0 bits: use 1 to 128")]
fn an_address_prefix_of_0_is_an_error() {
    let _ = key::peer_ip().ipv6_prefix(0);
}

#[test]
#[should_panic(expected = "an IPv6 prefix has 129 bits: use 1 to 128")]
fn an_address_prefix_that_is_too_long_is_an_error() {
    let _ = key::peer_ip().ipv6_prefix(129);
}

/// The port changes with each connection. An outer layer can replace the server's address.
#[tokio::test]
async fn the_port_does_not_count_and_peer_addr_wins() {
    let service = one_each(key::peer_ip());
    let ask_from = async |connect: &str, said: Option<&str>| {
        let mut request = service::get("/");
        request.extensions_mut().insert(ConnectInfo::<SocketAddr>(connect.parse().unwrap()));
        if let Some(said) = said {
            request.extensions_mut().insert(PeerAddr(said.parse().unwrap()));
        }
        ask(&service, request).await.is_refused()
    };
    assert!(!ask_from("192.0.2.1:1", None).await);
    assert!(ask_from("192.0.2.1:2", None).await);
    assert!(!ask_from("192.0.2.1:3", Some("192.0.2.9:3")).await);
    assert!(ask_from("192.0.2.2:4", Some("192.0.2.9:4")).await);
}

/// benwis/tower-governor#10: without `into_make_service_with_connect_info`, all requests shared a bucket, or panicked.
#[tokio::test]
async fn a_missing_peer_address_is_an_internal_error() {
    let inner = Hello::default();
    let limit = Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip());
    let service = RateLimitLayer::builder([limit]).store(paused_store()).build().layer(inner.clone());
    for _ in 0..3 {
        let answer = ask(&service, service::get("/")).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.body, "Client address unavailable.\n");
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(inner.calls(), 0);
    // The rejected requests charged no other bucket.
    assert!(!ask(&service, from("192.0.2.1")).await.is_refused());
}

#[tokio::test]
async fn a_missing_peer_address_follows_its_policy() {
    let limit = || Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip());
    let asked = async |missing| {
        let layer = RateLimitLayer::builder([limit().on_missing_key(missing)]).store(paused_store()).build();
        let service = layer.layer(Hello::default());
        [ask(&service, service::get("/")).await.is_refused(), ask(&service, service::get("/")).await.is_refused()]
    };
    assert_eq!(asked(OnMissingKey::Skip).await, [false, false]);
    assert_eq!(asked(OnMissingKey::Share).await, [false, true]);
}

/// In-process tests have no connection. Axum provides a mock.
#[tokio::test]
async fn mock_connect_info_provides_the_peer() {
    let limits = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip())])
        .store(paused_store())
        .build();
    let peer = axum::extract::connect_info::MockConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 80)));
    let app = Router::new().route("/", get(async || "hello")).layer(limits).layer(peer);
    let visit = || http::Request::get("/").body(axum::body::Body::empty()).unwrap();
    assert_eq!(ask(&app, visit()).await.body, "hello");
    assert!(ask(&app, visit()).await.is_refused());
}

#[tokio::test]
async fn axum_provides_the_peer_if_it_is_configured_to() {
    let limits = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_minute(1)).by(key::peer_ip())]);
    let app = Router::new().route("/", get(async || "hello")).layer(limits.store(paused_store()).build());
    let server = Server::axum(app.clone()).await;
    assert_eq!(server.get("/").await.body, "hello");
    let silent = Server::run(async |listener| axum::serve(listener, app).await.unwrap()).await;
    assert_eq!(silent.get("/").await.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(server.get("/").await.is_refused());
}
