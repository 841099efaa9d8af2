//! The requests that wait for a server, and how many of them the next call takes.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::store::redis::error::Fault;
use crate::store::redis::script::{Request, TimedReply};

/// The number of calls in flight below which a request is sent at once, so that a lone request is never delayed. The
/// others wait, and share the calls of batch senders. The second call is decided while the first one's reply travels.
/// With more calls, fewer requests would share each. (Beside direct calls, one batch sender runs in addition.)
pub(super) const CALLS: usize = 2;

/// The most requests in one call. With more, a server that decides them one after the other would delay other clients
/// for longer than sharing a call saves.
pub(super) const MAX_REQUESTS: usize = 64;

/// The most keys in one call, which are at least as many as the limits that it charges. Redis serves no other client
/// while it runs a call, and takes 2.4 µs for a key, of a `SlidingWindow` 7.6 µs: 0.6 ms or 2 ms for a call. With 128,
/// requests of 64 limits have a fifth less throughput.
pub(super) const MAX_KEYS: usize = 256;

/// The most bytes of arguments in one call, before equal requests are abbreviated. Reached only by long key prefixes
/// or by many limits with calendars, overrides or penalties.
pub(super) const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Requests in calls of their own, made by their callers: a caller that does not poll its future may take any
    /// time.
    pub(super) direct: usize,
    /// Running batch senders.
    pub(super) senders: usize,
    /// Requests in the calls of the batch senders.
    pub(super) under_way: usize,
    /// Requests that were not sent yet, by ticket: in order of arrival, and quickly removed when the caller gives up.
    pub(super) waiting: BTreeMap<u64, (Request, oneshot::Sender<TimedReply>)>,
    next_ticket: u64,
}

/// The requests of a call, and where to send the reply of each.
pub(super) type Batch = (Vec<Request>, Vec<oneshot::Sender<TimedReply>>);

impl Backlog {
    /// Checks that the queue has room for a request. It always has room for a refund, which returns the charge of
    /// an earlier request; otherwise, charges of denied requests would remain under overload.
    pub(super) fn check_capacity(&self, capacity: usize, request: &Request) -> Result<(), Fault> {
        let waiting = self.direct + self.waiting.len();
        if waiting < capacity || request.is_refund() { Ok(()) } else { Err(Fault::QueueFull { waiting }) }
    }

    /// Returns the number of waiting requests that the next call takes, up to the largest call: all, or while another
    /// call is in flight, as many as make both calls equally large. Requests that were answered together are often
    /// followed by others together. So a short call beside a long one would remain short, and the server would be idle
    /// after each of them. (Beside a call that hangs, each call takes half of the waiting requests until it times out.)
    fn share(&self) -> usize {
        let most = match self.under_way {
            0 => self.waiting.len(),
            under_way => (self.waiting.len() + under_way).div_ceil(CALLS),
        };
        most.min(self.waiting.len()).min(MAX_REQUESTS)
    }

    /// Adds a request, and returns its ticket.
    pub(super) fn push(&mut self, request: Request) -> (u64, oneshot::Receiver<TimedReply>) {
        let (sender, reply) = oneshot::channel();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, (request, sender));
        (ticket, reply)
    }

    /// Takes the requests of the next call off the queue. One that is larger than a call should be has a call of its
    /// own.
    pub(super) fn take_batch(&mut self) -> Batch {
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
