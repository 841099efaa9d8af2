//! An upstream with the calls that wait for it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower_service::Service;

use super::LONGEST_TIME;
use super::answer::{Wait, quotas, rejection};
use super::schedule::Schedule;
use crate::limiter::{AcquireError, CallError};

/// The pause after a rejection that names no time.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// The state of an upstream.
pub(super) struct Upstream {
    /// Held by the call that leaves next. Tokio's mutex is fair.
    turn: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
    schedule: Mutex<Schedule>,
}

impl Upstream {
    pub(super) fn new() -> Self {
        let schedule = Mutex::new(Schedule::new(Instant::now()));
        Self { turn: tokio::sync::Mutex::default(), waiting: AtomicUsize::new(0), schedule }
    }

    /// Returns whether calls are held because one was rejected.
    pub(super) fn is_paused(&self) -> bool {
        self.schedule().is_paused(Instant::now())
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of a call, behind at most `max_waiting` others. Returns a clone of `inner` that is ready.
    ///
    /// # Errors
    ///
    /// Returns an error if the turn does not come in `max_wait`, if too many calls wait, or if the service fails.
    pub(super) async fn wait<S: Service<T> + Clone, T>(
        self: Arc<Self>,
        inner: S,
        max_wait: Duration,
        max_waiting: usize,
    ) -> Result<(S, InFlight), CallError<S::Error>> {
        let began = Instant::now();
        let Some(place) = Place::take(&self, max_waiting) else { return Err(self.limited()) };
        let deadline = began + max_wait;
        let turn = timeout_at(deadline, self.turn(inner, deadline)).await;
        let Some((ready, sent, has_waited)) = turn.ok().transpose().map_err(CallError::Service)?.flatten() else {
            return Err(self.limited());
        };
        drop(place);
        let waited = has_waited.then(|| sent - began);
        Ok((ready, InFlight { upstream: self, sent, waited }))
    }

    /// Waits until a call may leave, and until a clone of `inner` is ready. Returns the clone, the time, and whether
    /// the call was held. Returns `None` if it would be held for longer than until `deadline`.
    async fn turn<S: Service<T> + Clone, T>(
        &self,
        inner: S,
        deadline: Instant,
    ) -> Result<Option<(S, Instant, bool)>, S::Error> {
        let mut has_waited = false;
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                has_waited = true;
                self.turn.lock().await
            }
        };
        loop {
            let next = self.schedule().next();
            if next > deadline {
                return Ok(None);
            }
            has_waited |= next > Instant::now();
            sleep_until(next).await;
            let mut ready = inner.clone();
            poll_fn(|context| ready.poll_ready(context)).await?;
            // Meanwhile, another call may have been rejected.
            let now = Instant::now();
            if self.schedule().leave(now) {
                return Ok(Some((ready, now, has_waited)));
            }
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
struct Place<'a>(&'a Upstream);

impl<'a> Place<'a> {
    /// Takes a place, unless `max_waiting` calls wait.
    fn take(upstream: &'a Upstream, max_waiting: usize) -> Option<Self> {
        let place = Self(upstream);
        (upstream.waiting.fetch_add(1, Ordering::Relaxed) < max_waiting).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that has left, and has no response yet.
pub(super) struct InFlight {
    upstream: Arc<Upstream>,
    sent: Instant,
    /// How long it waited for its turn, if it did.
    pub(super) waited: Option<Duration>,
}

impl InFlight {
    /// Learns from the response.
    pub(super) fn learn<R>(&self, response: &Response<R>) {
        let (mut schedule, sent, now) = (self.upstream.schedule(), self.sent, Instant::now());
        match rejection(response) {
            Some(Wait::AtLeast(wait)) => schedule.reject(sent, now, wait.min(LONGEST_TIME)),
            // The upstream may be down, which says nothing about its limit.
            Some(_) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {}
            Some(_) => schedule.reject(sent, now, DEFAULT_PAUSE),
            None => schedule.admit(sent, now, &quotas(response.headers())),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.upstream.schedule().end();
    }
}
