//! The layer that paces calls: each waits for its turn, in the order of the calls.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{Wait, denial, quotas};
use super::retry::checked_time;
use super::schedule::Schedule;
use super::upstreams::Upstreams;
use crate::key::KeyExtractor;
use crate::limiter::{AcquireError, CallError};
use crate::recorder::{Event, Recorder, Recorders, report};

/// The pause after a denial without a time.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(86_400);

/// A layer that keeps the calls of a client below the limit of each upstream.
///
/// - If an upstream [denies](super#denials) a call, all calls to it wait for as long as it asks, at most a day, and for
///   a second if it names no time. A 503 without a time is not a denial. Calls to other upstreams go on.
/// - `RateLimit` and `X-RateLimit-*` headers slow calls down before they are denied, so that what remains lasts.
/// - Without such headers, the layer learns the rate that an upstream allows: it begins with 20 calls per second,
///   doubles the rate every 600 ms while there are more calls, and adapts it after each denial. It notices within about
///   two minutes that a limit has become larger.
///
/// Calls leave in the order in which their futures are first polled. A call whose future is dropped gives up its place.
/// A call that would have to wait for longer than [`max_wait`](Self::max_wait), or behind more calls than
/// [`max_waiting`](Self::max_waiting), fails with [`CallError::Limited`], and is not sent. Errors of the service are
/// [`CallError::Service`].
///
/// Services of one layer, and clones of it, share what they learn. Processes don't. The service is always ready: each
/// call waits for a clone of the inner service. Needs a Tokio runtime with its timers enabled.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::client::PaceLayer;
///
/// let pace = PaceLayer::new().max_wait(Duration::from_secs(10));
/// # let _ = pace;
/// ```
#[derive(Clone)]
pub struct PaceLayer {
    upstreams: Upstreams<Upstream>,
    max_wait: Duration,
    max_waiting: usize,
    recorders: Recorders,
}

impl PaceLayer {
    /// Creates a layer with the default settings.
    #[must_use]
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
    #[must_use]
    #[track_caller]
    pub fn max_wait(self, wait: Duration) -> Self {
        Self { max_wait: checked_time("max_wait", wait), ..self }
    }

    /// Sets how many calls may wait for each upstream. Defaults to 1,000.
    ///
    /// # Panics
    ///
    /// Panics if `calls` is 0.
    #[must_use]
    #[track_caller]
    pub fn max_waiting(self, calls: usize) -> Self {
        assert!(calls > 0, "max_waiting is 0: let at least 1 call wait");
        Self { max_waiting: calls, ..self }
    }

    /// Sets the key that tells upstreams apart. Defaults to the host and port of the URL.
    ///
    /// At most the 1,000 upstreams that were used last are remembered.
    ///
    /// # Panics
    ///
    /// Panics if the key is asynchronous.
    #[must_use]
    #[track_caller]
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.upstreams.set_key(key);
        self
    }

    /// Adds a recorder of [`Event::CallDelayed`].
    #[must_use]
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
        Pace { inner, layer: self.clone() }
    }
}

/// A service whose calls are paced. Created by [`PaceLayer`].
#[derive(Clone, Debug)]
pub struct Pace<S> {
    inner: S,
    layer: PaceLayer,
}

/// The state of one upstream.
struct Upstream {
    /// Held by the call that leaves next. Tokio's mutex is fair.
    turn: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
    schedule: Mutex<Schedule>,
}

impl Upstream {
    fn new() -> Self {
        let schedule = Mutex::new(Schedule::new(Instant::now()));
        Self { turn: tokio::sync::Mutex::default(), waiting: AtomicUsize::new(0), schedule }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call may leave, and until a clone of `inner` is ready. Returns the clone and the time.
    async fn turn<S: Service<T> + Clone, T>(&self, inner: S) -> Result<(S, Instant), S::Error> {
        let _turn = self.turn.lock().await;
        loop {
            let next = self.schedule().next();
            sleep_until(next).await;
            let mut ready = inner.clone();
            poll_fn(|context| ready.poll_ready(context)).await?;
            // Meanwhile, another call may have been denied.
            let now = Instant::now();
            if self.schedule().leave(now) {
                return Ok((ready, now));
            }
        }
    }

    /// Learns from the response to a call that left at `sent`.
    fn learn<R>(&self, sent: Instant, response: &Response<R>) {
        let (mut schedule, now) = (self.schedule(), Instant::now());
        match denial(response) {
            Some(Wait::AtLeast(wait)) => schedule.deny(sent, now, wait.min(MAX_PAUSE)),
            Some(_) if response.status() != StatusCode::SERVICE_UNAVAILABLE => schedule.deny(sent, now, DEFAULT_PAUSE),
            _ => schedule.admit(sent, now, &quotas(response.headers())),
        }
    }

    /// Returns the error of a call that is not sent.
    fn limited<E>(&self) -> CallError<E> {
        let schedule = self.schedule();
        let pause = schedule.next().saturating_duration_since(Instant::now());
        let wait = pause + schedule.time_of(self.waiting.load(Ordering::Relaxed));
        CallError::Limited(AcquireError::Denied { retry_after: Some(wait) })
    }
}

/// A place in the queue of an upstream.
struct Place(Arc<Upstream>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call without a response yet.
struct InFlight(Arc<Upstream>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.schedule().end();
    }
}

impl PaceLayer {
    /// Waits for the turn of a call, and makes it.
    async fn call<S, B, R>(self, inner: S, request: Request<B>) -> Result<Response<R>, CallError<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone,
    {
        let upstream = self.upstreams.of(&request, Upstream::new);
        let began = Instant::now();
        let deadline = began + self.max_wait;
        if upstream.waiting.fetch_add(1, Ordering::Relaxed) >= self.max_waiting {
            upstream.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(upstream.limited());
        }
        let place = Place(upstream.clone());
        if upstream.schedule().next() > deadline {
            return Err(upstream.limited());
        }
        let Ok(turn) = timeout_at(deadline, upstream.turn(inner)).await else { return Err(upstream.limited()) };
        let (mut ready, sent) = turn.map_err(CallError::Service)?;
        drop(place);
        let _in_flight = InFlight(upstream.clone());
        if sent > began {
            report(&self.recorders, &Event::CallDelayed { wait: sent - began });
        }
        let response = ready.call(request).await.map_err(CallError::Service)?;
        upstream.learn(sent, &response);
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
        Box::pin(self.layer.clone().call(self.inner.clone(), request))
    }
}
