//! Groups the requests that wait for one Redis server into calls, and bounds how many may wait.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures_util::future::Either;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::backlog::{Backlog, Batch, CALLS};
use super::server::Server;
use crate::store::redis::error::Fault;
use crate::store::redis::script::{Request, TimedReply};

/// The requests for one server. Each is sent at once by its caller, or waits for a [`BatchSender`].
#[derive(Debug)]
pub(in crate::store::redis) struct Queue {
    server: Server,
    /// The most requests that wait or were sent by their callers.
    capacity: usize,
    backlog: Mutex<Backlog>,
}

impl Queue {
    /// Creates a queue for `capacity` requests, in addition to those that share the calls in flight.
    pub(in crate::store::redis) fn new(server: Server, capacity: usize) -> Arc<Self> {
        Arc::new(Self { server, capacity, backlog: Mutex::default() })
    }

    pub(in crate::store::redis) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns how many requests wait to be sent.
    pub(in crate::store::redis) fn waiting(&self) -> usize {
        self.backlog().waiting.len()
    }

    /// Has the script perform `request` by Redis' own clock; or by the `clock` of a test, in a call of its own.
    ///
    /// A request whose future is dropped before it was sent leaves the queue at once and is never sent.
    ///
    /// # Errors
    ///
    /// [`Fault::QueueFull`], at once, if the queue is full.
    pub(in crate::store::redis) fn ask(
        self: &Arc<Self>,
        clock: Option<[u8; 16]>,
        request: Request,
    ) -> impl Future<Output = TimedReply> + Send + '_ {
        let (direct, request) = match self.enter(clock.is_some(), request) {
            Ok(Entered::Directly(direct, request)) => (direct, request),
            Ok(Entered::Waiting(waiting)) => return Either::Right(Either::Left(waiting)),
            Err(fault) => return Either::Right(Either::Right(std::future::ready(Err(fault)))),
        };
        // Boxed, as the future of a waiting request would otherwise be as large as that of a call.
        Either::Left(Box::pin(async move {
            let _direct = direct;
            let clock = clock.as_ref().map_or(&[][..], |clock| clock);
            self.server.call(clock, &[request]).await.pop().unwrap_or(Err(Fault::Reply("expected more replies")))
        }))
    }

    /// Like [`ask`](Self::ask), for a request whose slot another master of a Cluster is moving to this one: in a call
    /// of its own.
    pub(in crate::store::redis) async fn ask_importing(
        self: &Arc<Self>,
        clock: Option<[u8; 16]>,
        request: &Request,
    ) -> TimedReply {
        let _direct = {
            let mut backlog = self.backlog();
            backlog.check_capacity(self.capacity, request)?;
            self.begin_direct(&mut backlog)
        };
        self.server.call_asking(clock.as_ref().map_or(&[], |clock| clock), request).await
    }

    /// Enters a request, which makes a call of its own or waits.
    fn enter(self: &Arc<Self>, needs_own_call: bool, request: Request) -> Result<Entered<'_>, Fault> {
        let mut backlog = self.backlog();
        backlog.check_capacity(self.capacity, &request)?;
        let runtime = Handle::try_current();
        if needs_own_call || backlog.direct + backlog.senders < CALLS || runtime.is_err() {
            return Ok(Entered::Directly(self.begin_direct(&mut backlog), request));
        }
        let (ticket, reply) = backlog.push(request);
        // Direct calls may take any time, so a task sends the waiting requests.
        if let (0, Ok(runtime)) = (backlog.senders, runtime) {
            self.start_sender(backlog, &runtime);
        }
        Ok(Entered::Waiting(Waiting { queue: self, ticket: Some(ticket), reply }))
    }

    fn begin_direct(self: &Arc<Self>, backlog: &mut Backlog) -> DirectCall<'_> {
        backlog.direct += 1;
        DirectCall { queue: self }
    }

    fn start_sender(self: &Arc<Self>, mut backlog: MutexGuard<'_, Backlog>, runtime: &Handle) {
        backlog.senders += 1;
        drop(backlog);
        // Made before it is spawned: a runtime that shuts down drops tasks that were never polled.
        let sender = BatchSender { queue: self.clone(), under_way: 0, is_over: false };
        runtime.spawn(sender.run());
    }

    pub(super) fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that entered the queue.
enum Entered<'a> {
    Directly(DirectCall<'a>, Request),
    Waiting(Waiting<'a>),
}

/// A call that a caller makes itself. When it ends, also by being dropped, a sender of waiting requests may take its
/// place.
struct DirectCall<'a> {
    queue: &'a Arc<Queue>,
}

impl Drop for DirectCall<'_> {
    fn drop(&mut self) {
        let mut backlog = self.queue.backlog();
        backlog.direct -= 1;
        // Without a runtime here, the sender that the first waiting request has started sends them all.
        if let (false, Ok(runtime)) = (backlog.waiting.is_empty(), Handle::try_current())
            && backlog.direct + backlog.senders < CALLS
        {
            self.queue.start_sender(backlog, &runtime);
        }
    }
}

/// The reply to a request that waits. Dropping it takes the request off the queue, if it was not sent yet.
pub(super) struct Waiting<'a> {
    pub(super) queue: &'a Queue,
    /// `None` once the reply was taken.
    pub(super) ticket: Option<u64>,
    pub(super) reply: oneshot::Receiver<TimedReply>,
}

impl Future for Waiting<'_> {
    type Output = TimedReply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TimedReply> {
        let reply = ready!(Pin::new(&mut self.reply).poll(context));
        self.ticket = None;
        // A sender is dropped with the runtime that it runs on, and its call with it.
        Poll::Ready(reply.unwrap_or(Err(Fault::NoRuntime)))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let abandoned = self.queue.backlog().waiting.remove(&ticket);
            // Freed once the queue is unlocked.
            drop(abandoned);
        }
    }
}

/// A task that sends the waiting requests. If its runtime shuts down before, the next request to wait starts another one.
pub(super) struct BatchSender {
    pub(super) queue: Arc<Queue>,
    /// Requests in its call.
    pub(super) under_way: usize,
    pub(super) is_over: bool,
}

impl BatchSender {
    /// Makes one call after the other, until no request waits.
    async fn run(mut self) {
        loop {
            // Callers that were just answered may ask again: these requests share the next call.
            tokio::task::yield_now().await;
            let Some((requests, senders)) = self.next() else { return };
            for (sender, reply) in senders.into_iter().zip(self.queue.server.call(&[], &requests).await) {
                // A caller that gave up meanwhile has been charged nevertheless.
                let _ = sender.send(reply);
            }
        }
    }

    /// Returns the requests of the next call. If there are none, the task ends under the same lock: a request that
    /// comes later starts another one.
    pub(super) fn next(&mut self) -> Option<Batch> {
        let mut backlog = self.queue.backlog();
        backlog.under_way -= self.under_way;
        let (requests, senders) = backlog.take_batch();
        self.under_way = requests.len();
        backlog.under_way += self.under_way;
        if requests.is_empty() {
            backlog.senders -= 1;
            self.is_over = true;
            return None;
        }
        Some((requests, senders))
    }
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        if !self.is_over {
            let mut backlog = self.queue.backlog();
            backlog.senders -= 1;
            backlog.under_way -= self.under_way;
        }
    }
}
