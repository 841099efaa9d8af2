//! Encodes requests for the script. `lua/decide.lua` describes the format.

use std::sync::Arc;

use deadpool_redis::redis::Cmd;
use smallvec::SmallVec;

use super::args::ScriptArgs;
use super::state;
use crate::algorithm::{ChargeMark, Size};
use crate::store::redis::slot;

/// The operation of the script on the limits of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::store::redis) enum Task {
    Acquire = b'a' as isize,
    Peek = b'p' as isize,
    /// Charges nothing, like a peek, but counts denials as strikes.
    PeekWithStrikes = b't' as isize,
    Refund = b'r' as isize,
    SetOverride = b'o' as isize,
    /// Deletes the keys.
    Reset = b'x' as isize,
}

/// The influence of a limit on the decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::store::redis) enum Mode {
    Enforced = b'e' as isize,
    Shadow = b's' as isize,
    /// One of the limits in quota mode must have room.
    Quota = b'q' as isize,
}

/// A limit of a request that is decided.
#[derive(Debug)]
pub(in crate::store::redis) struct LimitArgs<'a> {
    /// The algorithm's tag.
    pub(in crate::store::redis) tag: u8,
    pub(in crate::store::redis) mode: Mode,
    pub(in crate::store::redis) key: String,
    /// The algorithm's arguments.
    pub(in crate::store::redis) args: ScriptArgs,
    /// The key of the limit's override, and the state that it is expected to hold: the arguments follow from that. If it
    /// holds another one, nothing is decided.
    pub(in crate::store::redis) expected_override: Option<(String, &'a [u8])>,
    /// The key of the limit's penalty, and its arguments.
    pub(in crate::store::redis) penalty: Option<(String, ScriptArgs)>,
}

/// A request, encoded for the script.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Request {
    pub(in crate::store::redis) keys: SmallVec<[String; 2]>,
    body: Body,
}

/// All of a request but its keys.
#[derive(Clone, Debug)]
enum Body {
    Own(Vec<u8>),
    /// Encoded once for all requests that differ only in their keys.
    Template(Arc<[u8]>),
}

/// Stands for a request that differs from the previous one only in its keys.
const SAME: u8 = b'=';

/// The length of a request's header: its task, the numbers of its limits and keys, and its length.
const HEADER: usize = 5;
/// The length of a limit with ten arguments.
const TYPICAL_LIMIT: usize = 4 + 10 * 8;

impl Request {
    pub(in crate::store::redis) fn new(task: Task, limits: usize) -> Self {
        let mut body = Vec::with_capacity(HEADER + limits * TYPICAL_LIMIT);
        // A limiter has at most 64 limits.
        body.extend_from_slice(&[task as u8, limits as u8, 0, HEADER as u8, 0]);
        Self { keys: SmallVec::new(), body: Body::Own(body) }
    }

    /// Creates a request for `key` from a template of one limit.
    pub(in crate::store::redis) fn from_template(template: Arc<[u8]>, key: String) -> Self {
        Self { keys: SmallVec::from_iter([key]), body: Body::Template(template) }
    }

    /// Returns the encoded request without its keys, as a template for others.
    pub(in crate::store::redis) fn into_template(self) -> Arc<[u8]> {
        match self.body {
            Body::Own(body) => body.into(),
            Body::Template(template) => template,
        }
    }

    /// Appends a key.
    pub(in crate::store::redis) fn key(&mut self, key: String) {
        self.keys.push(key);
        let keys = self.keys.len() as u8;
        self.own()[2] = keys;
    }

    /// Appends a limit to be decided.
    pub(in crate::store::redis) fn limit(&mut self, limit: LimitArgs<'_>) {
        let LimitArgs { tag, mode, key, args, expected_override, penalty } = limit;
        self.key(key);
        let expected = expected_override.map(|(key, expected)| {
            self.key(key);
            expected
        });
        let expected_length = expected.map_or(0, |expected| expected.len() as u8 + 1);
        self.extend(&[tag, mode as u8, penalty.is_some().into(), expected_length]);
        self.extend(expected.unwrap_or_default());
        self.extend_args(&args);
        if let Some((key, args)) = penalty {
            self.key(key);
            self.extend_args(&args);
        }
    }

    /// Appends the limit of a template.
    pub(in crate::store::redis) fn limit_from_template(&mut self, template: &[u8], key: String) {
        self.key(key);
        self.extend(&template[HEADER..]);
    }

    /// Appends a refund: the algorithm's tag, the mark of the charge and the arguments.
    pub(in crate::store::redis) fn refund(&mut self, key: String, tag: u8, mark: ChargeMark, args: &[f64]) {
        self.key(key);
        self.extend(&[tag]);
        self.extend(&state::encode(&mark.0));
        self.extend_args(args);
    }

    /// Appends an override: for how many µs it holds (negative for good), and its size.
    pub(in crate::store::redis) fn set_override(&mut self, key: String, span: f64, size: Size) {
        self.key(key);
        self.extend_args(&[span]);
        for number in size {
            self.extend(&number.to_le_bytes());
        }
    }

    /// Returns whether it refunds charges of earlier requests.
    pub(in crate::store::redis) fn is_refund(&self) -> bool {
        self.body().first() == Some(&(Task::Refund as u8))
    }

    /// Returns the length of its keys and its body.
    pub(in crate::store::redis) fn bytes(&self) -> usize {
        self.body().len() + self.keys.iter().map(String::len).sum::<usize>()
    }

    /// Returns the Cluster slot of its keys, which must be one.
    pub(in crate::store::redis) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot::of(key))
    }

    fn body(&self) -> &[u8] {
        match &self.body {
            Body::Own(body) => body,
            Body::Template(template) => template,
        }
    }

    /// Returns the body for a change. A template is copied.
    fn own(&mut self) -> &mut Vec<u8> {
        if let Body::Template(template) = &self.body {
            self.body = Body::Own(template.to_vec());
        }
        match &mut self.body {
            Body::Own(body) => body,
            Body::Template(_) => unreachable!("it was copied"),
        }
    }

    fn extend_args(&mut self, args: &[f64]) {
        for number in args {
            self.extend(&number.to_le_bytes());
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let body = self.own();
        body.extend_from_slice(bytes);
        // 64 limits take less than 16 KB.
        let length = (body.len() as u16).to_le_bytes();
        body[HEADER - 2..HEADER].copy_from_slice(&length);
    }

    /// Returns whether a request with the same body may be encoded as [`SAME`].
    fn is_repeatable(&self) -> bool {
        let &[task, ..] = self.body() else { return false };
        [Task::Acquire, Task::Peek, Task::PeekWithStrikes].map(|task| task as u8).contains(&task)
    }
}

/// Encodes a clock that replaces Redis' own in tests: the instant, and for how many ms keys outlive their state, as
/// Redis' own clock goes on while the test's stands still.
pub(in crate::store::redis) fn encode_clock(micros: u64) -> [u8; 16] {
    const KEPT: f64 = 600_000.0;
    let [now, kept] = [micros as f64, KEPT].map(|number| u128::from(number.to_bits()));
    (kept << 64 | now).to_le_bytes()
}

/// Returns the command that has the script of this `hash` perform `requests`, one after the other, at one instant.
pub(in crate::store::redis) fn evalsha(hash: &str, clock: &[u8], requests: &[Request]) -> Cmd {
    let keys = || requests.iter().flat_map(|request| &request.keys);
    let (number, length) = keys().fold((0, 0), |(number, length), key| (number + 1, length + key.len()));
    let bodies = encode(requests);
    // The command, the hash, the number of keys and the clock take less than 96 bytes.
    let mut command = Cmd::with_capacity(5 + number, 96 + length + bodies.len());
    command.arg("EVALSHA").arg(hash).arg(number);
    for key in keys() {
        command.arg(key);
    }
    command.arg(clock).arg(bodies);
    command
}

/// Encodes all of `requests` but their keys.
pub(in crate::store::redis) fn encode(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(requests.iter().map(|request| request.body().len()).sum());
    let mut last: &[u8] = &[];
    for request in requests {
        let body = request.body();
        // Bodies of one template usually have the same address, which saves comparing them.
        if (std::ptr::eq(body, last) || body == last) && request.is_repeatable() {
            bytes.push(SAME);
        } else {
            bytes.extend_from_slice(body);
        }
        last = body;
    }
    bytes
}
