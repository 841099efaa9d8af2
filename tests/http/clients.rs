//! Keys by the client's address behind proxies, through a server, with the bugs of other rate limiters.

use axum::Router;
use axum::routing::get as route;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tower::Layer;
use tower_ratelimit::key::{ClientIp, KeyExtractor, TrustedProxies};
use tower_ratelimit::{FixedWindow, Limit, OnMissingKey, RateLimitLayer, key};

use crate::service::{Hello, from, with};
use crate::store::paused_store;
use support::answer::{Answer, ask};
use support::server::Server;

fn one_each(by: impl KeyExtractor) -> Limit {
    Limit::new("one", FixedWindow::per_minute(1)).by(by)
}

fn app(limit: Limit) -> Router {
    Router::new()
        .route("/", route(async || "hello"))
        .layer(RateLimitLayer::builder([limit]).store(paused_store()).build())
}

/// Starts a server with one request for each client. The peer is 127.0.0.1.
async fn serve(address: ClientIp) -> Server {
    Server::axum(app(one_each(address))).await
}

async fn send(server: &Server, headers: &[(&str, &str)]) -> Answer {
    let request =
        headers.iter().fold(Request::get(server.uri("/")), |request, (name, value)| request.header(*name, *value));
    server.send(request.body(Full::<Bytes>::default()).unwrap()).await
}

async fn is_refused(server: &Server, headers: &[(&str, &str)]) -> bool {
    send(server, headers).await.is_refused()
}

fn local() -> TrustedProxies {
    TrustedProxies::cidrs(["127.0.0.0/8", "10.0.0.0/8"])
}

const XFF: &str = "x-forwarded-for";

#[tokio::test]
async fn clients_behind_a_proxy_have_a_bucket_each() {
    let server = serve(local().x_forwarded_for()).await;
    assert!(!is_refused(&server, &[(XFF, "192.0.2.1")]).await);
    assert!(is_refused(&server, &[(XFF, "192.0.2.1:4711")]).await);
    assert!(!is_refused(&server, &[(XFF, "192.0.2.2, 10.0.0.9")]).await);
    assert!(is_refused(&server, &[(XFF, "192.0.2.1, 192.0.2.2"), (XFF, "10.0.0.9")]).await);
    // A request of the proxy itself, such as a health check.
    assert!(!is_refused(&server, &[]).await);
    assert!(is_refused(&server, &[(XFF, "192.0.2.3, unknown")]).await);
}

#[tokio::test]
async fn forwarded_and_single_values_name_clients_too() {
    let server = serve(local().forwarded()).await;
    assert!(!is_refused(&server, &[("forwarded", "for=\"[2001:db8::1]:80\";proto=https")]).await);
    assert!(is_refused(&server, &[("Forwarded", "for=192.0.2.1, For=\"[2001:db8::2]\"")]).await);
    let server = serve(local().single_valued("cf-connecting-ip")).await;
    assert!(!is_refused(&server, &[("cf-connecting-ip", "192.0.2.1")]).await);
    assert!(is_refused(&server, &[("CF-Connecting-IP", "192.0.2.1"), (XFF, "192.0.2.2")]).await);
    let twice = [("cf-connecting-ip", "192.0.2.2"), ("cf-connecting-ip", "192.0.2.3")];
    assert_eq!(send(&server, &twice).await.status, StatusCode::BAD_REQUEST);
}

/// Missing hops are an error of the configuration, which the first request shows.
#[tokio::test]
async fn a_request_that_bypasses_the_proxies_has_no_key() {
    let server = serve(TrustedProxies::hops(2).x_forwarded_for()).await;
    let answer = send(&server, &[(XFF, "192.0.2.1")]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.body, "Missing client identifier.\n");
    assert!(!is_refused(&server, &[(XFF, "192.0.2.1, 198.51.100.1")]).await);
    assert!(is_refused(&server, &[(XFF, "6.6.6.6, 192.0.2.1, 198.51.100.2")]).await);
}

#[tokio::test]
async fn a_request_that_bypasses_the_proxies_follows_its_policy() {
    let by = || TrustedProxies::hops(1).x_forwarded_for();
    let server = Server::axum(app(one_each(by().or(key::peer_ip())))).await;
    assert!(!is_refused(&server, &[]).await);
    assert!(is_refused(&server, &[(XFF, "unknown")]).await);
    // A client that claims the peer's address does not get the peer's bucket.
    assert!(!is_refused(&server, &[(XFF, "127.0.0.1")]).await);

    let server = Server::axum(app(one_each(by()).on_missing_key(OnMissingKey::Skip))).await;
    assert!(!is_refused(&server, &[]).await);
    assert!(!is_refused(&server, &[]).await);
}

#[tokio::test]
async fn a_missing_peer_is_an_error_of_the_server() {
    let service = RateLimitLayer::builder([one_each(local().x_forwarded_for())]).store(paused_store()).build();
    let answer = ask(&service.layer(Hello::default()), with(&[(XFF, "192.0.2.1")])).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
}

/// Returns whether two clients share a bucket with one token, by the header of a proxy.
async fn share(by: impl Fn(ClientIp) -> ClientIp, one: &str, other: &str) -> bool {
    let limit = one_each(by(local().x_forwarded_for()));
    let service = RateLimitLayer::builder([limit]).store(paused_store()).build().layer(Hello::default());
    let request = |client: &str| {
        let mut request = from("127.0.0.1");
        request.headers_mut().insert(XFF, client.parse().unwrap());
        request
    };
    assert!(!ask(&service, request(one)).await.is_refused());
    ask(&service, request(other)).await.is_refused()
}

#[tokio::test]
async fn the_address_prefix_is_configurable() {
    let near = "2001:db8:0:100::1";
    assert!(share(|by| by, near, "2001:db8:0:100:ffff::2").await);
    assert!(!share(|by| by, near, "2001:db8:0:101::1").await);
    assert!(share(|by| by.ipv6_prefix(56), near, "[2001:db8:0:1ff::2]:80").await);
    assert!(!share(|by| by.ipv6_prefix(56), near, "2001:db8:0:200::1").await);
    assert!(!share(|by| by.ipv6_prefix(128), near, "2001:db8:0:100::2").await);
    assert!(!share(|by| by, "192.0.2.1", "192.0.2.2").await);
    assert!(share(|by| by.ipv4_prefix(24), "192.0.2.1", "::ffff:192.0.2.200").await);
    assert!(!share(|by| by.ipv4_prefix(24), "192.0.2.1", "192.0.3.1").await);
    assert!(share(|by| by.ipv4_prefix(1), "192.0.2.1", "128.0.0.0").await);
}

#[test]
#[should_panic(expected = "an IPv4 prefix has 0 bits: use 1 to 32")]
fn an_address_prefix_of_0_is_an_error() {
    let _ = local().forwarded().ipv4_prefix(0);
}

#[test]
#[should_panic(expected = "an IPv6 prefix has 129 bits: use 1 to 128")]
fn an_address_prefix_that_is_too_long_is_an_error() {
    let _ = local().forwarded().ipv6_prefix(129);
}

/// A client has the same key with and without a proxy.
#[tokio::test]
async fn a_client_is_the_same_with_and_without_a_proxy() {
    let service = RateLimitLayer::builder([one_each(local().x_forwarded_for())]).store(paused_store()).build();
    let service = service.layer(Hello::default());
    let mut behind = from("127.0.0.1");
    behind.headers_mut().insert(XFF, "192.0.2.1".parse().unwrap());
    assert!(!ask(&service, behind).await.is_refused());
    assert!(ask(&service, from("::ffff:192.0.2.1")).await.is_refused());
}

/// CVE-2026-30827 and GHSA-46wh-pxpv-q5gq (express-rate-limit), axum-governor ip.rs:23, actix-governor
/// key_extractor.rs:263: mapped addresses were masked before conversion, so all of IPv4 had one key.
#[tokio::test]
async fn mapped_addresses_are_converted_before_they_are_masked() {
    assert!(!share(|by| by, "::ffff:192.0.2.1", "::ffff:192.0.2.2").await);
    assert!(!share(|by| by.ipv6_prefix(56), "::ffff:192.0.2.1", "[::ffff:192.0.2.2]:80").await);
    assert!(!share(|by| by, "::ffff:102:304", "2001:db8::1.2.3.4").await);
}

/// GHSA-5847-rm3g-23mw (OpenClaw), and express-rate-limit 8.6.2, which compared notations.
#[tokio::test]
async fn mapped_addresses_share_the_bucket_of_their_ipv4_address() {
    assert!(share(|by| by, "1.2.3.4", "::ffff:1.2.3.4").await);
    assert!(share(|by| by, "::ffff:102:304", "1.2.3.4").await);
}

/// CVE-2026-39409 (Hono), CVE-2026-123603 (hickory): lists of addresses did not contain mapped ones.
#[tokio::test]
async fn an_ipv4_mapped_proxy_is_trusted_as_ipv4() {
    let service = RateLimitLayer::builder([one_each(local().x_forwarded_for())]).store(paused_store()).build();
    let service = service.layer(Hello::default());
    for client in ["192.0.2.1, ::ffff:10.0.0.7", "192.0.2.2"] {
        let mut request = from("::ffff:127.0.0.1");
        request.headers_mut().insert(XFF, client.parse().unwrap());
        assert!(!ask(&service, request).await.is_refused(), "{client}");
    }
}

/// CVE-2025-59152 (Litestar), CVE-2026-107271 (Gophish), CVE-2026-108162 (Pingvin), throttle-kit tower_layer.rs, real
/// extractor.rs:24: a header was trusted from any peer.
#[tokio::test]
async fn an_untrusted_peer_cannot_choose_its_address() {
    let strange = || TrustedProxies::cidrs(["192.0.2.0/24"]);
    let of = [strange().x_forwarded_for(), strange().forwarded(), strange().single_valued("cf-connecting-ip")];
    for address in of {
        let server = serve(address).await;
        assert!(!is_refused(&server, &[]).await);
        for client in ["198.51.100.1", "192.0.2.1"] {
            let forwarded = format!("for={client}");
            let headers =
                [(XFF, client), ("forwarded", &forwarded), ("cf-connecting-ip", client), ("x-real-ip", client)];
            assert!(is_refused(&server, &headers).await);
        }
    }
}

/// CVE-2026-110723, -110724, -110726 (Eclipse ECSP), tower_governor key_extractor.rs:134,
/// commonly#538, talosctl-oidc#128, PrepPilot#1438: the leftmost address was taken for the client.
#[tokio::test]
async fn the_leftmost_address_is_not_the_client() {
    for (address, header, hop) in [(local().x_forwarded_for(), XFF, ""), (local().forwarded(), "forwarded", "for=")] {
        let server = serve(address).await;
        assert!(!is_refused(&server, &[(header, &format!("{hop}192.0.2.1"))]).await);
        for forged in ["198.51.100.1", "198.51.100.2, 198.51.100.3", "for=198.51.100.4", "\"", "unknown"] {
            assert!(is_refused(&server, &[(header, &format!("{forged}, {hop}192.0.2.1"))]).await, "{forged}");
        }
    }
}

/// axum-client-ip#32: an obfuscated node was skipped, so an address from the client was the rightmost.
/// axum-governor smart_ip.rs:118: malformed nodes were skipped, too.
#[tokio::test]
async fn obfuscated_nodes_are_not_skipped() {
    let server = serve(local().forwarded()).await;
    assert!(!is_refused(&server, &[("forwarded", "for=198.51.100.1, for=_hidden")]).await);
    assert!(is_refused(&server, &[("forwarded", "for=198.51.100.2, for=_hidden")]).await);
    assert!(is_refused(&server, &[("forwarded", "for=198.51.100.3, for=\"[bad\"")]).await);
}

/// authentik#25397: addresses with a port were not parsed. axum-governor smart_ip.rs:94: they were skipped. axum_gcra
/// real_ip.rs:143: addresses were split at the first colon, so all of IPv6 had a few keys.
#[tokio::test]
async fn ports_of_addresses_are_ignored() {
    assert!(share(|by| by, "192.0.2.1:4711", "192.0.2.1:4712").await);
    assert!(share(|by| by, "198.51.100.1, 192.0.2.1:4711", "198.51.100.2, 192.0.2.1").await);
    assert!(!share(|by| by, "2001:db8::1", "2001:db8:0:1::1").await);
    assert!(share(|by| by, "[2001:db8::1]:4711", "2001:db8::1").await);
}

/// real-ip 0.1.2 and throttle-kit client_ip.rs:226: the first of several lines was read, which is the client's if the
/// proxy adds another line, as HAProxy does.
#[tokio::test]
async fn all_lines_of_the_header_are_read() {
    let of = [local().x_forwarded_for(), TrustedProxies::hops(1).x_forwarded_for()];
    for address in of {
        let server = serve(address).await;
        assert!(!is_refused(&server, &[(XFF, "198.51.100.1"), (XFF, "192.0.2.1")]).await);
        assert!(is_refused(&server, &[(XFF, "198.51.100.2"), (XFF, "192.0.2.1")]).await);
        assert!(!is_refused(&server, &[(XFF, "198.51.100.2"), (XFF, "192.0.2.2")]).await);
    }
}

/// throttle-kit client_ip.rs:304: the number of hops was 0 instead of the documented 1, so the client's own header was
/// trusted.
#[test]
#[should_panic(expected = "no proxy is trusted")]
fn trusting_0_hops_panics() {
    let _ = TrustedProxies::hops(0);
}

/// tower-rate-limiter key_extractor.rs:141: a `Forwarded` header of the client took precedence over the
/// `X-Forwarded-For` header of the proxy.
#[tokio::test]
async fn only_the_trusted_header_is_read() {
    let server = serve(local().x_forwarded_for()).await;
    assert!(!is_refused(&server, &[(XFF, "192.0.2.1"), ("forwarded", "for=198.51.100.1")]).await);
    for name in ["forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip", "x-client-ip", "fly-client-ip"] {
        let forged = if name == "forwarded" { "for=198.51.100.2" } else { "198.51.100.2" };
        assert!(is_refused(&server, &[(XFF, "192.0.2.1"), (name, forged)]).await, "{name}");
        // Another header does not replace a missing one, either.
        send(&server, &[]).await;
        assert!(is_refused(&server, &[(name, forged)]).await, "{name}");
    }
}

/// The same, http-extract client_ip.rs:197: behind two proxies, all clients shared the second proxy's bucket, and a
/// header without an address led to a 500.
#[tokio::test]
async fn clients_behind_two_trusted_proxies_are_distinct() {
    let server = serve(local().x_forwarded_for()).await;
    assert!(!is_refused(&server, &[(XFF, "192.0.2.1, 10.0.0.7")]).await);
    assert!(!is_refused(&server, &[(XFF, "192.0.2.2, 10.0.0.7")]).await);
    assert_eq!(send(&server, &[(XFF, "\u{fc}, ;;\"")]).await.status, StatusCode::OK);
}

/// express-rate-limit 8.0.0 and others: each IPv6 address had a bucket, but a client has 2^64 of them.
#[tokio::test]
async fn clients_of_one_ipv6_network_share_a_bucket() {
    let server = serve(local().x_forwarded_for()).await;
    assert!(!is_refused(&server, &[(XFF, "2001:db8::1")]).await);
    for rotated in ["2001:db8::2", "2001:db8::ffff:0:0:1", "[2001:db8:0:0:1::]:80", "2001:db8::192.0.2.1"] {
        assert!(is_refused(&server, &[(XFF, rotated)]).await, "{rotated}");
    }
}

/// A server on a Unix socket only knows the addresses in headers of the proxy.
#[cfg(unix)]
#[tokio::test]
async fn unix_peers_are_trusted_if_configured() {
    use hyper_util::rt::TokioIo;
    use tokio::net::{UnixListener, UnixStream};

    let limit = one_each(local().trust_unix_peers().x_forwarded_for());
    let app = app(limit).layer(axum::Extension(key::UnixPeer));
    let path = std::env::temp_dir().join(format!("tower-ratelimit-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async { axum::serve(listener, app).await.unwrap() });
    let stream = UnixStream::connect(&path).await.unwrap();
    std::fs::remove_file(&path).unwrap();

    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut status = async |client: Option<&str>| {
        let request = Request::get("/").header("host", "localhost");
        let request = client.into_iter().fold(request, |request, client| request.header(XFF, client));
        let response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        Answer::of(response).await.status
    };
    assert_eq!(status(Some("198.51.100.1, 192.0.2.1, 10.0.0.7")).await, StatusCode::OK);
    assert_eq!(status(Some("192.0.2.1")).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status(Some("192.0.2.2")).await, StatusCode::OK);
    assert_eq!(status(None).await, StatusCode::BAD_REQUEST);
    connection.abort();
    server.abort();
}
