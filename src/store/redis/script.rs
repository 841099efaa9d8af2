//! The script: its text, what it is handed, and what it replies.

use std::sync::Arc;

use deadpool_redis::redis::{Cmd, Value};
use smallvec::SmallVec;

use super::codec::StoredState;
use super::error::Fault;
use super::slot;
use crate::algorithm::Size;

/// All of it: fixed, so that a server keeps one script however many limits there are.
pub(super) const TEXT: &str = concat!(
    include_str!("script/instant.lua"),
    // For each request, once more if something had to be made for it: that is found out before anything is written.
    "while at <= length do\nif wanted then\nrule = nil\nif not plus then\n",
    include_str!("script/spans.lua"),
    "end\nif wanted == 1 then\n",
    include_str!("script/penalty.lua"),
    include_str!("script/seldom.lua"),
    "elseif wanted == 2 or wanted == 100 or wanted == 113 then\n",
    include_str!("script/drain_seldom.lua"),
    "elseif wanted == 107 or wanted == 119 then\n",
    include_str!("script/window_refund.lua"),
    "elseif wanted == 99 then\n",
    include_str!("script/sliding_window_counter.lua"),
    "elseif wanted == 105 then\n",
    include_str!("script/token_bucket.lua"),
    "elseif wanted == 108 then\n",
    include_str!("script/log.lua"),
    "end\nif rule then rules[wanted] = rule end\n",
    // Else it would be asked for again and again.
    "if wanted > 96 and not rules[wanted] then error('no rule has the letter ' .. wanted) end\nwanted = nil\nend\n",
    include_str!("script/decide.lua"),
    include_str!("script/drain.lua"),
    "else\n",
    include_str!("script/window.lua"),
    include_str!("script/expiry.lua"),
    include_str!("script/keep.lua"),
    include_str!("script/verdict.lua"),
    include_str!("script/keep.lua"),
    include_str!("script/reply.lua"),
);

/// What is to be done with the limits of a request, as the script spells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Acquire = b'a' as isize,
    Peek = b'p' as isize,
    /// To decide as a peek does, whose denials count.
    Try = b't' as isize,
    Refund = b'r' as isize,
    /// Keep an override.
    Keep = b'k' as isize,
    Reset = b'x' as isize,
}

/// One request, as the script is handed it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) keys: SmallVec<[String; 2]>,
    /// What is to be done, for how many limits, with how many keys, and how long this is; then what each rule
    /// is to work with.
    text: Vec<u8>,
    /// The same, where it was worked out once for all requests that are the same but for their key.
    usual: Option<Arc<[u8]>>,
}

impl Request {
    pub(super) fn new(task: Task, limits: usize) -> Self {
        let mut text = Vec::with_capacity(HEAD + limits * USUAL);
        // A limiter has at most 64.
        text.extend_from_slice(&[task as u8, limits as u8, 0, HEAD as u8, 0]);
        Self { keys: SmallVec::new(), text, usual: None }
    }

    /// Returns whether it gives back what earlier requests were charged.
    pub(super) fn is_refund(&self) -> bool {
        self.text().first() == Some(&(Task::Refund as u8))
    }

    /// One that tells of its key what another one's text says.
    pub(super) fn usual(text: Arc<[u8]>, key: String) -> Self {
        Self { keys: SmallVec::from_iter([key]), text: Vec::new(), usual: Some(text) }
    }

    fn text(&self) -> &[u8] {
        self.usual.as_deref().unwrap_or(&self.text)
    }

    /// The length of its keys and numbers.
    pub(super) fn bytes(&self) -> usize {
        self.text().len() + self.keys.iter().map(String::len).sum::<usize>()
    }

    /// What is told of it, to be told again of others.
    pub(super) fn into_usual(self) -> Arc<[u8]> {
        self.text.into()
    }

    /// A limit's rule and its numbers, as a request says them that is [usual](Self::usual).
    pub(super) fn rule_of(&mut self, text: &[u8]) {
        self.text.extend_from_slice(&text[HEAD..]);
        self.measure();
    }

    pub(super) fn limit(&mut self, key: String) {
        self.keys.push(key);
        self.text[2] = self.keys.len() as u8;
    }

    /// What the next limit's numbers were worked out from, which `key` has to hold: or else nothing is decided,
    /// and [`Found::is_to_ask_again`] tells what it holds.
    pub(super) fn believe(&mut self, key: String, believed: &[u8]) {
        self.limit(key);
        self.text.extend_from_slice(&[BELIEVED, believed.len() as u8]);
        self.text.extend_from_slice(believed);
    }

    /// Where its keys are in a Cluster: requests whose keys have several slots are taken apart first.
    pub(super) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot::of(key))
    }

    /// A limit's rule, the mark of what is to be given back if there is one, and its numbers.
    pub(super) fn rule(&mut self, letter: u8, mark: Option<StoredState>, numbers: &[f64]) {
        self.text.push(letter);
        if let Some(mark) = mark {
            self.text.extend_from_slice(&mark.to_bytes());
        }
        self.numbers(numbers);
    }

    /// More of a rule's numbers.
    pub(super) fn numbers(&mut self, numbers: &[f64]) {
        for number in numbers {
            self.text.extend_from_slice(&number.to_le_bytes());
        }
        self.measure();
    }

    /// What an override is, and for how long, in the two numbers of a span, where that is not for good.
    pub(super) fn keep(&mut self, span: [f64; 2], size: Size) {
        let span = span.iter().flat_map(|number| number.to_le_bytes());
        let size = size.iter().flat_map(|number| number.to_le_bytes());
        self.text.extend(span.chain(size));
        self.measure();
    }

    /// Whether it charges limits, all of which have one key.
    fn is_plain(&self) -> bool {
        let &[task, limits, keys, ..] = self.text() else { return false };
        limits == keys && [Task::Acquire, Task::Peek, Task::Try].map(|task| task as u8).contains(&task)
    }

    fn measure(&mut self) {
        // 64 limits take less than 8 KB.
        let length = (self.text.len() as u16).to_le_bytes();
        self.text[HEAD - 2..HEAD].copy_from_slice(&length);
    }
}

/// What is added to the letter of a rule whose limit is not enforced.
pub(super) const SHADOW: u8 = 128;
/// What the letter of a limit in quota mode is less. It has no penalty.
pub(super) const QUOTA: u8 = 64;
/// What is taken off it if its limit has a penalty: the letter is then in upper case.
pub(super) const PENALISED: u8 = 32;

/// What stands before what is believed of a limit.
const BELIEVED: u8 = b'o';

/// What is said of a request that is the same as the one before it, but for its keys.
const SAME: u8 = b'=';

/// The length of what comes before a request's rules, and of a rule that is a letter and ten numbers.
const HEAD: usize = 5;
const USUAL: usize = 1 + 10 * 8;

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
    let keys = || requests.iter().flat_map(|request| &request.keys);
    let (number, length) = keys().fold((0, 0), |(number, length), key| (number + 1, length + key.len()));
    let text = text(requests);
    // What it is longer than its keys and its text is the verb, the hash, a number and a clock.
    let mut call = Cmd::with_capacity(5 + number, 96 + length + text.len());
    call.arg("EVALSHA").arg(hash).arg(number);
    for key in keys() {
        call.arg(key);
    }
    call.arg(clock).arg(text);
    call
}

/// All that the script is told of `requests`, but for their keys.
pub(super) fn text(requests: &[Request]) -> Vec<u8> {
    let mut text = Vec::with_capacity(requests.iter().map(|request| request.text().len()).sum());
    let mut last: &[u8] = &[];
    for request in requests {
        let own = request.text();
        // What is usual is the same in memory, too.
        if (std::ptr::eq(own, last) || own == last) && request.is_plain() {
            text.push(SAME);
        } else {
            text.extend_from_slice(own);
        }
        last = own;
    }
    text
}

/// What the script says of one request: whether it was allowed, and what each key held before; or that it was
/// not decided.
#[derive(Clone, Debug)]
pub(super) struct Found {
    verdict: Verdict,
    keys: u8,
    /// For each key how many states there are, and those. Two limits of one state each are usual.
    held: SmallVec<[u8; 2 * (1 + StoredState::SIZE)]>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Allowed,
    Denied,
    Again,
}

impl Found {
    pub(super) fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// Nothing was decided, as something that the request took for granted is not so: what was found is what
    /// is, of each limit.
    pub(super) fn is_to_ask_again(&self) -> bool {
        self.verdict == Verdict::Again
    }

    /// How many keys it says something of: one for each limit, and behind it one for its penalty.
    pub(super) fn keys(&self) -> usize {
        self.keys.into()
    }

    /// The states that each key held.
    pub(super) fn held(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.held[..];
        std::iter::from_fn(move || states(&mut rest))
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    fn read(rest: &mut &[u8]) -> Option<Result<Self, Fault>> {
        let verdict = match take(rest, 1)?[0] {
            b'y' => Verdict::Allowed,
            b'n' => Verdict::Denied,
            b'a' => Verdict::Again,
            b'e' => {
                let length = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
                let error = take(rest, length.into())?;
                return Some(Err(Fault::script(String::from_utf8_lossy(error).into_owned())));
            }
            _ => return None,
        };
        let keys = take(rest, 1)?[0];
        let from = *rest;
        for _ in 0..keys {
            states(rest)?;
        }
        let held = SmallVec::from_slice(&from[..from.len() - rest.len()]);
        Some(Ok(Self { verdict, keys, held }))
    }
}

/// The states at the start of `rest`, after their number, which are taken off.
fn states<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let states = take(rest, 1)?[0];
    take(rest, usize::from(states) * StoredState::SIZE)
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
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
    let Value::BulkString(reply) = reply else { return Err(Fault::Reply("no string")) };
    let mut rest = &reply[..];
    let instant = take(&mut rest, StoredState::SIZE).and_then(StoredState::parse_all);
    let now = instant.as_deref().and_then(<[_]>::first).and_then(StoredState::instant);
    let now = now.filter(|now| *now <= crate::Timestamp::MAX.as_micros()).ok_or(Fault::Reply("no instant"))?;
    let found: Option<Vec<_>> = (0..requests).map(|_| Found::read(&mut rest)).collect();
    match found {
        Some(found) if rest.is_empty() => Ok(Replies { now, found }),
        _ => Err(Fault::Reply("another number of requests")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_length_than_its_requests_need_is_an_error() {
        let mut reply = StoredState { micros: 1, counts: [0, 0] }.to_bytes().to_vec();
        // Two requests were allowed, of one limit each that held nothing.
        reply.extend(*b"y\x01\0y\x01\0");
        let read = |reply: &[u8], requests| replies(Value::BulkString(reply.to_vec()), requests);
        assert_eq!(read(&reply, 2).unwrap().found.len(), 2);
        for length in 0..reply.len() {
            assert!(matches!(read(&reply[..length], 2), Err(Fault::Reply(_))), "{length} bytes");
        }
        assert!(matches!(read(&reply, 1), Err(Fault::Reply("another number of requests"))), "of another request");
        for trailing in [0, b'y'] {
            reply.push(trailing);
            assert!(matches!(read(&reply, 2), Err(Fault::Reply("another number of requests"))), "trailing bytes");
        }
    }
}
