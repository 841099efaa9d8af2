//! The requests that wait for a server, and how many of them the next call takes.

use std::collections::BTreeMap;

use redis::{Cmd, Value};
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use super::error::Fault;
use super::request::{Reply, Request, evalsha, parse_replies};

/// The number of calls that share the waiting requests: the second one is decided while the first one's reply travels.
/// A single connection carries as many.
pub(super) const CALLS: usize = 2;

/// The most requests in one call. With more, a server that decides them one after the other would delay other clients
/// for longer than sharing a call saves.
pub(super) const MAX_REQUESTS: usize = 64;

/// The most keys in one call, which are at least as many as the limits that it charges. Redis serves no other client
/// while it runs a call, and takes 2.4 µs for a key, of a `SlidingWindow` 7.6 µs: 0.6 ms or 2 ms for a call. With 128,
/// requests of 64 limits have a fifth less throughput.
const MAX_KEYS: usize = 256;

/// The most bytes of arguments in one call, before equal requests are abbreviated. Reached only by long key prefixes
/// or by many limits with calendars, overrides or penalties.
const MAX_BYTES: usize = 64 * 1024;

#[derive(Clone)]
pub(super) enum Command {
    /// Requests that the script performs together, by Redis' own clock or by the clock of a test.
    Script(Option<[u8; 16]>, SmallVec<[Request; 1]>),
    Other(Cmd),
}

#[derive(Clone)]
pub(super) enum CommandReply {
    /// The instant (in µs) and the reply of a request to the script.
    Script(u64, Reply),
    Other(Value),
}

impl CommandReply {
    /// Returns the reply to a command that is not the script.
    pub(super) fn into_value(self) -> Result<Value, Fault> {
        match self {
            Self::Other(value) => Ok(value),
            Self::Script(..) => Err(Fault::Reply("expected a reply to a command")),
        }
    }
}

/// A command that waits or is sent, and the callers that wait for the answers.
pub(super) struct Job {
    pub(super) command: Command,
    /// The slot of its keys, or 0 for requests to a single server. Requests of one slot can share a command.
    pub(super) slot: u16,
    /// Whether the slot may be one that another master of the Cluster is moving to this one.
    pub(super) asking: bool,
    pub(super) callers: SmallVec<[oneshot::Sender<Result<CommandReply, Fault>>; 1]>,
}

impl Job {
    /// Returns whether it returns charges of earlier requests.
    pub(super) fn is_refund(&self) -> bool {
        matches!(&self.command, Command::Script(_, requests) if requests.iter().any(Request::is_refund))
    }

    /// Returns how much of a call it fills, of [`MAX_BYTES`] in all: everything, if it must be sent alone.
    fn weight(&self) -> usize {
        let weight = |request: &Request| {
            (MAX_BYTES / MAX_REQUESTS).max(request.keys.len() * (MAX_BYTES / MAX_KEYS)).max(request.bytes())
        };
        match &self.command {
            Command::Script(None, requests) if !self.asking => requests.iter().map(weight).sum(),
            _ => MAX_BYTES,
        }
    }

    /// Adds the requests of another job, to be sent in the same command.
    fn merge(&mut self, other: Self) {
        if let (Command::Script(_, requests), Command::Script(_, others)) = (&mut self.command, other.command) {
            requests.extend(others);
            self.callers.extend(other.callers);
        }
    }

    /// Returns a job for each request.
    pub(super) fn split(self) -> impl Iterator<Item = Self> {
        let Self { command, slot, asking, callers } = self;
        let (clock, requests) = match command {
            Command::Script(clock, requests) => (clock, requests),
            Command::Other(_) => Default::default(),
        };
        requests.into_iter().zip(callers).map(move |(request, caller)| Self {
            command: Command::Script(clock, smallvec![request]),
            slot,
            asking,
            callers: smallvec![caller],
        })
    }

    pub(super) fn to_command(&self, hash: &str) -> Cmd {
        match &self.command {
            Command::Script(clock, requests) => evalsha(hash, clock.as_ref().map_or(&[], |it| it), requests),
            Command::Other(command) => command.clone(),
        }
    }

    /// Answers the callers. Returns the fault that breaks the connection, if there is one.
    pub(super) fn answer(self, reply: Result<Value, Fault>) -> Option<Fault> {
        let answers = reply.and_then(|reply| match &self.command {
            Command::Script(_, requests) => {
                let (now, replies) = parse_replies(reply, requests.len())?;
                Ok(replies.into_iter().map(|reply| Ok(CommandReply::Script(now, reply?))).collect())
            }
            Command::Other(_) => Ok(vec![Ok(CommandReply::Other(reply))]),
        });
        let answers = answers.unwrap_or_else(|fault| vec![Err(fault); self.callers.len()]);
        let broken = answers.iter().filter_map(|answer| answer.as_ref().err()).find(|fault| fault.breaks()).cloned();
        for (caller, answer) in self.callers.into_iter().zip(answers) {
            // A caller that gave up meanwhile has been charged nevertheless.
            let _ = caller.send(answer);
        }
        broken
    }
}

/// The jobs that wait, and the number of those under way.
#[derive(Default)]
pub(super) struct Queue {
    /// By ticket: in order of arrival, and quickly removed when the caller gives up.
    pub(super) waiting: BTreeMap<u64, Job>,
    next_ticket: u64,
    /// The requests in the calls under way.
    under_way: usize,
}

impl Queue {
    /// Adds a job, and returns its ticket.
    pub(super) fn push(&mut self, job: Job) -> u64 {
        self.next_ticket += 1;
        self.waiting.insert(self.next_ticket, job);
        self.next_ticket
    }

    /// Begins a call of up to `most` requests, if anything waits. Returns its jobs, and the number of their requests.
    /// One that is larger than a call should be has a call of its own.
    ///
    /// A call takes up to half of all requests, those under way included. Requests that were answered together are
    /// often followed by others together. So a short call beside a long one would remain short, and the server would be
    /// idle after each of them. If one call took all, it would remain the only one.
    /// While a call hangs, each other one takes half of the waiting requests.
    pub(super) fn begin_call(&mut self, most: usize) -> (Vec<Job>, usize) {
        let most = (self.waiting.len() + self.under_way).div_ceil(CALLS).min(most);
        let mut jobs = Vec::<Job>::new();
        let (mut requests, mut weight) = (0, 0);
        while requests < most
            && let Some(next) = self.waiting.first_entry()
        {
            weight += next.get().weight();
            if requests > 0 && weight > MAX_BYTES {
                break;
            }
            requests += 1;
            let job = next.remove();
            match jobs.iter_mut().find(|first| first.slot == job.slot) {
                Some(first) => first.merge(job),
                None => jobs.push(job),
            }
        }
        self.under_way += requests;
        (jobs, requests)
    }

    /// Returns whether calls are under way.
    pub(super) fn has_calls(&self) -> bool {
        self.under_way > 0
    }

    /// Ends a call of so many requests.
    pub(super) fn end_call(&mut self, requests: usize) {
        self.under_way -= requests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::request::{INSTANT, Task, encode_clock};

    fn job(keys: usize, length: usize) -> Job {
        let mut request = Request::new(Task::Acquire, keys);
        (0..keys).for_each(|_| request.key("k".repeat(length)));
        let command = Command::Script(None, smallvec![request]);
        Job { command, slot: 0, asking: false, callers: smallvec![oneshot::channel().0] }
    }

    fn push(queue: &mut Queue, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            queue.push(job);
        }
    }

    fn usual(jobs: usize) -> impl Iterator<Item = Job> {
        (0..jobs).map(|_| job(1, 64))
    }

    /// Returns the number of requests in the next call, which ends at once.
    fn next(queue: &mut Queue) -> usize {
        let (_, requests) = queue.begin_call(MAX_REQUESTS);
        if requests > 0 {
            queue.end_call(requests);
        }
        requests
    }

    #[test]
    fn two_calls_share_the_requests_equally() {
        let mut queue = Queue::default();
        push(&mut queue, usual(60));
        assert_eq!(queue.begin_call(MAX_REQUESTS).1, 30);
        push(&mut queue, usual(4));
        assert_eq!(queue.begin_call(MAX_REQUESTS).1, 32);
        // All requests that were answered are followed by new ones.
        queue.end_call(30);
        push(&mut queue, usual(30));
        assert_eq!(queue.begin_call(MAX_REQUESTS).1, 32);
        // Both calls end before the next one begins.
        queue.end_call(32);
        queue.end_call(32);
        push(&mut queue, usual(64));
        assert_eq!([queue.begin_call(MAX_REQUESTS).1, queue.begin_call(MAX_REQUESTS).1], [32, 32]);
    }

    /// Behind a slow network, a request that waited for another call's reply would take two round trips.
    #[test]
    fn each_free_connection_begins_a_call_at_once() {
        let mut queue = Queue::default();
        for _ in 0..8 {
            push(&mut queue, usual(1));
            assert_eq!(queue.begin_call(MAX_REQUESTS).1, 1);
        }
        assert_eq!(queue.begin_call(MAX_REQUESTS).1, 0);
    }

    #[test]
    fn calls_are_bounded_by_requests_and_keys() {
        for (keys, requests) in [(1, 64), (4, 64), (5, 51), (64, 4), (129, 1)] {
            let mut queue = Queue::default();
            push(&mut queue, (0..300).map(|_| job(keys, 1)));
            assert_eq!([(); 3].map(|()| next(&mut queue)), [requests; 3], "{keys} keys each");
        }
    }

    #[test]
    fn calls_are_bounded_by_bytes() {
        let mut queue = Queue::default();
        push(&mut queue, (0..300).map(|_| job(2, 3_000)));
        assert_eq!(next(&mut queue), MAX_BYTES / 6_005);
    }

    #[test]
    fn an_oversized_request_has_a_call_of_its_own() {
        for large in [job(MAX_KEYS + 1, 1), job(1, MAX_BYTES + 1), Job { asking: true, ..job(1, 1) }] {
            let mut queue = Queue::default();
            push(&mut queue, usual(3).chain([large]).chain(usual(3)));
            assert_eq!([(); 5].map(|()| next(&mut queue)), [3, 1, 2, 1, 0]);
        }
    }

    /// A call has one clock. Clones of a store can have several, for tests.
    #[test]
    fn a_request_with_a_clock_of_its_own_has_a_call_of_its_own() {
        let at = |now: u64| {
            let mut job = job(1, 1);
            let Command::Script(clock, _) = &mut job.command else { unreachable!() };
            *clock = Some(encode_clock(now));
            job
        };
        let mut queue = Queue::default();
        push(&mut queue, usual(3).chain([at(1), at(2)]).chain(usual(3)));
        assert_eq!([(); 6].map(|()| next(&mut queue)), [3, 1, 1, 2, 1, 0]);
    }

    /// The first request may have been decided before the server became a replica.
    #[test]
    fn any_answer_of_a_call_shows_that_the_connection_is_broken() {
        let replies: [&[u8]; 3] = [b"y\x01\0", b"e\x0e\0READONLY it is", b"e\x12\0WRONGTYPE it holds"];
        for (order, breaks) in [([0, 1, 2], true), ([1, 0, 2], true), ([2, 0, 1], true), ([2, 0, 0], false)] {
            let mut call = job(1, 1);
            for _ in 1..order.len() {
                call.merge(job(1, 1));
            }
            let reply = [&[0; INSTANT], replies[order[0]], replies[order[1]], replies[order[2]]].concat();
            let broken = call.answer(Ok(Value::BulkString(reply)));
            assert_eq!(broken.is_some(), breaks, "{order:?} {broken:?}");
        }
    }

    #[test]
    fn requests_share_a_command_with_those_of_their_slot() {
        let mut queue = Queue::default();
        push(&mut queue, [7, 8, 7, 9, 7].into_iter().chain(0..5).map(|slot| Job { slot, ..job(1, 1) }));
        let (jobs, requests) = queue.begin_call(MAX_REQUESTS);
        let callers: Vec<_> = jobs.iter().map(|job| (job.slot, job.callers.len())).collect();
        assert_eq!((requests, callers), (5, vec![(7, 3), (8, 1), (9, 1)]));
    }
}
