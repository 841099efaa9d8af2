//! The script: its text, what it is handed, and what it replies.

use deadpool_redis::redis::{Cmd, Value, cmd};
use smallvec::SmallVec;

use super::error::Fault;
use super::slot;
use crate::algorithm::State;

/// All of it: fixed, so that a server keeps one script however many limits there are.
pub(super) const TEXT: &str = concat!(
    include_str!("instant.lua"),
    include_str!("../../algorithm/fixed_window.lua"),
    include_str!("../../algorithm/sliding_window_counter.lua"),
    include_str!("../../algorithm/drain.lua"),
    include_str!("../../algorithm/leaky_bucket_queue.lua"),
    include_str!("../../algorithm/token_bucket.lua"),
    include_str!("../../algorithm/log.lua"),
    include_str!("decide.lua"),
);

/// What is to be done with the limits of a request, as the script spells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Acquire = b'a' as isize,
    Peek = b'p' as isize,
    Refund = b'r' as isize,
    Reset = b'x' as isize,
}

/// One request, as the script is handed it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) keys: SmallVec<[String; 2]>,
    /// What is to be done and for how many limits, then what each rule is to work with.
    pub(super) args: SmallVec<[SmallVec<[u8; 120]>; 3]>,
}

impl Request {
    pub(super) fn new(task: Task, limits: usize) -> Self {
        // A limiter has at most 64.
        let head = SmallVec::from_slice(&[task as u8, limits as u8]);
        Self { keys: SmallVec::new(), args: SmallVec::from_iter([head]) }
    }

    pub(super) fn limit(&mut self, key: String) {
        self.keys.push(key);
    }

    /// Where its keys are in a Cluster: requests whose keys have several slots are taken apart first.
    pub(super) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot::of(key))
    }

    /// A limit's rule, the mark of what is to be given back if there is one, and its numbers.
    pub(super) fn rule(&mut self, letter: u8, mark: Option<State>, numbers: &[f64]) {
        let mut arg = SmallVec::from_slice(&[letter]);
        arg.extend(mark.into_iter().flat_map(State::to_bytes));
        arg.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.args.push(arg);
    }
}

/// A clock that is handed in, for tests: the instant, and for how many ms keys are kept beyond
/// what they mean, as Redis' own clock goes on while the test's stands still.
pub(super) fn clock(micros: u64) -> [u8; 24] {
    const KEPT: f64 = 600_000.0;
    let mut clock = [0; 24];
    for (number, bytes) in [(micros / 1_000_000_000) as f64, (micros % 1_000_000_000) as f64, KEPT]
        .into_iter()
        .zip(clock.as_chunks_mut::<8>().0)
    {
        *bytes = number.to_le_bytes();
    }
    clock
}

/// The command that has the script of this `hash` decide `requests`, one after the other, at one
/// instant.
pub(super) fn call(hash: &str, clock: &[u8], requests: &[Request]) -> Cmd {
    let mut call = cmd("EVALSHA");
    call.arg(hash).arg(requests.iter().map(|request| request.keys.len()).sum::<usize>());
    for key in requests.iter().flat_map(|request| &request.keys) {
        call.arg(key);
    }
    call.arg(clock);
    for arg in requests.iter().flat_map(|request| &request.args) {
        call.arg(arg.as_slice());
    }
    call
}

/// What the script says of one request: whether it was allowed, and what each key held before.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) allowed: bool,
    pub(super) held: SmallVec<[Value; 2]>,
}

/// What the script says of several requests.
#[derive(Debug)]
pub(super) struct Replies {
    /// The instant at which it decided, in µs.
    pub(super) now: u64,
    /// What it found for each, or why it could not decide it.
    pub(super) found: Vec<Result<Found, Fault>>,
}

impl Replies {
    /// The reply to each request.
    pub(super) fn each(self) -> Vec<Reply> {
        self.found.into_iter().map(|found| found.map(|found| (self.now, found))).collect()
    }
}

/// What the script said of a request, and at which instant.
pub(super) type Reply = Result<(u64, Found), Fault>;

/// Reads what the script replied to as many `requests`.
pub(super) fn replies(reply: Value, requests: usize) -> Result<Replies, Fault> {
    let Value::Array(replies) = reply else { return Err(Fault::Reply("no array")) };
    let mut replies = replies.into_iter();
    let instant = replies.next().as_ref().and_then(bytes).and_then(State::all);
    let now = instant.as_deref().and_then(<[_]>::first).and_then(State::instant);
    let now = now.filter(|now| *now <= crate::Timestamp::MAX.as_micros()).ok_or(Fault::Reply("no instant"))?;
    if replies.len() != requests {
        return Err(Fault::Reply("another number of requests"));
    }
    Ok(Replies { now, found: replies.map(found).collect() })
}

fn found(reply: Value) -> Result<Found, Fault> {
    match reply {
        Value::Array(found) => {
            let mut found = found.into_iter();
            let Some(Value::Int(allowed)) = found.next() else { return Err(Fault::Reply("no verdict")) };
            Ok(Found { allowed: allowed == 1, held: found.collect() })
        }
        error => match bytes(&error) {
            Some(error) => Err(Fault::Script(String::from_utf8_lossy(error).into_owned())),
            None => Err(Fault::Reply("neither a verdict nor an error")),
        },
    }
}

pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}
