//! Keys by the client's address behind proxies, through a server, with the bugs of other rate limiters.

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower_ratelimit::key::{self, KeyExtractor, TrustedProxies};
use tower_ratelimit::{Limit, OnMissingKey};

use crate::service::{layer, limited, one, with};
use support::answer::{Answer, ask};
use support::server::Server;

fn app(limit: Limit) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer(limit))
}

fn local() -> TrustedProxies {
    TrustedProxies::cidrs(["127.0.0.0/8", "10.0.0.0/8"])
}

const XFF: &str = "x-forwarded-for";
const CF: &str = "cf-connecting-ip";

/// Sends a request with headers from 127.0.0.1.
async fn send(server: &Server, headers: &[(&str, &str)]) -> Answer {
    let request =
        headers.iter().fold(Request::get(server.uri("/")), |request, (name, value)| request.header(*name, *value));
    server.send(request.body(Full::<Bytes>::default()).unwrap()).await
}

type Headers = [(&'static str, &'static str)];

/// Checks the statuses of requests with these headers to a server with one request for each client.
async fn check(limit: Limit, requests: &[(&Headers, u16)]) {
    let server = Server::axum(app(limit)).await;
    for (headers, status) in requests {
        assert_eq!(send(&server, headers).await.status, *status, "{headers:?}");
    }
}

/// Behind two proxies, all clients shared the second proxy's bucket in http-extract client_ip.rs:197, and a header without
/// an address led to a 500. real-ip 0.1.2 and throttle-kit client_ip.rs:226: the first of several lines was read.
#[tokio::test]
async fn clients_behind_proxies_have_a_bucket_each() {
    let x_forwarded_for: &[(&Headers, u16)] = &[
        (&[(XFF, "192.0.2.1")], 200),
        (&[(XFF, "192.0.2.1:4711")], 429),
        (&[(XFF, "192.0.2.2, 10.0.0.9")], 200),
        (&[(XFF, "192.0.2.1, 192.0.2.2"), (XFF, "10.0.0.9")], 429),
        (&[(XFF, "192.0.2.7"), (XFF, "192.0.2.4")], 200),
        // A request of the proxy itself, such as a health check.
        (&[], 200),
        (&[(XFF, "192.0.2.3, unknown")], 429),
        (&[(XFF, "\u{fc}, ;;\"")], 429),
    ];
    check(one().by(local().x_forwarded_for()), x_forwarded_for).await;
    let forwarded: &[(&Headers, u16)] = &[
        (&[("forwarded", "for=\"[2001:db8::1]:80\";proto=https")], 200),
        (&[("Forwarded", "for=192.0.2.1, For=\"[2001:db8::2]\"")], 429),
    ];
    check(one().by(local().forwarded()), forwarded).await;
    let single: &[(&Headers, u16)] = &[
        (&[(CF, "192.0.2.1")], 200),
        (&[("CF-Connecting-IP", "192.0.2.1"), (XFF, "192.0.2.2")], 429),
        (&[(CF, "192.0.2.2"), (CF, "192.0.2.3")], 400),
    ];
    check(one().by(local().single_valued(CF)), single).await;
}

/// Missing hops are an error of the configuration, which the first request shows.
#[tokio::test]
async fn a_request_that_bypasses_the_proxies_has_no_key() {
    let server = Server::axum(app(one().by(TrustedProxies::hops(2).x_forwarded_for()))).await;
    let answer = send(&server, &[(XFF, "192.0.2.1")]).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (400, "Missing client identifier.\n"));
    assert!(!send(&server, &[(XFF, "192.0.2.1, 198.51.100.1")]).await.is_denied());
    assert!(send(&server, &[(XFF, "6.6.6.6, 192.0.2.1, 198.51.100.2")]).await.is_denied());
}

/// A client that claims the peer's address does not get the peer's bucket.
#[tokio::test]
async fn a_request_that_bypasses_the_proxies_follows_its_policy() {
    let by = || TrustedProxies::hops(1).x_forwarded_for();
    let either = one().by(by().or(key::peer_ip()));
    check(either, &[(&[], 200), (&[(XFF, "unknown")], 429), (&[(XFF, "127.0.0.1")], 200)]).await;
    check(one().by(by()).on_missing_key(OnMissingKey::Skip), &[(&[], 200), (&[], 200)]).await;
}

#[tokio::test]
async fn a_missing_peer_is_an_error_of_the_server() {
    assert_eq!(ask(&limited(one().by(local().x_forwarded_for())), with(&[(XFF, "192.0.2.1")])).await.status, 500);
}

/// CVE-2025-59152 (Litestar), CVE-2026-107271 (Gophish), CVE-2026-108162 (Pingvin), throttle-kit tower_layer.rs, real
/// extractor.rs:24: a header was trusted from any peer. tower-rate-limiter key_extractor.rs:141: a `Forwarded` header of
/// the client took precedence over the `X-Forwarded-For` header of the proxy.
#[tokio::test]
async fn only_the_trusted_header_of_a_trusted_peer_is_read() {
    let strange = || TrustedProxies::cidrs(["192.0.2.0/24"]);
    let others =
        ["forwarded", "x-real-ip", CF, "true-client-ip", "x-client-ip", "fly-client-ip"].map(|name| match name {
            "forwarded" => (name, "for=198.51.100.2"),
            _ => (name, "198.51.100.2"),
        });
    for by in [strange().x_forwarded_for(), strange().forwarded(), strange().single_valued(CF)] {
        check(one().by(by), &[(&[], 200), (&[&others[..], &[(XFF, "198.51.100.1")]].concat(), 429)]).await;
    }
    let client = (XFF, "192.0.2.1");
    for other in others {
        // Another header does not replace a missing one, either.
        let requests: [(&Headers, _); 4] = [(&[client], 200), (&[client, other], 429), (&[], 200), (&[other], 429)];
        check(one().by(local().x_forwarded_for()), &requests).await;
    }
}

/// A server on a Unix socket only knows the addresses in headers of the proxy.
#[cfg(unix)]
#[tokio::test]
async fn unix_peers_are_trusted_if_configured() {
    use hyper_util::rt::TokioIo;
    use tokio::net::{UnixListener, UnixStream};

    let limit = one().by(local().trust_unix_peers().x_forwarded_for());
    let app = app(limit).layer(axum::Extension(key::UnixPeer));
    let path = std::env::temp_dir().join(format!("tower-ratelimit-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let server = tokio::spawn(async { axum::serve(listener, app).await.unwrap() });
    let stream = UnixStream::connect(&path).await.unwrap();
    std::fs::remove_file(&path).unwrap();

    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    for (client, status) in [
        (Some("198.51.100.1, 192.0.2.1, 10.0.0.7"), 200),
        (Some("192.0.2.1"), 429),
        (Some("192.0.2.2"), 200),
        (None, 400),
    ] {
        let request = Request::get("/").header("host", "localhost");
        let request = client.into_iter().fold(request, |request, client| request.header(XFF, client));
        let response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(Answer::of(response).await.status, status, "{client:?}");
    }
    connection.abort();
    server.abort();
}
