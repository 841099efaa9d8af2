//! Graceful shutdown: health checks fail first, rate limit checks are answered for a while, then connections close.

use std::future::Future;
use std::io;
use std::process;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::CONNECTION;
use http::{HeaderValue, Version};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The progress of a shutdown.
#[derive(Clone)]
pub(crate) struct Shutdown {
    phase: watch::Receiver<Phase>,
    drain: Duration,
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Phase {
    Serving,
    /// Checks are still answered, because proxies learn of the shutdown only by health checks.
    Draining,
    /// No connection is accepted, and open connections close after the current check.
    Ending,
}

impl Shutdown {
    /// Waits for SIGTERM or SIGINT in the background. A second signal ends the process at once.
    ///
    /// # Errors
    ///
    /// Returns an error if signals can't be handled.
    pub(crate) fn new(drain: Duration) -> io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (sender, phase) = watch::channel(Phase::Serving);
        tokio::spawn(async move {
            let mut signal = async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
            signal().await;
            tracing::info!(
                "shutting down: health checks fail, and rate limit checks are answered for {} s",
                drain.as_secs()
            );
            sender.send_replace(Phase::Draining);
            let end = async {
                tokio::time::sleep(drain).await;
                sender.send_replace(Phase::Ending);
                // The last receiver is dropped when everything is answered.
                sender.closed().await;
            };
            tokio::select! {
                () = end => {}
                () = signal() => {
                    tracing::warn!("a second signal ends the process at once");
                    process::exit(1);
                }
            }
        });
        Ok(Self { phase, drain })
    }

    /// Returns whether the shutdown has begun.
    pub(crate) fn has_begun(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// Waits until the shutdown begins.
    pub(crate) async fn begun(&mut self) {
        // Fails if the task of the signals has ended, which it does not.
        let _ = self.phase.wait_for(|phase| *phase > Phase::Serving).await;
    }

    /// Waits until no new connections are accepted.
    pub(crate) async fn drained(mut self) {
        let _ = self.phase.wait_for(|phase| *phase == Phase::Ending).await;
    }

    /// Waits for a server to end: after the drain, at most for as long again.
    pub(crate) async fn finish(&self, server: impl Future<Output = ()>) {
        let too_late = async {
            self.clone().drained().await;
            tokio::time::sleep(self.drain.max(Duration::from_secs(1))).await;
        };
        tokio::select! { () = server => {}, () = too_late => {} }
    }
}

/// Tells HTTP/1 clients to open another connection for their next check, once the shutdown has begun. Otherwise, they
/// could send one just when its connection closes.
pub(crate) async fn close_connections(State(shutdown): State<Shutdown>, request: Request, next: Next) -> Response {
    let is_http_1 = request.version() < Version::HTTP_2;
    let mut response = next.run(request).await;
    if is_http_1 && shutdown.has_begun() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
