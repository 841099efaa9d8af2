//! The layer that paces calls: each waits for its turn, in the order of the calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::checked_time;
use super::upstream::Upstream;
use super::upstreams::Upstreams;
use crate::key::KeyExtractor;
use crate::limiter::CallError;
use crate::recorder::{Event, Recorder, Recorders, report};

/// A layer that keeps the calls of a client below the limit of each upstream.
///
/// - If an upstream [rejects](super#rejections) a call, all calls to it wait for as long as it asks, at most a day, and
///   for a second if it names no time. Calls to other upstreams go on. A 503 that names no time changes nothing.
/// - `RateLimit` and `X-RateLimit-*` headers slow calls down before they are rejected, so that what remains lasts for
///   its time, or for a minute if that is longer, at no less than one call in two seconds.
/// - Without such headers, the layer learns the rate that an upstream allows. It begins with 20 calls per second,
///   doubles the rate every 600 ms while there are more calls, and adapts it after each rejection. It notices within
///   about two minutes that a limit has become larger.
///
/// Calls leave in the order in which their futures are first polled. A call whose future is dropped gives up its place.
/// A call fails with [`CallError::Limited`], and is not sent, if a pause lasts longer than
/// [`max_wait`](Self::max_wait), if its turn does not come within that time, or if [`max_waiting`](Self::max_waiting)
/// others wait. Its `retry_after` is the rest of a pause and the time that the waiting calls take at the present rate.
/// Errors of the service are [`CallError::Service`].
///
/// Services of one layer, and clones of it, share what they learn. Processes don't. The service is always ready: each
/// call waits for a clone of the inner service, after its turn has come. Needs a Tokio runtime with its timers enabled.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::client::PaceLayer;
///
/// let pace = PaceLayer::new().max_wait(Duration::from_secs(10));
/// # let _ = pace;
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct PaceLayer {
    upstreams: Upstreams<Upstream>,
    max_wait: Duration,
    max_waiting: usize,
    recorders: Recorders,
}

impl PaceLayer {
    /// Creates a layer with the default settings.
    pub fn new() -> Self {
        Self {
            upstreams: Upstreams::new(),
            max_wait: Duration::from_secs(60),
            max_waiting: 1_000,
            recorders: Recorders::new(),
        }
    }

    /// Sets how long a call may wait. Defaults to 60 seconds.
    ///
    /// # Panics
    ///
    /// Panics if `wait` is 0 or longer than a day.
    #[track_caller]
    pub fn max_wait(self, wait: Duration) -> Self {
        Self { max_wait: checked_time("max_wait", wait), ..self }
    }

    /// Sets how many calls may wait for each upstream. Defaults to 1,000.
    ///
    /// # Panics
    ///
    /// Panics if `calls` is 0.
    #[track_caller]
    pub fn max_waiting(self, calls: usize) -> Self {
        assert!(calls > 0, "max_waiting is 0: let at least 1 call wait");
        Self { max_waiting: calls, ..self }
    }

    /// Sets the key that tells upstreams apart. Defaults to the host and port of the URL. Requests without a key share
    /// one upstream.
    ///
    /// The layer remembers 1,000 upstreams. Then it forgets the one that was used least recently, and paused ones last.
    /// With another key, it begins anew.
    ///
    /// # Panics
    ///
    /// Panics if the key is asynchronous.
    #[track_caller]
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.upstreams = Upstreams::by(key);
        self
    }

    /// Adds a recorder of [`Event::CallDelayed`].
    pub fn recorder(mut self, recorder: impl Recorder) -> Self {
        self.recorders.push(Arc::new(recorder));
        self
    }
}

impl Default for PaceLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PaceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for PaceLayer {
    type Service = Pace<S>;

    fn layer(&self, inner: S) -> Pace<S> {
        Pace { inner, layer: Arc::new(self.clone()) }
    }
}

/// Paces the calls of a service. Created by a [`PaceLayer`].
#[derive(Clone, Debug)]
pub struct Pace<S> {
    inner: S,
    layer: Arc<PaceLayer>,
}

impl<S> Pace<S> {
    /// Waits for the turn of a call, and makes it.
    async fn paced<B, R>(self, request: Request<B>) -> Result<Response<R>, CallError<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone,
    {
        let Self { inner, layer } = self;
        let PaceLayer { upstreams, max_wait, max_waiting, recorders } = &*layer;
        let upstream = upstreams.of(&request, Upstream::new, Upstream::is_paused);
        let (mut ready, in_flight) = upstream.wait(inner, *max_wait, *max_waiting).await?;
        if let Some(wait) = in_flight.waited {
            report(recorders, &Event::CallDelayed { wait });
        }
        let response = ready.call(request).await.map_err(CallError::Service)?;
        in_flight.learn(&response);
        Ok(response)
    }
}

impl<S, B, R> Service<Request<B>> for Pace<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    S::Error: Send,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = CallError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, CallError<S::Error>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(self.clone().paced(request))
    }
}
