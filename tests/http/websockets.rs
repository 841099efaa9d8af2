//! Handshakes of WebSockets, over HTTP/1.1 and HTTP/2.

use axum::Router;
use axum::extract::WebSocketUpgrade;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Version};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::DuplexStream;
use tower_ratelimit::RequestHead;
use tower_ratelimit::when::{self, Condition};

use crate::service::{layer, per_day, with};

fn is_handshake(request: &Request<()>) -> bool {
    let head = RequestHead::of(request);
    let holds = when::websocket().holds(&head);
    assert_eq!(when::websocket().may_hold(&head), holds);
    holds
}

#[test]
fn handshakes_of_http_1_are_recognized_in_all_spellings() {
    for (headers, expected) in [
        (&[("upgrade", "websocket"), ("connection", "upgrade")] as &[_], true),
        (&[("upgrade", "WebSocket"), ("connection", "Upgrade")], true),
        (&[("upgrade", "WEBSOCKET"), ("connection", "keep-alive, Upgrade")], true),
        (&[("upgrade", "h2c, websocket"), ("connection", "Upgrade,HTTP2-Settings")], true),
        (&[("upgrade", "h2c"), ("upgrade", "websocket"), ("connection", "close"), ("connection", "upgrade")], true),
        // Axum accepts it.
        (&[("upgrade", "websocket"), ("connection", "x-upgrade")], true),
        (&[("upgrade", "websocket")], false),
        (&[("upgrade", "websocket"), ("connection", "close")], false),
        (&[("upgrade", "websockets"), ("connection", "upgrade")], false),
        (&[("upgrade", "h2c"), ("connection", "upgrade")], false),
        (&[("connection", "upgrade")], false),
        (&[], false),
    ] {
        let mut request = with(headers);
        assert_eq!(is_handshake(&request), expected, "{headers:?}");
        *request.method_mut() = Method::POST;
        assert!(!is_handshake(&request), "{headers:?}");
    }
}

#[test]
fn handshakes_of_later_versions_are_extended_connects() {
    for version in [Version::HTTP_2, Version::HTTP_3] {
        let request = |method: Method, uri: &str| {
            let request = Request::builder().method(method).version(version).uri(uri);
            request.extension(Protocol::from_static("websocket")).body(()).unwrap()
        };
        assert!(is_handshake(&request(Method::CONNECT, "https://example.org/chat")));
        // In a nested router, or without an authority.
        assert!(is_handshake(&request(Method::CONNECT, "/chat")));
        assert!(!is_handshake(&request(Method::CONNECT, "example.org:443")), "a tunnel has no path");
        assert!(!is_handshake(&request(Method::GET, "https://example.org/chat")));
    }
    let mut request = with(&[("upgrade", "websocket"), ("connection", "upgrade")]);
    *request.version_mut() = Version::HTTP_2;
    assert!(!is_handshake(&request), "HTTP/2 has no upgrades");
    let tunnel = Request::builder().method(Method::CONNECT).uri("/").body(()).unwrap();
    assert!(!is_handshake(&tunnel), "HTTP/1.1 has no extended CONNECT");
}

/// Serves one connection in memory.
fn connect(app: Router) -> TokioIo<DuplexStream> {
    let (client, server) = tokio::io::duplex(10_000);
    tokio::spawn(async move {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http2().enable_connect_protocol();
        let service = TowerToHyperService::new(app);
        let _ = builder.serve_connection_with_upgrades(TokioIo::new(server), service).await;
    });
    TokioIo::new(client)
}

fn request(method: Method, uri: &str) -> Request<Empty<Bytes>> {
    let request = Request::builder().method(method).uri(uri).header("sec-websocket-version", "13");
    request.body(Empty::new()).unwrap()
}

/// Sends a request over HTTP/1.1.
async fn send_1(
    app: &Router,
    mut request: Request<Empty<Bytes>>,
    headers: &[(&'static str, &str)],
) -> (StatusCode, HeaderMap) {
    let (mut sender, connection) = http1::handshake(connect(app.clone())).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let head = sender.send_request(request).await.unwrap().into_parts().0;
    (head.status, head.headers)
}

/// Sends a request over HTTP/2.
async fn send_2(app: &Router, request: Request<Empty<Bytes>>) -> (StatusCode, HeaderMap) {
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), connect(app.clone())).await.unwrap();
    tokio::spawn(connection);
    // The settings of the server, which allow the handshake, come with the first response.
    let first = Request::get("http://localhost/settings").body(Empty::new()).unwrap();
    assert_eq!(sender.send_request(first).await.unwrap().status(), 404);
    let head = sender.send_request(request).await.unwrap().into_parts().0;
    (head.status, head.headers)
}

/// The recipe of the guide. A handshake succeeds with 101 over HTTP/1.1, and with 200 over HTTP/2.
#[tokio::test]
async fn handshakes_of_both_versions_count_and_other_requests_do_not() {
    let sockets = per_day("sockets", 9)
        .when(when::websocket())
        .count_if(|response| matches!(response.status.as_u16(), 101 | 200..=299));
    let socket = async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(async |_| {});
    let limits = layer([sockets]);
    let app = Router::new().route("/chat", any(socket)).layer(limits);
    let remaining = |headers: &HeaderMap| {
        let text = headers.get("ratelimit").map_or("", |value| value.to_str().unwrap());
        text.split("r=").nth(1).map(|rest| rest.split(';').next().unwrap().parse::<u32>().unwrap())
    };
    let upgrade = |value| {
        [
            ("upgrade", value),
            ("connection", "Upgrade"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("host", "localhost"),
        ]
    };
    let extended = |uri| {
        let mut request = request(Method::CONNECT, uri);
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        request
    };
    for (value, left) in [("websocket", 8), ("WebSocket", 7)] {
        let (status, headers) = send_1(&app, request(Method::GET, "/chat"), &upgrade(value)).await;
        assert_eq!((status, remaining(&headers)), (StatusCode::SWITCHING_PROTOCOLS, Some(left)));
    }
    for left in [6, 5] {
        let (status, headers) = send_2(&app, extended("http://localhost/chat")).await;
        assert_eq!((status, remaining(&headers)), (StatusCode::OK, Some(left)));
    }
    // A handshake that fails is refunded.
    let (status, _) = send_2(&app, extended("http://localhost/other")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = send_1(&app, request(Method::GET, "/other"), &upgrade("websocket")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // Other requests do not count.
    let (status, headers) = send_1(&app, request(Method::GET, "/chat"), &[("host", "localhost")]).await;
    assert_eq!((status, remaining(&headers)), (StatusCode::BAD_REQUEST, None));
    let (_, headers) = send_2(&app, extended("http://localhost/chat")).await;
    assert_eq!(remaining(&headers), Some(4));
}
