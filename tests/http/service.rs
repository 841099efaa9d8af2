//! Limits, layers, inner services and requests.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::panic::{UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use tower::{Layer, Service};
use tower_ratelimit::key::PeerAddr;
use tower_ratelimit::{Builder, FixedWindow, HttpOptions, Limit, ManualClock, MemoryStore, RateLimit, RateLimitLayer};

use crate::store::midnight;
use support::answer::{Answer, ask, statuses};

/// Returns a builder and the clock of its store, which stands at midnight.
pub(crate) fn clocked(limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, ManualClock) {
    let clock = midnight();
    (RateLimitLayer::builder(limits).store(MemoryStore::new().clock(clock.clone())), clock)
}

/// Returns a builder with a store whose clock stands at midnight.
pub(crate) fn builder(limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
    clocked(limits).0
}

pub(crate) fn layer(limits: impl IntoIterator<Item = Limit>) -> RateLimitLayer {
    builder(limits).build()
}

/// Puts a layer around [`Hello`].
pub(crate) fn serve(builder: Builder<HttpOptions>) -> RateLimit<Hello> {
    builder.build().layer(Hello::default())
}

pub(crate) fn limited(limits: impl IntoIterator<Item = Limit>) -> RateLimit<Hello> {
    serve(builder(limits))
}

pub(crate) fn per_minute(name: impl Into<String>, requests: u32) -> Limit {
    Limit::new(name, FixedWindow::per_minute(requests))
}

pub(crate) fn per_hour(name: impl Into<String>, requests: u32) -> Limit {
    Limit::new(name, FixedWindow::per_hour(requests))
}

pub(crate) fn per_day(name: impl Into<String>, requests: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(requests))
}

/// Returns a limit of one request per minute.
pub(crate) fn one() -> Limit {
    per_minute("one", 1)
}

/// A service that responds with `hello` and counts its calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hello {
    calls: Arc<AtomicUsize>,
}

impl Hello {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl<B> Service<Request<B>> for Hello {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(Full::from("hello"))))
    }
}

/// Returns `GET path`.
pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).expect("it is a request")
}

/// Returns `GET /` from a peer.
pub(crate) fn from(peer: &str) -> Request<()> {
    let peer: IpAddr = peer.parse().expect("it is an address");
    let mut request = get("/");
    request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer, 50_000)));
    request
}

/// Returns `GET /` with headers.
pub(crate) fn with(headers: &[(&str, &str)]) -> Request<()> {
    let request = headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(*name, *value));
    request.body(()).expect("it is a request")
}

/// Returns a request of a line such as `POST /path`, for Axum.
pub(crate) fn request(line: &str) -> Request<Body> {
    let (method, uri) = line.split_once(' ').expect("a method and a URI");
    Request::builder().method(method).uri(uri).body(Body::empty()).expect("a request")
}

/// Sends the request of a line such as `POST /path` to a router.
pub(crate) async fn visit(app: &Router, line: &str) -> Answer {
    ask(app, request(line)).await
}

/// Returns a gRPC request.
pub(crate) fn grpc() -> Request<()> {
    let request = Request::post("/package.Service/Method").version(Version::HTTP_2);
    request.header("content-type", "application/grpc").body(()).expect("a request")
}

/// Returns the values of `X-RateLimit-Limit`, `-Remaining` and `-Reset`, or of headers with another prefix. Missing ones
/// are empty.
pub(crate) fn triple<'a>(answer: &'a Answer, prefix: &str) -> [&'a str; 3] {
    ["limit", "remaining", "reset"].map(|name| answer.header(&format!("{prefix}-{name}")).unwrap_or_default())
}

/// Returns the message with which a function panics.
pub(crate) fn panic_message<T>(configure: impl FnOnce() -> T + UnwindSafe) -> String {
    let panic = catch_unwind(|| drop(configure())).expect_err("a panic");
    panic
        .downcast::<String>()
        .map_or_else(|panic| (*panic.downcast::<&str>().expect("a text")).to_owned(), |text| *text)
}

/// Returns `GET /` from 192.0.2.1, with a line of a header for each value.
pub(crate) fn lines(name: &'static str, values: &[&str]) -> Request<()> {
    let mut request = from("192.0.2.1");
    for value in values {
        request.headers_mut().append(name, value.parse().expect("a value"));
    }
    request
}

/// A header with a key.
pub(crate) const KEY: &str = "x-api-key";

/// Checks the statuses of consecutive requests, each with lines of the header [`KEY`].
pub(crate) async fn check_keys<const N: usize>(
    builder: Builder<HttpOptions>,
    requests: [&[&str]; N],
    expected: [u16; N],
) {
    assert_eq!(statuses(&serve(builder), requests.map(|values| lines(KEY, values))).await, expected, "{requests:?}");
}
