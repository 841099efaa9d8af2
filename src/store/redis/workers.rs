//! The tasks that send waiting requests to a server, each over a connection of its own.

use std::mem::take;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select, try_join_all};
use redis::aio::MultiplexedConnection;
use redis::cluster::NodeAddress;
use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::calls::{Link, PAUSE, Shared, State, WorkerState};
use super::config::RedisConfig;
use super::connector::Connector;
use super::error::Fault;
use super::queue::{CALLS, Command, CommandReply, Job, Queue};
use crate::time::jittered;

/// The longest pause between two attempts to connect, before jitter.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The queue of a server, and the workers that send what waits in it. A worker opens its connection, replaces it when
/// it breaks, and ends with the runtime that it runs on.
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// Aborted when this is dropped.
    tasks: Mutex<JoinSet<()>>,
}

impl Workers {
    /// Creates the queue of the servers of a configuration, or of a `master` of its Cluster. A worker for each
    /// connection is started when it is needed.
    pub(super) fn new(config: &RedisConfig, master: Option<NodeAddress>) -> Self {
        let state = State { queue: Queue::default(), workers: Vec::new(), started: 0 };
        let connector = Connector::new(config.clone(), master);
        let shared = Shared { connector, state: Mutex::new(state), work: Notify::new() };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Opens all connections, and starts the workers with them.
    ///
    /// # Errors
    ///
    /// Returns an error if a connection can't be opened, if the server accepts no writes, or outside a Tokio runtime.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        Handle::try_current().map_err(|_| Fault::NoRuntime)?;
        let connections = self.shared.connector.config.connections;
        let opened = try_join_all((0..connections).map(|_| self.shared.connect())).await?;
        if let Some(fault) = self.shared.connector.refused() {
            return Err(fault);
        }
        self.start(connections, opened);
        Ok(())
    }

    /// Starts workers until there are `count`, with the connections that are open already. Outside a Tokio runtime,
    /// this is left to the next request.
    pub(super) fn start(&self, count: usize, mut opened: Vec<MultiplexedConnection>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut workers = Vec::new();
        let mut state = self.shared.state();
        for _ in state.workers.len()..count {
            state.started += 1;
            let id = state.started;
            state.workers.push(WorkerState { id, runtime: Some(runtime.id()), fault: None });
            workers.push(Worker { shared: self.shared.clone(), id });
        }
        drop(state);
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
        let (ticket, is_driven) = self.enter(Job { command, slot, asking, callers: smallvec![caller] })?;
        let mut waiting = Waiting { shared: &self.shared, ticket, answer };
        // The runtimes of all workers may stand still.
        if !is_driven {
            match Box::pin(timeout(self.shared.connector.patience(), &mut waiting.answer)).await {
                Ok(answer) => return answer.unwrap_or(Err(Fault::Interrupted)),
                Err(_) => {
                    let state = self.shared.state();
                    let count = state.workers.len() + usize::from(!state.is_driven());
                    drop(state);
                    self.start(count, Vec::new());
                }
            }
        }
        // A worker is dropped with the runtime that it runs on, and its call with it.
        (&mut waiting.answer).await.unwrap_or(Err(Fault::Interrupted))
    }

    /// Queues a job. Returns its ticket, and whether a worker runs on the runtime of the caller.
    fn enter(&self, job: Job) -> Result<(u64, bool), Fault> {
        let Shared { connector, work, .. } = &*self.shared;
        let mut state = self.shared.state();
        let waiting = state.queue.waiting.len();
        // It always has room for a refund, which returns the charge of an earlier request; otherwise, charges of denied
        // requests would remain under overload.
        if waiting >= connector.config.queue_capacity && !job.is_refund() {
            return Err(Fault::QueueFull { waiting });
        }
        let workers = state.workers.len();
        if workers < connector.config.connections {
            drop(state);
            self.start(workers + 1, Vec::new());
            state = self.shared.state();
        }
        if let Some(fault) = state.fault() {
            return Err(fault);
        }
        let entered = (state.queue.push(job), state.is_driven());
        drop(state);
        // The last one that has begun to wait, because the runtimes of others may stand still.
        work.notify_last();
        Ok(entered)
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
        let faults = self.workers.iter().map(|worker| worker.fault.as_ref()).collect::<Option<Vec<_>>>()?;
        Some(faults.first().map_or(Fault::NoRuntime, |fault| Fault::clone(fault)))
    }

    /// Returns whether a worker runs on the current runtime, and so makes progress together with the caller.
    fn is_driven(&self) -> bool {
        let runs_on = |runtime: Handle| self.workers.iter().any(|worker| worker.runtime == Some(runtime.id()));
        Handle::try_current().map_or(true, runs_on)
    }
}

struct Worker {
    shared: Arc<Shared>,
    id: u64,
}

impl Worker {
    /// Makes calls over a connection until it breaks, then over another one, however many attempts that takes.
    async fn run(self, mut opened: Option<MultiplexedConnection>) {
        let mut failures = 0_u32;
        loop {
            let connection = match opened.take() {
                Some(connection) => Ok(connection),
                None => self.shared.connect().await,
            };
            let (fault, is_stable) = match connection {
                Ok(connection) => match self.serve(connection).await {
                    Ok(successor) => {
                        opened = Some(successor);
                        continue;
                    }
                    Err(ended) => ended,
                },
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

    /// Makes calls until the connection breaks, and opens another one when a reply is overdue. Returns that one once it
    /// is open, while calls under way may still be answered. Otherwise, returns why the connection broke, and whether
    /// it was stable before.
    async fn serve(&self, connection: MultiplexedConnection) -> Result<MultiplexedConnection, (Fault, bool)> {
        let (is_overdue, broken) = (watch::Sender::default(), OnceLock::new());
        let link = Arc::new(Link { shared: self.shared.clone(), is_overdue, broken });
        // A single connection carries two calls at a time.
        let calls = CALLS.div_ceil(self.shared.connector.config.connections);
        let calls = (0..calls).map(|_| link.clone().make_calls(connection.clone()));
        let mut calls = calls.collect::<JoinSet<_>>();
        let ended = async {
            let mut is_stable = false;
            while let Some(ended) = calls.join_next().await {
                match ended {
                    Ok(was_stable) => is_stable |= was_stable,
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    // The runtime shuts down.
                    Err(_) => {}
                }
            }
            is_stable
        };
        let successor = match select(pin!(ended), pin!(self.succeed(&link))).await {
            Either::Left((is_stable, _)) => {
                let broken = link.broken.get().cloned().unwrap_or(Fault::NoRuntime);
                let is_stable = is_stable && !broken.is_of_replica();
                return Err((Fault::Connect(Arc::new(broken)), is_stable));
            }
            Either::Right((successor, _)) => successor,
        };
        _ = link.broken.set(Fault::Interrupted);
        calls.detach_all();
        Ok(successor)
    }

    /// Opens another connection when a reply is overdue, unless it arrives meanwhile.
    async fn succeed(&self, link: &Link) -> MultiplexedConnection {
        let (mut overdue, mut replied) = (link.is_overdue.subscribe(), link.is_overdue.subscribe());
        loop {
            _ = overdue.wait_for(|is_overdue| *is_overdue).await;
            let opened = pin!(self.shared.connect());
            match select(opened, pin!(replied.wait_for(|is_overdue| !is_overdue))).await {
                Either::Left((Ok(opened), _)) => return opened,
                Either::Left((Err(_), _)) | Either::Right(_) => {}
            }
            // If no other connection can be opened, the reply may still come. Otherwise, its timeout ends this one.
            _ = replied.wait_for(|is_overdue| !is_overdue).await;
        }
    }

    /// Sets why it has no connection and opens none, or removes it if it has no runtime. If no worker is running after
    /// that, the jobs that wait fail.
    fn set(&self, fault: Option<Fault>) {
        let mut state = self.shared.state();
        state.workers.retain_mut(|worker| {
            if worker.id == self.id {
                worker.fault = fault.clone();
            }
            !matches!(worker.fault, Some(Fault::NoRuntime))
        });
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::FutureExt;
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::store::redis::calls::Call;
    use crate::store::redis::request::{Request, Task, encode_clock};

    /// Creates workers that never send anything.
    fn busy(capacity: usize) -> Workers {
        let workers = Workers::new(&RedisConfig::node("redis://127.0.0.1:1").queue_capacity(capacity), None);
        workers.shared.state().workers.extend([0, 1].map(|id| WorkerState { id, runtime: None, fault: None }));
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
            assert_eq!(call.begin(false).unwrap().len(), 1, "a command for all");
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
        assert_eq!((call.begin(false).unwrap().len(), workers.waiting()), (1, 1));
        assert!(is_woken());
        let mut other = Call { shared: &workers.shared, requests: 0 };
        assert_eq!((other.begin(false).unwrap().len(), workers.waiting()), (1, 0));
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
            assert_eq!(call.begin(false).unwrap().len(), 1);
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
        let [one, other] = [0, 1].map(|id| Worker { shared: workers.shared.clone(), id });
        one.set(Some(fault));
        assert_eq!(workers.waiting(), 2, "the other worker runs");
        drop(other);
        assert_eq!(workers.waiting(), 0);
        let answer = waiting.remove(0).now_or_never();
        assert!(matches!(answer, Some(Err(Fault::Connect(_)))));
    }

    fn link(workers: &Workers) -> Link {
        Link { shared: workers.shared.clone(), is_overdue: watch::Sender::default(), broken: OnceLock::new() }
    }

    /// A connection to a server that replies to so many calls as if it had the script, and is silent then. Returns the
    /// number of calls, too.
    async fn connection(replies: usize) -> (MultiplexedConnection, Arc<AtomicUsize>) {
        let (client, mut server) = duplex(1 << 16);
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new();
        let opened = MultiplexedConnection::new_with_config(&settings, client, config).await;
        let (connection, driver) = opened.unwrap();
        tokio::spawn(driver);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        tokio::spawn(async move {
            while server.read_buf(&mut Vec::new()).await.unwrap() > 0 {
                if counted.fetch_add(1, Ordering::Relaxed) < replies {
                    server.write_all(LOADED).await.unwrap();
                }
            }
        });
        (connection, calls)
    }

    /// A network may have forgotten it.
    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_checked_four_times_a_minute_until_it_is_silent() {
        let workers = busy(100);
        let (connection, calls) = connection(4).await;
        let link = Arc::new(link(&workers));
        let (began, mut is_overdue) = (tokio::time::Instant::now(), link.is_overdue.subscribe());
        let idle = tokio::spawn(link.clone().make_calls(connection));
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        is_overdue.wait_for(|is_overdue| *is_overdue).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 75);
        assert!(idle.await.unwrap(), "the connection was stable");
        assert!(matches!(link.broken.get(), Some(Fault::TimedOut(_))));
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
        let jobs = call.begin(false).unwrap();
        let broken = link(&workers).perform(&mut connection, jobs, &mut call).await;
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
        drop(call.begin(false).unwrap());
        let Some(Err(fault)) = waiting.remove(0).now_or_never() else { panic!("no answer") };
        assert!(fault.to_string().contains("may have charged the request"), "{fault}");
        assert!(!fault.is_unsent());
    }
}
