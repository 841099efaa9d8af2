//! Groups the requests that wait for one Redis server into calls, and bounds how many may wait.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures_util::future::Either;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::Fault;
use super::script::{Request, TimedReply};
use super::server::Server;

/// The most calls under way at a time. A request that finds fewer is sent at once, so that a lone request is never
/// delayed; the others wait, and share the call that follows the next reply. The second call is decided while the
/// first one's reply travels; with more calls, fewer requests would share each.
const CALLS: usize = 2;

/// The most requests in one call. With more, a server that decides them one after the other would delay other clients
/// for longer than sharing a call saves.
const MAX_REQUESTS: usize = 64;

/// The most keys in one call, which are at least as many as the limits that it charges. Redis serves no other client
/// while it runs a call, and takes 2.4 µs for a key, of a `SlidingWindow` 7.6 µs: 0.6 ms or 2 ms for a call. With 128,
/// requests of 64 limits have a fifth less throughput.
const MAX_KEYS: usize = 256;

/// The most bytes of arguments in one call, before equal requests are abbreviated. Reached only by long key prefixes
/// or by many limits with calendars, overrides or penalties.
const MAX_BYTES: usize = 64 * 1024;

/// The requests for one server. Each is sent at once by its caller, or waits for a [`BatchSender`].
#[derive(Debug)]
pub(super) struct Queue {
    server: Server,
    /// The most requests that wait or were sent by their callers.
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Requests in calls of their own, made by their callers: a caller that does not poll its future may take any
    /// time.
    direct: usize,
    /// Running [`BatchSender`]s.
    senders: usize,
    /// Requests in the calls of these.
    under_way: usize,
    /// Requests that were not sent yet, by their tickets: in order of arrival, and quickly found by callers that give
    /// up.
    waiting: BTreeMap<u64, (Request, oneshot::Sender<TimedReply>)>,
    next_ticket: u64,
}

impl Queue {
    /// A queue that holds `capacity` requests, besides those that share the calls under way.
    pub(super) fn new(server: Server, capacity: usize) -> Arc<Self> {
        Arc::new(Self { server, capacity, state: Mutex::default() })
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Has the script decide `request` by Redis' own clock; or by the `clock` of a test, in a call of its own.
    ///
    /// A request whose future is dropped before it was sent leaves the queue at once and is never sent.
    ///
    /// # Errors
    ///
    /// [`Fault::QueueFull`], at once, if as many requests wait as may.
    pub(super) fn ask(
        self: &Arc<Self>,
        clock: Option<[u8; 24]>,
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
            self.server.call(clock, &[request]).await.pop().unwrap_or(Err(Fault::Reply("nothing")))
        }))
    }

    /// Like [`ask`](Self::ask), for a request whose slot another master of a Cluster is moving to this one: in a call
    /// of its own.
    pub(super) async fn ask_importing(self: &Arc<Self>, clock: Option<[u8; 24]>, request: &Request) -> TimedReply {
        let _direct = {
            let mut state = self.state();
            state.check_room(self, request)?;
            state.begin_direct(self)
        };
        self.server.call_asking(clock.as_ref().map_or(&[], |clock| clock), request).await
    }

    /// Lets a request make a call of its own, or wait.
    fn enter(self: &Arc<Self>, needs_own_call: bool, request: Request) -> Result<Entered<'_>, Fault> {
        let mut state = self.state();
        state.check_room(self, &request)?;
        let runtime = Handle::try_current();
        if needs_own_call || state.direct + state.senders < CALLS || runtime.is_err() {
            return Ok(Entered::Directly(state.begin_direct(self), request));
        }
        let (sender, reply) = oneshot::channel();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.insert(ticket, (request, sender));
        // Direct calls may take any time, so a task sends what waits.
        if let (0, Ok(runtime)) = (state.senders, runtime) {
            self.start_sender(state, &runtime);
        }
        Ok(Entered::Waiting(Waiting { queue: self, ticket: Some(ticket), reply }))
    }

    fn start_sender(self: &Arc<Self>, mut state: MutexGuard<'_, State>, runtime: &Handle) {
        state.senders += 1;
        drop(state);
        // Made before it is spawned: a runtime that shuts down drops tasks that were never polled.
        let sender = BatchSender { queue: self.clone(), under_way: 0, is_over: false };
        runtime.spawn(sender.run());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Checks that the queue has room for a request. There always is for a refund: each returns what a request that
    /// had room was charged, which would otherwise stay charged under overload.
    fn check_room(&self, queue: &Queue, request: &Request) -> Result<(), Fault> {
        let waiting = self.direct + self.waiting.len();
        if waiting < queue.capacity || request.is_refund() { Ok(()) } else { Err(Fault::QueueFull { waiting }) }
    }

    fn begin_direct<'a>(&mut self, queue: &'a Arc<Queue>) -> DirectCall<'a> {
        self.direct += 1;
        DirectCall { queue }
    }

    /// How many of the waiting requests the next call takes, as far as its size allows: all, or while another call is
    /// under way as many as make both equal. Requests that were answered together are often followed by others
    /// together, so a short call beside a long one would remain short, and leave the server idle whenever it was
    /// answered. (Beside a call that hangs, each call takes half of what waits, until the hanging one has timed out.)
    fn share(&self) -> usize {
        let most = match self.under_way {
            0 => self.waiting.len(),
            under_way => (self.waiting.len() + under_way).div_ceil(CALLS),
        };
        most.min(self.waiting.len()).min(MAX_REQUESTS)
    }

    /// Takes the requests of the next call off the queue. One that is larger than a call should be has a call of its
    /// own.
    fn take_batch(&mut self) -> (Vec<Request>, Vec<oneshot::Sender<TimedReply>>) {
        let most = self.share();
        let (mut requests, mut senders) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let (mut keys, mut bytes) = (0, 0);
        while requests.len() < most
            && let Some(first) = self.waiting.first_entry()
        {
            let (request, _) = first.get();
            keys += request.keys.len();
            bytes += request.bytes();
            if !requests.is_empty() && (keys > MAX_KEYS || bytes > MAX_BYTES) {
                break;
            }
            let (request, sender) = first.remove();
            requests.push(request);
            senders.push(sender);
        }
        (requests, senders)
    }
}

/// A request that was let in.
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
        let mut state = self.queue.state();
        state.direct -= 1;
        // Without a runtime here, the sender that the first waiting request has started sends them all.
        if let (false, Ok(runtime)) = (state.waiting.is_empty(), Handle::try_current())
            && state.direct + state.senders < CALLS
        {
            self.queue.start_sender(state, &runtime);
        }
    }
}

/// The reply to a request that waits. Dropping it takes the request off the queue, if it was not sent yet.
struct Waiting<'a> {
    queue: &'a Queue,
    /// `None` once the reply was taken.
    ticket: Option<u64>,
    reply: oneshot::Receiver<TimedReply>,
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
            let abandoned = self.queue.state().waiting.remove(&ticket);
            // Freed once the queue is unlocked.
            drop(abandoned);
        }
    }
}

/// A task that sends what waits. If its runtime shuts down before that is done, the next request to wait starts
/// another one.
struct BatchSender {
    queue: Arc<Queue>,
    /// Requests in its call.
    under_way: usize,
    is_over: bool,
}

impl BatchSender {
    /// Makes call after call, until nothing waits.
    async fn run(mut self) {
        loop {
            // Callers that were just answered may ask again: these requests share the next call.
            tokio::task::yield_now().await;
            let Some((requests, senders)) = self.next() else { return };
            for (sender, reply) in senders.into_iter().zip(self.queue.server.call(&[], &requests).await) {
                // A caller that gave up meanwhile was charged all the same.
                let _ = sender.send(reply);
            }
        }
    }

    /// The requests of the next call. If there are none, the task ends under the same lock: a request that comes later
    /// starts another one.
    fn next(&mut self) -> Option<(Vec<Request>, Vec<oneshot::Sender<TimedReply>>)> {
        let mut state = self.queue.state();
        state.under_way -= self.under_way;
        let (requests, senders) = state.take_batch();
        self.under_way = requests.len();
        state.under_way += self.under_way;
        if requests.is_empty() {
            state.senders -= 1;
            self.is_over = true;
            return None;
        }
        Some((requests, senders))
    }
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.queue.state();
            state.senders -= 1;
            state.under_way -= self.under_way;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::FutureExt;

    use super::super::RedisConfig;
    use super::super::deployment::Deployment;
    use super::super::script::{self, Task};
    use super::*;

    /// The queue of a server that is never asked.
    fn queue(capacity: usize) -> Arc<Queue> {
        match RedisConfig::node("redis://127.0.0.1:1").queue_capacity(capacity).build() {
            Ok(Deployment::Single(queue)) => queue,
            other => panic!("{other:?}"),
        }
    }

    /// The same, whose requests all wait.
    fn busy_queue(capacity: usize) -> Arc<Queue> {
        let queue = queue(capacity);
        queue.state().senders = CALLS;
        queue
    }

    fn request(keys: usize, length: usize) -> Request {
        let mut request = Request::new(Task::Acquire, keys);
        (0..keys).for_each(|_| request.key("k".repeat(length)));
        request
    }

    /// Queues `requests`, which wait for as long as the result is kept.
    fn wait(queue: &Queue, requests: impl IntoIterator<Item = Request>) -> Vec<Waiting<'_>> {
        let wait = |request| {
            let (sender, reply) = oneshot::channel();
            let mut state = queue.state();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.insert(ticket, (request, sender));
            Waiting { queue, ticket: Some(ticket), reply }
        };
        requests.into_iter().map(wait).collect()
    }

    fn usual(requests: usize) -> impl Iterator<Item = Request> {
        (0..requests).map(|_| request(1, 64))
    }

    fn sender(queue: &Arc<Queue>) -> BatchSender {
        queue.state().senders += 1;
        BatchSender { queue: queue.clone(), under_way: 0, is_over: false }
    }

    /// The number of requests in the sender's next call.
    fn next(sender: &mut BatchSender) -> usize {
        sender.next().map_or(0, |(requests, _)| requests.len())
    }

    #[test]
    fn calls_beside_each_other_become_equal() {
        let queue = queue(1_000);
        let (mut long, mut short) = (sender(&queue), sender(&queue));
        let _all = wait(&queue, usual(60));
        assert_eq!(next(&mut long), 60);
        let _more = wait(&queue, usual(4));
        assert_eq!(next(&mut short), 4);
        // All that were answered ask again.
        let _again = wait(&queue, usual(60));
        assert_eq!(next(&mut long), 32);
        let _again = wait(&queue, usual(4));
        assert_eq!(next(&mut short), 32);
    }

    #[test]
    fn calls_are_bounded_by_requests() {
        let queue = queue(1_000);
        let (mut one, mut other) = (sender(&queue), sender(&queue));
        let _all = wait(&queue, usual(300));
        assert_eq!([next(&mut one), next(&mut other), next(&mut one)], [MAX_REQUESTS; 3]);
    }

    #[test]
    fn calls_are_bounded_by_keys() {
        for (keys, requests) in [(1, 64), (4, 64), (5, 51), (64, 4), (129, 1)] {
            let queue = queue(1_000);
            let (mut one, mut other) = (sender(&queue), sender(&queue));
            let _all = wait(&queue, (0..300).map(|_| request(keys, 1)));
            assert_eq!([next(&mut one), next(&mut other), next(&mut one)], [requests; 3], "{keys} keys each");
        }
    }

    #[test]
    fn calls_are_bounded_by_bytes() {
        let queue = queue(1_000);
        let mut sender = sender(&queue);
        let _all = wait(&queue, (0..300).map(|_| request(2, 3_000)));
        assert_eq!(next(&mut sender), MAX_BYTES / 6_005);
    }

    #[test]
    fn a_request_that_is_larger_than_a_call_should_be_has_one_of_its_own() {
        for large in [request(MAX_KEYS + 1, 1), request(1, MAX_BYTES + 1)] {
            let queue = queue(1_000);
            let mut sender = sender(&queue);
            let _all = wait(&queue, usual(3).chain([large]).chain(usual(3)));
            assert_eq!([0; 4].map(|_| next(&mut sender)), [3, 1, 3, 0]);
        }
    }

    /// However they end, and whichever requests are given up.
    #[test]
    fn calls_that_are_over_are_no_longer_counted() {
        let queue = queue(1_000);
        let (mut over, mut dropped) = (sender(&queue), sender(&queue));
        let given_up = wait(&queue, usual(5));
        let _all = wait(&queue, usual(20));
        drop(given_up);
        assert_eq!(next(&mut dropped), 20);
        assert_eq!(queue.state().under_way, 20);
        drop(dropped);
        let _all = wait(&queue, usual(7));
        assert_eq!([next(&mut over), next(&mut over)], [7, 0]);
        let state = queue.state();
        assert_eq!([state.under_way, state.senders, state.waiting.len()], [0; 3]);
    }

    #[tokio::test]
    async fn waves_of_requests_that_are_given_up_leave_nothing_in_the_queue() {
        let queue = busy_queue(1_000);
        let patient = wait(&queue, usual(3));
        for wave in 0..10 {
            let requests: Vec<_> = usual(997).map(|request| queue.ask(None, request)).collect();
            assert_eq!(queue.state().waiting.len(), 1_000, "wave {wave}");
            drop(requests);
            assert_eq!(queue.state().waiting.len(), 3, "wave {wave}");
        }
        assert!(patient.iter().all(|waiting| queue.state().waiting.contains_key(&waiting.ticket.unwrap())));
    }

    #[tokio::test]
    async fn a_request_to_a_full_queue_fails_at_once() {
        let queue = busy_queue(100);
        let waiting: Vec<_> = usual(100).map(|request| queue.ask(None, request)).collect();
        for _ in 0..1_000 {
            let reply = queue.ask(None, request(1, 64)).now_or_never();
            assert!(matches!(reply, Some(Err(Fault::QueueFull { waiting: 100 }))), "{reply:?}");
        }
        assert_eq!(queue.state().waiting.len(), 100);
        drop(waiting);
        assert!(queue.ask(None, request(1, 64)).now_or_never().is_none(), "it waits");
    }

    /// Otherwise requests that were denied elsewhere would stay charged whenever Redis is overloaded.
    #[tokio::test]
    async fn a_refund_enters_a_full_queue() {
        let queue = busy_queue(100);
        let waiting: Vec<_> = usual(100).map(|request| queue.ask(None, request)).collect();
        let refund = Request::new(Task::Refund, 1);
        assert!(queue.ask(None, refund.clone()).now_or_never().is_none(), "it waits");
        let refund = queue.ask(None, refund);
        assert_eq!(queue.state().waiting.len(), 101);
        drop((waiting, refund));
        assert_eq!(queue.state().waiting.len(), 0);
    }

    /// Those that are never sent together: by a test's clock, with a slot that is moved, or without a runtime.
    #[test]
    fn calls_of_single_requests_are_bounded_too() {
        let queue = queue(10);
        let clock = Some(script::encode_clock(1));
        let calls: Vec<_> = usual(10).map(|request| queue.ask(clock, request)).collect();
        assert_eq!(queue.state().direct, 10);
        let one = request(1, 64);
        for reply in [
            queue.ask(clock, one.clone()).now_or_never(),
            queue.ask(None, one.clone()).now_or_never(),
            queue.ask_importing(None, &one).now_or_never(),
        ] {
            assert!(matches!(reply, Some(Err(Fault::QueueFull { waiting: 10 }))), "{reply:?}");
        }
        drop(calls);
        assert_eq!(queue.state().direct, 0);
    }
}
