//! Requests that wait at the same time leave together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{Either, FutureExt};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::Fault;
use super::script::{Reply, Request};
use super::server::Server;

/// How many calls are under way at most. Whoever finds fewer goes at once, so that a lone request
/// is never delayed; the others wait for a reply, and leave with all that have come since. A second
/// one is decided while the first one's reply travels; with more, fewer requests share one.
const CALLS: usize = 2;

/// The most requests in one call: with more, a server that decides them one after the other would
/// keep others waiting for longer than it saves.
const TOGETHER: usize = 64;

#[derive(Debug)]
pub(super) struct Queue {
    server: Server,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that went at once, in their callers' hands: who holds its future without polling it
    /// has one for as long as it likes.
    alone: usize,
    /// Tasks that send what waits.
    drains: usize,
    /// Requests in their calls. Those that went alone are none of them.
    under_way: usize,
    waiting: VecDeque<(Request, oneshot::Sender<Reply>)>,
}

impl Queue {
    pub(super) fn new(server: Server) -> Arc<Self> {
        Arc::new(Self { server, state: Mutex::default() })
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// What the script says of `request` by Redis' own clock, or in a call of its own by one that is handed in.
    /// Given up before the request has left, it never leaves.
    pub(super) fn ask(
        self: &Arc<Self>,
        clock: Option<[u8; 24]>,
        request: Request,
    ) -> impl Future<Output = Reply> + Send + '_ {
        let (request, turn) = match clock {
            Some(_) => (request, None),
            None => match self.begin(request) {
                Ok((request, turn)) => (request, Some(turn)),
                // Its runtime ended, with the call.
                Err(reply) => return Either::Right(reply.map(|reply| reply.unwrap_or(Err(Fault::NoRuntime)))),
            },
        };
        // Boxed, or else whoever only waits would have room for all that a call needs.
        Either::Left(Box::pin(async move {
            let _turn = turn;
            let clock = clock.as_ref().map_or(&[][..], |clock| clock);
            self.server.call(clock, &[request]).await.pop().unwrap_or(Err(Fault::Reply("nothing")))
        }))
    }

    /// The turn to send `request` at once, or where its reply will be.
    fn begin(self: &Arc<Self>, request: Request) -> Result<(Request, Turn<'_>), oneshot::Receiver<Reply>> {
        let mut state = self.state();
        let runtime = Handle::try_current();
        if state.alone + state.drains < CALLS || runtime.is_err() {
            state.alone += 1;
            return Ok((request, Turn { queue: self }));
        }
        let (sender, reply) = oneshot::channel();
        state.waiting.push_back((request, sender));
        // Those that went alone may be a long time about it: whoever waits waits for a task.
        if let (0, Ok(runtime)) = (state.drains, runtime) {
            self.drain_on(state, &runtime);
        }
        Err(reply)
    }

    /// Has one task more send what waits.
    fn drain_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>, runtime: &Handle) {
        state.drains += 1;
        drop(state);
        // Made before it is spawned: a runtime that ends drops tasks that were never polled.
        let drain = Drain { queue: self.clone(), under_way: 0, is_over: false };
        runtime.spawn(drain.run());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many of those that wait leave with the next call: all, or while another call is under way as many as make
    /// both alike. (Who was answered together comes back together: a short call that goes beside a long one would go
    /// on doing so, and the server have nothing to do whenever it was answered. Beside a call that hangs, the other
    /// goes on with half of what waits at a time, until that has timed out.)
    fn share(&self) -> usize {
        let most = match self.under_way {
            0 => self.waiting.len(),
            under_way => (self.waiting.len() + under_way).div_ceil(CALLS),
        };
        most.min(self.waiting.len()).min(TOGETHER)
    }
}

/// A call that is under way in its caller's hands. When it is over, given up too, those that wait get
/// its place.
struct Turn<'a> {
    queue: &'a Arc<Queue>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.alone -= 1;
        // Without a runtime here, the task that the first to wait has started sees to them.
        if let (false, Ok(runtime)) = (state.waiting.is_empty(), Handle::try_current())
            && state.alone + state.drains < CALLS
        {
            self.queue.drain_on(state, &runtime);
        }
    }
}

/// A task that sends what waits. If its runtime ends before that is done, the next to wait starts
/// another one.
struct Drain {
    queue: Arc<Queue>,
    /// Requests in its call.
    under_way: usize,
    is_over: bool,
}

impl Drain {
    /// Call after call, until nothing waits.
    async fn run(mut self) {
        loop {
            // Who has just been answered may well ask again: their requests leave together, too.
            tokio::task::yield_now().await;
            let Some((requests, senders)) = self.next() else { return };
            for (sender, reply) in senders.into_iter().zip(self.queue.server.call(&[], &requests).await) {
                // Who gave up meanwhile was charged all the same.
                let _ = sender.send(reply);
            }
        }
    }

    /// What waits. If nothing does, the task is over with that, and not a moment later: whoever comes then
    /// starts another one.
    fn next(&mut self) -> Option<(Vec<Request>, Vec<oneshot::Sender<Reply>>)> {
        let mut state = self.queue.state();
        state.under_way -= self.under_way;
        let most = state.share();
        let (mut requests, mut senders) = (Vec::with_capacity(most), Vec::with_capacity(most));
        while requests.len() < most
            && let Some((request, sender)) = state.waiting.pop_front()
        {
            if !sender.is_closed() {
                requests.push(request);
                senders.push(sender);
            }
        }
        self.under_way = requests.len();
        state.under_way += self.under_way;
        if requests.is_empty() {
            state.drains -= 1;
            self.is_over = true;
            return None;
        }
        Some((requests, senders))
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.queue.state();
            state.drains -= 1;
            state.under_way -= self.under_way;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RedisConfig;
    use super::super::deployment::Deployment;
    use super::super::script::Task;
    use super::*;

    /// Of a server that nobody asks.
    fn queue() -> Arc<Queue> {
        match RedisConfig::node("redis://127.0.0.1:1").build() {
            Ok(Deployment::Single(queue)) => queue,
            other => panic!("{other:?}"),
        }
    }

    /// Has so many requests more wait, for as long as what it returns is kept.
    fn wait(queue: &Queue, requests: usize) -> Vec<oneshot::Receiver<Reply>> {
        let waiting = (0..requests).map(|_| {
            let (sender, reply) = oneshot::channel();
            queue.state().waiting.push_back((Request::new(Task::Acquire, 1), sender));
            reply
        });
        waiting.collect()
    }

    fn drain(queue: &Arc<Queue>) -> Drain {
        queue.state().drains += 1;
        Drain { queue: queue.clone(), under_way: 0, is_over: false }
    }

    /// How many leave with its next call.
    fn leave(drain: &mut Drain) -> usize {
        drain.next().map_or(0, |(requests, _)| requests.len())
    }

    #[test]
    fn calls_beside_each_other_become_alike() {
        let queue = queue();
        let (mut long, mut short) = (drain(&queue), drain(&queue));
        let _all = wait(&queue, 60);
        assert_eq!(leave(&mut long), 60);
        let _more = wait(&queue, 4);
        assert_eq!(leave(&mut short), 4);
        // All who were answered ask again.
        let _again = wait(&queue, 60);
        assert_eq!(leave(&mut long), 32);
        let _again = wait(&queue, 4);
        assert_eq!(leave(&mut short), 32);
    }

    #[test]
    fn no_call_is_longer_than_it_may_be() {
        let queue = queue();
        let (mut one, mut other) = (drain(&queue), drain(&queue));
        let _all = wait(&queue, 300);
        assert_eq!([leave(&mut one), leave(&mut other), leave(&mut one)], [TOGETHER; 3]);
    }

    /// However they end, and whoever gave up.
    #[test]
    fn calls_that_are_over_count_no_more() {
        let queue = queue();
        let (mut over, mut dropped) = (drain(&queue), drain(&queue));
        let given_up = wait(&queue, 5);
        let _all = wait(&queue, 20);
        drop(given_up);
        assert_eq!(leave(&mut dropped), 20);
        assert_eq!(queue.state().under_way, 20);
        drop(dropped);
        let _all = wait(&queue, 7);
        assert_eq!([leave(&mut over), leave(&mut over)], [7, 0]);
        let state = queue.state();
        assert_eq!([state.under_way, state.drains, state.waiting.len()], [0; 3]);
    }
}
