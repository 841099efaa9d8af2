//! The tasks that send waiting requests to a server, each over a connection of its own.

use std::mem::take;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use deadpool_redis::Connection;
use futures_util::future::{Either, select, try_join_all};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Pipeline};
use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::config::{RedisConfig, SentinelMaster};
use super::connector::Connector;
use super::error::Fault;
use super::queue::{CALLS, Command, CommandReply, Job, MAX_REQUESTS, Queue};
use crate::time::jittered;

/// The first pause between two attempts to connect, and the longest, before jitter.
const PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// A connection that a call breaks within this time, before any answer, counts as a failed attempt. So do all
/// connections to a replica. For one that is lost while idle, [`PAUSE`] is enough.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The most times that a command is sent if the server does not know the script: more than twice only if the script is
/// flushed repeatedly.
const MAX_SENDS: usize = 3;

/// The queue of a server, and the workers that send what waits in it. A worker opens its connection, replaces it when
/// it breaks, and ends with the runtime that it runs on.
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// Aborted when this is dropped.
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    connector: Connector,
    /// The most jobs that wait.
    capacity: usize,
    state: Mutex<State>,
    /// Wakes a worker that waits for jobs.
    work: Notify,
}

struct State {
    queue: Queue,
    /// For each worker that has no connection and opens none, why: it could not connect, and will try again after a
    /// pause; or [`Fault::NoRuntime`], if it was never needed, or its runtime has ended.
    faults: Vec<Option<Fault>>,
}

impl Workers {
    /// Creates the queue of the only server, or of the `master` that the servers name as Sentinels, and a worker for
    /// each connection. They are started when they are needed.
    pub(super) fn new(
        servers: Vec<ConnectionInfo>,
        master: Option<SentinelMaster>,
        config: &RedisConfig,
    ) -> Result<Self, Fault> {
        let connector = Connector::new(servers, master, config)?;
        let state = State { queue: Queue::default(), faults: vec![Some(Fault::NoRuntime); config.connections] };
        let shared =
            Shared { connector, capacity: config.queue_capacity, state: Mutex::new(state), work: Notify::new() };
        Ok(Self { shared: Arc::new(shared), tasks: Mutex::default() })
    }

    /// Opens all connections, and starts the workers with them.
    ///
    /// # Errors
    ///
    /// Returns an error if a connection can't be opened, if the server accepts no writes, or outside a Tokio runtime.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        Handle::try_current().map_err(|_| Fault::NoRuntime)?;
        let connections = self.shared.state().faults.len();
        let opened = try_join_all((0..connections).map(|_| self.shared.connect())).await?;
        if let Some(fault) = self.shared.connector.refused() {
            return Err(fault);
        }
        self.start(usize::MAX, opened);
        Ok(())
    }

    /// Starts up to `most` workers that are stopped, with the connections that are open already. Outside a Tokio
    /// runtime, this is left to the next request.
    pub(super) fn start(&self, most: usize, mut opened: Vec<Connection>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut workers = Vec::new();
        for (index, fault) in self.shared.state().faults.iter_mut().enumerate() {
            if matches!(fault, Some(Fault::NoRuntime)) && workers.len() < most {
                *fault = None;
                workers.push(Worker { shared: self.shared.clone(), index });
            }
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those whose runtime has ended.
        while tasks.try_join_next().is_some() {}
        for worker in workers {
            // A runtime that shuts down drops a task that was never polled, and with it the worker.
            tasks.spawn_on(worker.run(opened.pop()), &runtime);
        }
    }

    /// Returns the number of jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.shared.state().queue.waiting.len()
    }

    /// Sends a command for keys of a `slot`. With `asking`, another master of a Cluster may be moving it to this one.
    ///
    /// A command whose future is dropped before it was sent leaves the queue at once and is never sent. Otherwise, it
    /// is sent once: again only if the server replied that it did not run.
    ///
    /// # Errors
    ///
    /// [`Fault::QueueFull`], at once, if the queue is full; [`Fault::Connect`], at once, if there is no connection, and
    /// no attempt to connect is under way.
    pub(super) async fn send(&self, slot: u16, command: Command, asking: bool) -> Result<CommandReply, Fault> {
        let (caller, answer) = oneshot::channel();
        let ticket = self.enter(Job { command, slot, asking, callers: smallvec![caller] })?;
        let mut waiting = Waiting { shared: &self.shared, ticket, answer };
        // A worker is dropped with the runtime that it runs on, and its call with it.
        (&mut waiting.answer).await.unwrap_or(Err(Fault::Interrupted))
    }

    fn enter(&self, job: Job) -> Result<u64, Fault> {
        let mut state = self.shared.state();
        let waiting = state.queue.waiting.len();
        // It always has room for a refund, which returns the charge of an earlier request; otherwise, charges of denied
        // requests would remain under overload.
        if waiting >= self.shared.capacity && !job.is_refund() {
            return Err(Fault::QueueFull { waiting });
        }
        if state.faults.iter().any(|fault| matches!(fault, Some(Fault::NoRuntime))) {
            drop(state);
            self.start(1, Vec::new());
            state = self.shared.state();
        }
        if let Some(fault) = state.fault() {
            return Err(fault);
        }
        let ticket = state.queue.push(job);
        drop(state);
        self.shared.work.notify_one();
        Ok(ticket)
    }
}

/// A job of a caller. Dropping it takes the job off the queue, if it was not sent yet.
struct Waiting<'a> {
    shared: &'a Shared,
    ticket: u64,
    answer: oneshot::Receiver<Result<CommandReply, Fault>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answer.is_terminated() {
            let abandoned = self.shared.state().queue.waiting.remove(&self.ticket);
            // Freed once the queue is unlocked.
            drop(abandoned);
        }
    }
}

impl State {
    /// Returns why no worker is running.
    fn fault(&self) -> Option<Fault> {
        let faults = self.faults.iter().map(Option::as_ref).collect::<Option<Vec<_>>>()?;
        faults.into_iter().min_by_key(|fault| matches!(fault, Fault::NoRuntime)).cloned()
    }
}

impl Shared {
    async fn connect(&self) -> Result<Connection, Fault> {
        self.connector.connect().await.map_err(|fault| Fault::Connect(Arc::new(fault)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call, in one round trip, and answers all callers. A command is sent again only if the server replied
    /// that it does not know the script, or that it has not all keys. Returns the fault that breaks the connection.
    async fn perform(
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
                pipeline.add_command(job.to_command(self.connector.hash()));
            }
            let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len()).await.map_err(Fault::from);
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
            if is_flushed && let Err(fault) = self.connector.load(connection).await {
                jobs.into_iter().for_each(|job| drop(job.answer(Err(fault.clone()))));
                return broken.or(Some(fault).filter(Fault::breaks));
            }
        }
        broken
    }

    /// Makes one call after the other, until the connection is `broken`. Returns whether it was stable before.
    async fn make_calls(self: Arc<Self>, mut connection: MultiplexedConnection, broken: Arc<OnceLock<Fault>>) -> bool {
        let mut call = Call { shared: &self, requests: 0 };
        let mut losses = self.connector.lost.subscribe();
        let (opened, mut stable_after, mut is_proven) = (Instant::now(), STABLE_AFTER, false);
        while broken.get().is_none() {
            let jobs = call.begin();
            let fault = if !jobs.is_empty() {
                let fault = self.perform(&mut connection, jobs, &mut call).await;
                // Callers that were just answered may ask again: these requests share the next call, unless it is full.
                if self.state().queue.waiting.len() < MAX_REQUESTS {
                    tokio::task::yield_now().await;
                }
                fault
            } else if let Either::Left(_) = select(pin!(self.work.notified()), pin!(losses.changed())).await {
                continue;
            } else {
                // Some connection was lost, maybe this one. Any reply shows that it works.
                stable_after = PAUSE;
                self.connector.is_loaded(&mut connection).await.err().filter(Fault::breaks)
            };
            match fault {
                None => is_proven = true,
                // The call that ends wakes the other one of the connection.
                Some(fault) => _ = broken.set(fault),
            }
        }
        is_proven || opened.elapsed() > stable_after
    }
}

/// Counts a call until it ends or is dropped.
struct Call<'a> {
    shared: &'a Shared,
    requests: usize,
}

impl Call<'_> {
    /// Begins the next call, if anything waits, and wakes another worker if more does.
    fn begin(&mut self) -> Vec<Job> {
        let mut state = self.shared.state();
        let (jobs, requests) = state.queue.begin_call();
        self.requests = requests;
        if !state.queue.waiting.is_empty() {
            self.shared.work.notify_one();
        }
        jobs
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
        self.shared.work.notify_one();
    }
}

struct Worker {
    shared: Arc<Shared>,
    index: usize,
}

impl Worker {
    /// Makes calls over a connection until it breaks, then over another one, however many attempts that takes.
    async fn run(self, mut opened: Option<Connection>) {
        let mut failures = 0_u32;
        loop {
            let connection = match opened.take() {
                Some(connection) => Ok(connection),
                None => self.shared.connect().await,
            };
            let (fault, is_stable) = match connection {
                Ok(connection) => self.serve(&connection).await,
                Err(fault) => (fault, false),
            };
            failures = if is_stable { 0 } else { failures.saturating_add(1) };
            if failures > 0 {
                self.set(Some(fault));
                tokio::time::sleep(jittered(PAUSE.saturating_mul(1 << (failures - 1).min(10)).min(MAX_PAUSE))).await;
                self.set(None);
            }
        }
    }

    /// Makes calls until the connection breaks. Returns why, and whether it was stable before.
    async fn serve(&self, connection: &MultiplexedConnection) -> (Fault, bool) {
        let broken = Arc::new(OnceLock::new());
        // A single connection carries two calls at a time.
        let calls = CALLS.div_ceil(self.shared.state().faults.len());
        let calls = (0..calls).map(|_| self.shared.clone().make_calls(connection.clone(), broken.clone()));
        let (mut calls, mut is_stable) = (calls.collect::<JoinSet<_>>(), false);
        while let Some(ended) = calls.join_next().await {
            match ended {
                Ok(was_stable) => is_stable |= was_stable,
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                // The runtime shuts down.
                Err(_) => {}
            }
        }
        let broken = broken.get().cloned().unwrap_or(Fault::NoRuntime);
        let is_stable = is_stable && !broken.is_of_replica();
        (Fault::Connect(Arc::new(broken)), is_stable)
    }

    /// Sets why it has no connection and opens none. If no worker is running after that, the jobs that wait fail.
    fn set(&self, fault: Option<Fault>) {
        let mut state = self.shared.state();
        state.faults[self.index] = fault;
        if let Some(fault) = state.fault() {
            let abandoned = take(&mut state.queue.waiting);
            drop(state);
            abandoned.into_values().for_each(|job| drop(job.answer(Err(fault.clone()))));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.set(Some(Fault::NoRuntime));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::FutureExt;
    use redis::{AsyncConnectionConfig, IntoConnectionInfo, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::store::redis::request::{Request, Task, encode_clock};

    /// Creates workers that never send anything.
    fn busy(capacity: usize) -> Workers {
        let info = "redis://127.0.0.1:1".into_connection_info().unwrap();
        let config = RedisConfig::node("").queue_capacity(capacity);
        let workers = Workers::new(vec![info], None, &config).unwrap();
        workers.shared.state().faults.fill(None);
        workers
    }

    fn request(task: Task) -> Command {
        let mut request = Request::new(task, 1);
        request.key("key".to_owned());
        Command::Script(None, smallvec![request])
    }

    /// Sends so many requests, which wait until the result is dropped.
    fn wait(workers: &Workers, requests: usize) -> Vec<impl Future<Output = Result<CommandReply, Fault>>> {
        let send = |_| {
            let mut sent = Box::pin(workers.send(0, request(Task::Acquire), false));
            assert!((&mut sent).now_or_never().is_none(), "it waits");
            sent
        };
        (0..requests).map(send).collect()
    }

    fn is_full(answer: Option<Result<CommandReply, Fault>>) -> bool {
        matches!(answer, Some(Err(Fault::QueueFull { waiting: 100 })))
    }

    #[test]
    fn cancelled_requests_leave_nothing_in_the_queue() {
        let workers = busy(1_000);
        let patient = wait(&workers, 3);
        for wave in 0..10 {
            let requests = wait(&workers, 997);
            assert_eq!(workers.waiting(), 1_000, "wave {wave}");
            drop(requests);
            assert_eq!(workers.waiting(), 3, "wave {wave}");
        }
        drop(patient);
        assert_eq!(workers.waiting(), 0);
    }

    #[test]
    fn a_request_to_a_full_queue_fails_at_once() {
        let workers = busy(100);
        let waiting = wait(&workers, 100);
        let Command::Script(_, requests) = request(Task::Acquire) else { unreachable!() };
        let with_clock = Command::Script(Some(encode_clock(1)), requests);
        for (command, asking) in [(request(Task::Acquire), false), (request(Task::Acquire), true), (with_clock, false)]
        {
            assert!(is_full(workers.send(0, command, asking).now_or_never()));
        }
        assert_eq!(workers.waiting(), 100);
        drop(waiting);
        assert_eq!(wait(&workers, 1).len(), 1);
    }

    /// Without this, requests that were denied elsewhere would stay charged whenever Redis is overloaded.
    #[test]
    fn a_refund_enters_a_full_queue() {
        let workers = busy(100);
        let _waiting = wait(&workers, 100);
        let mut refund = Box::pin(workers.send(0, request(Task::Refund), false));
        assert!((&mut refund).now_or_never().is_none(), "it waits");
        assert_eq!(workers.waiting(), 101);
    }

    /// Their runtime may end at any time.
    #[test]
    fn dropped_calls_are_no_longer_counted() {
        let workers = busy(100);
        for _ in 0..=CALLS {
            let _waiting = wait(&workers, 6);
            let mut call = Call { shared: &workers.shared, requests: 0 };
            assert_eq!(call.begin().len(), 1, "a command for all");
            assert_eq!((call.requests, workers.waiting()), (3, 3));
        }
    }

    /// Otherwise, requests would wait although a connection is free: the runtime of the worker that was woken before
    /// may be busy, and a call may not take all of them.
    #[test]
    fn each_request_and_each_call_that_leaves_some_wake_a_worker() {
        let workers = busy(100);
        let is_woken = || workers.shared.work.notified().now_or_never().is_some();
        let _first = wait(&workers, 1);
        assert!(is_woken());
        let _second = wait(&workers, 1);
        assert!(is_woken());
        let mut call = Call { shared: &workers.shared, requests: 0 };
        assert_eq!((call.begin().len(), workers.waiting()), (1, 1));
        assert!(is_woken());
        let mut other = Call { shared: &workers.shared, requests: 0 };
        assert_eq!((other.begin().len(), workers.waiting()), (1, 0));
        assert!(!is_woken());
    }

    /// Its own worker makes no further call. Otherwise, what waits would do so until another request arrives.
    #[test]
    fn a_dropped_call_wakes_another_worker() {
        let workers = busy(100);
        let is_woken = || workers.shared.work.notified().now_or_never().is_some();
        let calls = [(); CALLS].map(|()| {
            let _waiting = wait(&workers, 1);
            let mut call = Call { shared: &workers.shared, requests: 0 };
            assert_eq!(call.begin().len(), 1);
            call
        });
        let _waiting = wait(&workers, 1);
        assert!(is_woken() && !is_woken(), "once for all calls");
        drop(calls);
        assert!(is_woken());
    }

    #[test]
    fn waiting_requests_fail_when_the_last_worker_stops() {
        let workers = busy(100);
        let mut waiting = wait(&workers, 2);
        let fault = Fault::Connect(Arc::new(Fault::NoRuntime));
        let [one, other] = [0, 1].map(|index| Worker { shared: workers.shared.clone(), index });
        one.set(Some(fault));
        assert_eq!(workers.waiting(), 2, "the other worker runs");
        drop(other);
        assert_eq!(workers.waiting(), 0);
        let answer = waiting.remove(0).now_or_never();
        assert!(matches!(answer, Some(Err(Fault::Connect(_)))));
    }

    const NOSCRIPT: &[u8] = b"-NOSCRIPT No matching script.\r\n";
    const LOADED: &[u8] = b"*1\r\n:1\r\n";
    const ALLOWED: &[u8] = b"$10\r\n\x01\0\0\0\0\0\0y\x01\0\r\n";

    /// Makes a call of one request, to a server that closes the connection after these replies. Returns the answer, and
    /// the fault that breaks the connection.
    async fn perform(replies: &'static [&'static [u8]]) -> (Result<CommandReply, Fault>, Option<Fault>) {
        let (client, mut server) = duplex(1 << 16);
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new();
        let opened = MultiplexedConnection::new_with_config(&settings, client, config).await;
        let (mut connection, driver) = opened.unwrap();
        tokio::spawn(driver);
        tokio::spawn(async move {
            for reply in replies {
                server.read_buf(&mut Vec::new()).await.unwrap();
                server.write_all(reply).await.unwrap();
            }
        });
        let workers = busy(100);
        let mut waiting = wait(&workers, 1);
        let mut call = Call { shared: &workers.shared, requests: 0 };
        let jobs = call.begin();
        let broken = workers.shared.perform(&mut connection, jobs, &mut call).await;
        (waiting.remove(0).await, broken)
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_is_sent_up_to_three_times_if_the_script_is_flushed() {
        let (answer, broken) = perform(&[NOSCRIPT, LOADED, NOSCRIPT, LOADED, ALLOWED]).await;
        assert!(matches!(answer, Ok(CommandReply::Script(1, _))) && broken.is_none());
        let (answer, broken) = perform(&[NOSCRIPT, LOADED, NOSCRIPT, LOADED, NOSCRIPT, LOADED, ALLOWED]).await;
        assert!(matches!(answer, Err(Fault::Flushed)) && broken.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_lost_while_the_script_is_loaded_is_broken() {
        let (answer, broken) = perform(&[NOSCRIPT]).await;
        assert!(matches!((answer, broken), (Err(Fault::Call(_)), Some(Fault::Call(_)))));
    }

    /// Redis may have decided it, so the error must not sound as if nothing was sent.
    #[test]
    fn a_request_whose_call_is_dropped_fails_as_one_that_may_be_charged() {
        let workers = busy(100);
        let mut waiting = wait(&workers, 1);
        let mut call = Call { shared: &workers.shared, requests: 0 };
        drop(call.begin());
        let Some(Err(fault)) = waiting.remove(0).now_or_never() else { panic!("no answer") };
        assert!(fault.to_string().contains("may have charged the request"), "{fault}");
        assert!(!fault.is_unsent());
    }
}
