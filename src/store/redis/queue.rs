//! Requests that wait at the same time leave together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    calls: usize,
    waiting: VecDeque<(Request, oneshot::Sender<Reply>)>,
}

impl Queue {
    pub(super) fn new(server: Server) -> Arc<Self> {
        Arc::new(Self { server, state: Mutex::default() })
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// What the script says of `request` by Redis' own clock. Given up before the request has left,
    /// it never leaves.
    pub(super) async fn ask(self: &Arc<Self>, request: Request) -> Reply {
        match self.begin(request) {
            Ok((request, _turn)) => self.ask_by(&[], request).await,
            Err(reply) => reply.await.unwrap_or(Err(Fault::Reply("nothing"))),
        }
    }

    /// What the script says of `request` by Redis' own clock, or by one that is handed in.
    pub(super) async fn reply(self: &Arc<Self>, clock: Option<[u8; 24]>, request: Request) -> Reply {
        match clock {
            None => self.ask(request).await,
            Some(clock) => self.ask_by(&clock, request).await,
        }
    }

    /// The turn to send `request` at once, or where its reply will be.
    fn begin(self: &Arc<Self>, request: Request) -> Result<(Request, Turn<'_>), oneshot::Receiver<Reply>> {
        let mut state = self.state();
        if state.calls < CALLS {
            state.calls += 1;
            return Ok((request, Turn { queue: self }));
        }
        let (sender, reply) = oneshot::channel();
        state.waiting.push_back((request, sender));
        Err(reply)
    }

    /// What the script says of `request` by a clock that is handed in, in a call of its own.
    pub(super) async fn ask_by(&self, clock: &[u8], request: Request) -> Reply {
        self.server.call(clock, &[request]).await.pop().unwrap_or(Err(Fault::Reply("nothing")))
    }

    /// Sends what waits, call after call, until nothing does.
    async fn drain(self: Arc<Self>) {
        let turn = Turn { queue: &self };
        loop {
            // Who has just been answered may well ask again: their requests leave together, too.
            tokio::task::yield_now().await;
            let (requests, senders) = self.next();
            if requests.is_empty() {
                return drop(turn);
            }
            for (sender, reply) in senders.into_iter().zip(self.server.call(&[], &requests).await) {
                // Who gave up meanwhile was charged all the same.
                let _ = sender.send(reply);
            }
        }
    }

    fn next(&self) -> (Vec<Request>, Vec<oneshot::Sender<Reply>>) {
        let mut state = self.state();
        let mut next = (Vec::new(), Vec::new());
        while next.0.len() < TOGETHER
            && let Some((request, sender)) = state.waiting.pop_front()
        {
            if !sender.is_closed() {
                next.0.push(request);
                next.1.push(sender);
            }
        }
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the calls that may be under way. Whoever ends it, also by giving up, passes it on to
/// those that wait.
struct Turn<'a> {
    queue: &'a Arc<Queue>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !state.waiting.is_empty() => {
                drop(state);
                runtime.spawn(self.queue.clone().drain());
            }
            Ok(_) => state.calls -= 1,
            // The runtime is gone, and so is who waited.
            Err(_) => {
                state.calls -= 1;
                state.waiting.clear();
            }
        }
    }
}
