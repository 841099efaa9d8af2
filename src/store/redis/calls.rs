//! The calls over one connection, and the signs that it is dead.

use std::io::{Error, ErrorKind};
use std::mem::take;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::TryFutureExt;
use futures_util::future::{Either, select};
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use tokio::runtime;
use tokio::sync::{Notify, watch};
use tokio::time::{self, MissedTickBehavior, interval_at, timeout};

use super::connector::Connector;
use super::error::Fault;
use super::queue::{Job, MAX_REQUESTS, Queue};

/// The first pause between two attempts to connect, before jitter.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// A connection that a call breaks within this time, before any answer, counts as a failed attempt. So do all
/// connections to a replica. For one that is lost while idle, [`PAUSE`] is enough.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The most times that a command is sent if the server does not know the script: more than twice only if the script is
/// flushed repeatedly.
const MAX_SENDS: usize = 3;

/// The interval at which idle connections are checked. Networks forget connections that are idle for minutes.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// A connection without replies for this time is checked before a call while another call is under way: the first call
/// after a pause shows whether a network has forgotten the connections.
const STALE_AFTER: Duration = Duration::from_millis(100);

/// What the workers of a server share.
pub(super) struct Shared {
    pub(super) connector: Connector,
    pub(super) state: Mutex<State>,
    /// Wakes a worker that waits for jobs.
    pub(super) work: Notify,
}

pub(super) struct State {
    pub(super) queue: Queue,
    /// The workers that were started, and whose runtimes have not ended.
    pub(super) workers: Vec<WorkerState>,
    /// The number of workers that were ever started.
    pub(super) started: u64,
}

pub(super) struct WorkerState {
    pub(super) id: u64,
    /// The runtime that it runs on. `None` only in tests.
    pub(super) runtime: Option<runtime::Id>,
    /// Why it has no connection and opens none: it could not connect, and will try again after a pause.
    pub(super) fault: Option<Fault>,
}

impl Shared {
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        self.connector.connect().await.map_err(|fault| Fault::Connect(Arc::new(fault)))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that can die silently: a network has forgotten it, or its server has vanished.
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    /// Whether a reply is overdue.
    pub(super) is_overdue: watch::Sender<bool>,
    /// Why no further call begins.
    pub(super) broken: OnceLock<Fault>,
}

impl Link {
    /// Awaits a reply. If it is overdue, another connection is opened, and calls `overdue`.
    async fn reply<T>(
        &self,
        reply: impl Future<Output = Result<T, Fault>>,
        overdue: impl FnOnce(),
    ) -> Result<T, Fault> {
        let (mut reply, connector) = (pin!(reply), &self.shared.connector);
        let patience = connector.patience();
        if let Ok(replied) = timeout(patience, &mut reply).await {
            return replied;
        }
        overdue();
        self.is_overdue.send_replace(true);
        let replied = timeout(connector.config.response_timeout.saturating_sub(patience), reply).await;
        self.is_overdue.send_replace(false);
        replied.unwrap_or_else(|_| Err(Fault::TimedOut(Error::from(ErrorKind::TimedOut).into())))
    }

    /// Makes a call, in one round trip, and answers all callers. A command is sent again only if the server replied
    /// that it does not know the script, or that it has not all keys. Returns the fault that breaks the connection.
    pub(super) async fn perform(
        &self,
        connection: &mut MultiplexedConnection,
        mut jobs: Vec<Job>,
        call: &mut Call<'_>,
    ) -> Option<Fault> {
        let mut broken = None;
        for sends in 1.. {
            let mut pipeline = Pipeline::with_capacity(jobs.len());
            for job in &jobs {
                if job.asking {
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(job.to_command(self.shared.connector.hash()));
            }
            let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len()).map_err(Fault::from);
            // The other connections are checked before their next call.
            let replies = self.reply(replies, || self.shared.connector.suspicion.send_replace(())).await;
            // Before callers are answered, which may ask again.
            call.end();
            let (replies, missing) = match replies {
                Ok(replies) => (replies, Fault::Reply("another number of requests")),
                Err(fault) => (Vec::new(), fault),
            };
            let mut replies = replies.into_iter().map(|reply| reply.extract_error().map_err(Fault::from));
            let mut is_flushed = false;
            for job in take(&mut jobs) {
                // If `ASKING` fails, the second reply is only a redirection.
                let reply = replies.by_ref().take(1 + usize::from(job.asking)).reduce(Result::and);
                match reply.unwrap_or_else(|| Err(missing.clone())) {
                    Err(Fault::Flushed) if sends < MAX_SENDS => {
                        is_flushed = true;
                        jobs.push(job);
                    }
                    // The keys of a slot that is being migrated are on two servers. If all requests were redirected
                    // together, keys that have not been migrated yet would lose their state.
                    Err(fault) if job.callers.len() > 1 && fault.is_half_moved() => jobs.extend(job.split()),
                    reply => broken = broken.or(job.answer(reply)),
                }
            }
            if jobs.is_empty() {
                break;
            }
            if is_flushed && let Err(fault) = self.reply(self.shared.connector.load(connection), || ()).await {
                jobs.into_iter().for_each(|job| drop(job.answer(Err(fault.clone()))));
                return broken.or(Some(fault).filter(Fault::breaks));
            }
        }
        broken
    }

    /// Makes one call after the other, until the connection is broken. Returns whether it was stable before.
    pub(super) async fn make_calls(self: Arc<Self>, mut connection: MultiplexedConnection) -> bool {
        let Shared { connector, work, .. } = &*self.shared;
        let mut call = Call { shared: &self.shared, requests: 0 };
        let mut suspicions = connector.suspicion.subscribe();
        let mut checks = interval_at(time::Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (opened, mut stable_after, mut is_proven) = (Instant::now(), STABLE_AFTER, false);
        let (mut replied, mut is_suspect) = (opened, false);
        let demotions = connector.demotions.load(Ordering::Relaxed);
        while self.broken.get().is_none() {
            if connector.demotions.load(Ordering::Relaxed) > demotions && opened.elapsed() > STABLE_AFTER {
                _ = self.broken.set(Fault::Interrupted);
                break;
            }
            is_suspect |= suspicions.has_changed().unwrap_or(false);
            let jobs = if is_suspect { None } else { call.begin(replied.elapsed() > STALE_AFTER) };
            let fault = if let Some(jobs) = jobs {
                if jobs.is_empty() {
                    let (woken, suspected, check) =
                        (pin!(work.notified()), pin!(suspicions.changed()), pin!(checks.tick()));
                    is_suspect = matches!(select(woken, select(suspected, check)).await, Either::Right(_));
                    continue;
                }
                let fault = self.perform(&mut connection, jobs, &mut call).await;
                if fault.as_ref().is_some_and(Fault::is_of_replica) {
                    connector.demotions.fetch_add(1, Ordering::Relaxed);
                }
                // Callers that were just answered may ask again: these requests share the next call, unless it is full.
                if self.shared.state().queue.waiting.len() < MAX_REQUESTS {
                    tokio::task::yield_now().await;
                }
                fault
            } else {
                (stable_after, is_suspect) = (PAUSE, false);
                // For what waits meanwhile.
                if !self.shared.state().queue.waiting.is_empty() {
                    work.notify_last();
                }
                self.reply(connector.check(&mut connection), || ()).await.err().filter(Fault::breaks)
            };
            match fault {
                // Any reply shows that the connection works, whatever is suspected of others.
                None => {
                    (replied, is_proven) = (Instant::now(), true);
                    suspicions.mark_unchanged();
                }
                // The call that ends wakes the other one of the connection.
                Some(fault) => _ = self.broken.set(fault),
            }
        }
        is_proven || opened.elapsed() > stable_after
    }
}

/// Counts a call until it ends or is dropped.
pub(super) struct Call<'a> {
    pub(super) shared: &'a Shared,
    pub(super) requests: usize,
}

impl Call<'_> {
    /// Begins the next call, if anything waits, and wakes another worker if more does. Returns its jobs.
    ///
    /// The first call over a stale connection has one request. Returns `None` if another call is under way, whose reply
    /// may never arrive either.
    pub(super) fn begin(&mut self, is_stale: bool) -> Option<Vec<Job>> {
        let mut state = self.shared.state();
        if is_stale && state.queue.has_calls() && !state.queue.waiting.is_empty() {
            return None;
        }
        let (jobs, requests) = state.queue.begin_call(if is_stale { 1 } else { MAX_REQUESTS });
        self.requests = requests;
        if !state.queue.waiting.is_empty() {
            self.shared.work.notify_last();
        }
        Some(jobs)
    }

    fn end(&mut self) {
        if self.requests > 0 {
            self.shared.state().queue.end_call(take(&mut self.requests));
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.end();
        // This worker will not begin another call.
        self.shared.work.notify_last();
    }
}
