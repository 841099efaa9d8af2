//! An Axum application, with or without a layer, called as a server calls it.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tokio::net::TcpListener;
use tower::Service;

#[derive(Clone)]
pub enum App {
    Axum(axum::Router),
    /// For layers that support no newer version.
    Axum07(axum_0_7::Router),
}

/// A body without memory of its own.
pub type Call = Request<Empty<Bytes>>;

impl App {
    /// Returns the application that answers `hello`, before any layer.
    pub fn hello() -> axum::Router {
        axum::Router::new().route("/", axum::routing::get(async || "hello"))
    }

    /// Builds the router once, as a server does, so that no request pays for it.
    pub fn ready(self) -> Self {
        match self {
            Self::Axum(router) => Self::Axum(router.with_state(())),
            Self::Axum07(router) => Self::Axum07(router.with_state(())),
        }
    }

    /// Returns a request as a server passes it on, with the peer's address.
    pub fn request(&self, from: Ipv4Addr) -> Call {
        let peer = SocketAddr::new(IpAddr::V4(from), 50_000);
        let mut request = Request::new(Empty::new());
        match self {
            Self::Axum(_) => drop(request.extensions_mut().insert(axum::extract::ConnectInfo(peer))),
            Self::Axum07(_) => drop(request.extensions_mut().insert(axum_0_7::extract::ConnectInfo(peer))),
        }
        request
    }

    /// # Panics
    ///
    /// If the response is not ready at once.
    pub fn answer(&mut self, request: Call) -> StatusCode {
        match self {
            Self::Axum(router) => at_once(router.call(request)),
            Self::Axum07(router) => at_once(router.call(request)),
        }
    }

    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        match self {
            Self::Axum(app) => axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await,
            Self::Axum07(app) => {
                axum_0_7::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
            }
        }
    }
}

fn at_once<B>(answer: impl Future<Output = Result<Response<B>, Infallible>>) -> StatusCode {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response.status(),
        Poll::Pending => panic!("it waits"),
    }
}
