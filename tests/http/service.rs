//! Inner services and requests.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::Service;
use tower_ratelimit::key::PeerAddr;

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
