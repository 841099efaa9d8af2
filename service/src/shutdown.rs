//! A graceful end: health checks fail first, then questions are answered for a while, then connections end.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::CONNECTION;
use http::{HeaderValue, Version};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The state of the end of this process.
#[derive(Clone)]
pub(crate) struct Shutdown {
    phase: watch::Receiver<Phase>,
    drain: Duration,
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Phase {
    Serving,
    /// Questions are still answered, because proxies learn of the end by health checks only.
    Draining,
    /// No connection is accepted, and those that are open end with their questions.
    Ending,
}

impl Shutdown {
    /// Waits for SIGTERM or SIGINT in the background.
    ///
    /// # Errors
    ///
    /// Returns an error if signals can't be handled.
    pub(crate) fn new(drain: Duration) -> io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (sender, phase) = watch::channel(Phase::Serving);
        tokio::spawn(async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            tracing::info!("ending: health checks fail, and questions are answered for {} s", drain.as_secs());
            sender.send_replace(Phase::Draining);
            tokio::time::sleep(drain).await;
            sender.send_replace(Phase::Ending);
            // The last receiver is dropped when everything is answered.
            sender.closed().await;
        });
        Ok(Self { phase, drain })
    }

    /// Returns whether the process is about to end.
    pub(crate) fn has_begun(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// Waits until the process is about to end.
    pub(crate) async fn begun(&mut self) {
        // Fails if the task of the signals has ended, which it does not.
        let _ = self.phase.wait_for(|phase| *phase > Phase::Serving).await;
    }

    /// Waits until no new connections are accepted.
    pub(crate) async fn drained(mut self) {
        let _ = self.phase.wait_for(|phase| *phase == Phase::Ending).await;
    }

    /// Waits for a server to end. Once it accepts no connections, gives it the time of the drain again.
    pub(crate) async fn finish(&self, server: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let too_late = async {
            self.clone().drained().await;
            tokio::time::sleep(self.drain.max(Duration::from_secs(1))).await;
        };
        tokio::select! { ended = server => ended, () = too_late => Ok(()) }
    }
}

/// Asks clients of HTTP/1 to open another connection for their next question, once the process is about to end.
/// Otherwise, one could be sent just when its connection is closed.
pub(crate) async fn close_connections(State(shutdown): State<Shutdown>, request: Request, next: Next) -> Response {
    let is_http_1 = request.version() < Version::HTTP_2;
    let mut response = next.run(request).await;
    if is_http_1 && shutdown.has_begun() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
