//! The accept loop of a listener: a bounded number of connections, and timeouts for peers that hold them open.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// How long a connection may take until the head of its first request is complete.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// How long an HTTP/1 connection may take until the head of its next request is complete.
///
/// This is longer than nginx, Traefik and Caddy keep idle connections by default. If the limiter closed them first, a
/// check that was just sent could be lost.
const NEXT_REQUEST: Duration = Duration::from_secs(150);

/// The interval of pings over HTTP/2, and the time for their answers.
const PING: Duration = Duration::from_secs(20);

/// The pause after the system can't accept a connection, as when too many files are open.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves connections until the end begins, and then until all requests are answered. Further connections wait until
/// others close.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    end: impl Future<Output = ()>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(NEXT_REQUEST);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    let permits = Arc::new(Semaphore::new(max_connections));
    let connections = GracefulShutdown::new();
    tokio::pin!(end);
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await.expect("it is never closed");
            (accept(&listener).await, permit)
        };
        let ((stream, peer), permit) = tokio::select! { next = next => next, () = &mut end => break };
        let has_requested = Arc::new(AtomicBool::new(false));
        let requested = has_requested.clone();
        let service = router.clone().map_request(move |request| {
            requested.store(true, Ordering::Relaxed);
            with_peer(request, peer)
        });
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).into_owned();
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            let _permit = permit;
            let silent = async {
                tokio::time::sleep(FIRST_REQUEST).await;
                if has_requested.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                ended = connection => if let Err(error) = ended { tracing::debug!(%peer, error, "connection failed") },
                () = silent => tracing::debug!(%peer, "connection without a request closed"),
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// Accepts a connection. Pauses after an error of the system, which the next attempt would get again.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // If the client has already closed the connection, its first read fails.
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                tracing::error!(%error, "can't accept connections: the next attempt is in {} s", PAUSE.as_secs());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Rejects requests of peers that are not trusted, if they take too long to send the body.
pub(crate) async fn in_time(request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(FIRST_REQUEST, next.run(request)).await;
    answered.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
}

/// Adds the address of the peer to a request.
fn with_peer(mut request: http::Request<Incoming>, peer: SocketAddr) -> Request {
    request.extensions_mut().insert(ConnectInfo(peer));
    request.map(Body::new)
}
