//! Decodes the reply of the script, and the states of keys in it. `lua/prelude.lua` describes the format.

use bytes::Buf;
use deadpool_redis::redis::Value;
use smallvec::SmallVec;

use super::error::Fault;
use super::request::{INSTANT, STATE, Task};
use crate::algorithm::{Algorithm, CompactState, KeyState, Log};
use crate::store::decision::{Cell, decide};
use crate::store::{Purpose, StoredOverride};
use crate::time::Timestamp;

pub(super) const INVALID_OVERRIDE: Fault = Fault::Reply("an invalid override");

/// The reply to one request.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) is_allowed: bool,
    /// The state that each key held before the request: for each cell the override of its key, if it can have one, and
    /// its own. A state is empty for a key without one. Most requests have at most two limits.
    pub(super) states: SmallVec<[SmallVec<[u8; KEPT]>; 2]>,
}

impl Reply {
    /// Fills in the answers of cells from the reply of the instant `now` (in µs), by the same algorithms as other
    /// stores. Returns the instant (in µs) from which other overrides may apply.
    pub(super) fn answer(&self, task: Task, purpose: Purpose, cells: &mut [Cell], now: u64) -> Result<u64, Fault> {
        let mut found = self.states.iter();
        let mut states: SmallVec<[KeyState; 2]> = SmallVec::new();
        let mut until = u64::MAX;
        for cell in &mut *cells {
            if cell.is_overridable()
                && let Some(StoredOverride { expires_at, size }) = next_override(&mut found)?
            {
                until = until.min(expires_at);
                if !cell.resize(size) {
                    return Err(INVALID_OVERRIDE);
                }
            }
            let state = found.next().ok_or(Fault::Reply("expected a state"))?;
            states.push(decode_key(cell.algorithm(), state).ok_or(Fault::Reply("an invalid state"))?);
        }
        if found.next().is_some() {
            return Err(Fault::Reply("another number of keys"));
        }
        let charges_nothing = task == Task::PeekWithStrikes && self.is_allowed;
        decide(cells, &mut states[..], now, if charges_nothing { Purpose::Peek } else { purpose });
        if cells.iter().any(Cell::denies) == self.is_allowed {
            return Err(Fault::Reply("a verdict that contradicts its states"));
        }
        Ok(until)
    }

    /// Parses the first of several replies, and removes it from `bytes`.
    fn parse(bytes: &mut &[u8]) -> Option<Result<Self, Fault>> {
        let is_allowed = match take(bytes, 1)?[0] {
            b'y' => true,
            b'n' => false,
            b'e' => {
                let length = take(bytes, 2)?.get_u16_le();
                let error = take(bytes, length.into())?;
                return Some(Err(Fault::script(String::from_utf8_lossy(error).into_owned())));
            }
            _ => return None,
        };
        let keys = take(bytes, 1)?[0];
        let mut state = || {
            let length = take(bytes, 1)?[0];
            take(bytes, length.into()).map(SmallVec::from_slice)
        };
        let states = (0..keys).map(|_| state()).collect::<Option<_>>()?;
        Some(Ok(Self { is_allowed, states }))
    }
}

/// Takes the next of the states in a reply as an override. It is empty if there is none. It is missing in the replies
/// to all operations on overrides but [`Task::GetOverride`].
pub(super) fn next_override<'a>(
    states: &mut impl Iterator<Item = &'a SmallVec<[u8; KEPT]>>,
) -> Result<Option<StoredOverride>, Fault> {
    let Some(state) = states.next().filter(|state| !state.is_empty()) else { return Ok(None) };
    decode_compact(state).map(StoredOverride::of_state).map(Some).ok_or(INVALID_OVERRIDE)
}

/// Removes the first `length` bytes, and returns them.
fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// The replies to the requests of one call.
#[derive(Debug)]
pub(super) struct Replies {
    /// The instant of all decisions, in µs.
    pub(super) now: u64,
    /// The reply to each request, or why it could not be performed.
    pub(super) replies: Vec<Result<Reply, Fault>>,
}

impl Replies {
    /// Parses the reply to a call of so many `requests`.
    pub(super) fn parse(reply: Value, requests: usize) -> Result<Self, Fault> {
        let Value::BulkString(reply) = reply else { return Err(Fault::Reply("expected a string")) };
        let mut bytes = &reply[..];
        let now = take(&mut bytes, INSTANT).map(|mut instant| instant.get_uint_le(INSTANT));
        let now = now.filter(|now| *now <= Timestamp::MAX.as_micros()).ok_or(Fault::Reply("expected an instant"))?;
        let replies: Option<Vec<_>> = (0..requests).map(|_| Reply::parse(&mut bytes)).collect();
        match replies {
            Some(replies) if bytes.is_empty() => Ok(Self { now, replies }),
            _ => Err(Fault::Reply("another number of requests")),
        }
    }
}

/// The length of a state, and the instant until which Redis keeps the key, if that is later than its expiry.
const KEPT: usize = STATE + INSTANT;
/// The length of an entry of a log: its instant, and two counts.
const ENTRY: usize = INSTANT + 8;

/// Decodes the state of a key under a rule. Returns `None` if no script can have stored it.
pub(super) fn decode_key(rule: &Algorithm, bytes: &[u8]) -> Option<KeyState> {
    Some(match rule.keeps_log() {
        true => KeyState::Log(Box::new(decode_log(rule, bytes)?)),
        false => KeyState::Compact(decode_compact(bytes)?),
    })
}

/// Decodes a compact state, which is empty for an unused one. Returns `None` if no script can have stored it.
pub(super) fn decode_compact(mut bytes: &[u8]) -> Option<CompactState> {
    match bytes.len() {
        0 => Some(CompactState::UNUSED),
        STATE | KEPT => Some(CompactState {
            expires_at: bytes.get_uint_le(INSTANT),
            at: bytes.get_uint_le(INSTANT),
            detail: bytes.get_u64_le(),
        }),
        _ => None,
    }
}

/// Decodes the entries of a log, oldest first: an instant of the bucket, the total up to and including it, and the
/// tokens charged in it. Returns `None` if no script can have stored them.
///
/// The first entry is the oldest one that counts, and the last one the newest. A script may leave out entries between
/// them that its answer does not depend on: the log then decides as if their tokens had been charged in the bucket of
/// the next entry.
fn decode_log(rule: &Algorithm, bytes: &[u8]) -> Option<Log> {
    let (entries, []) = bytes.as_chunks::<ENTRY>() else { return None };
    let entry = |mut entry: &[u8]| (entry.get_uint_le(INSTANT), entry.get_u32_le(), entry.get_u32_le());
    Log::of_entries(rule, entries.iter().map(|bytes| entry(bytes)).collect::<SmallVec<[_; 4]>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingLog};
    use crate::key::hash::KeyHasher;
    use crate::store::redis::request::encode_state;
    use crate::store::redis::tests::named;

    #[test]
    fn a_reply_of_another_length_than_its_requests_need_is_an_error() {
        let mut reply = 1_u64.to_le_bytes()[..INSTANT].to_vec();
        // Two allowed requests, with one limit each, whose keys held no state.
        reply.extend(*b"y\x01\0y\x01\0");
        let parse = |reply: &[u8], requests| Replies::parse(Value::BulkString(reply.to_vec()), requests);
        assert_eq!(parse(&reply, 2).unwrap().replies.len(), 2);
        for length in 0..reply.len() {
            assert!(matches!(parse(&reply[..length], 2), Err(Fault::Reply(_))), "{length} bytes");
        }
        assert!(matches!(parse(&reply, 1), Err(Fault::Reply("another number of requests"))), "a reply to two requests");
        for trailing in [0, b'y'] {
            reply.push(trailing);
            assert!(matches!(parse(&reply, 2), Err(Fault::Reply("another number of requests"))), "trailing bytes");
        }
    }

    #[test]
    fn an_instant_past_the_largest_timestamp_is_an_error() {
        let parse = |now: u64| Replies::parse(Value::BulkString(now.to_le_bytes()[..INSTANT].to_vec()), 0);
        let last = Timestamp::MAX.as_micros();
        assert_eq!(parse(last).unwrap().now, last);
        assert!(matches!(parse(last + 1), Err(Fault::Reply("expected an instant"))));
    }

    /// Returns the answer to a request of one limit, of 1 token per minute, whose keys held these states.
    fn answer(is_allowed: bool, states: &[&[u8]]) -> Result<u64, Fault> {
        let (hasher, window) = (KeyHasher::with_secret([0; 16]), FixedWindow::per_minute(1).into());
        let mut cells = [named("limit", 0, window, &hasher).with_key(hasher.hash(b"key"), 1)];
        let states = states.iter().map(|state| SmallVec::from_slice(state)).collect();
        Reply { is_allowed, states }.answer(Task::Acquire, Purpose::Take, &mut cells, 1)
    }

    #[test]
    fn a_verdict_that_contradicts_its_states_is_an_error() {
        let used = encode_state(&CompactState { expires_at: 60_000_000, at: 0, detail: 1 });
        for (state, has_room) in [(&b""[..], true), (&used, false)] {
            assert!(answer(has_room, &[state]).is_ok(), "{has_room}");
            let Err(fault) = answer(!has_room, &[state]) else { panic!("{has_room}") };
            assert!(matches!(fault, Fault::Reply("a verdict that contradicts its states")), "{fault}");
        }
    }

    #[test]
    fn a_state_too_few_or_too_many_is_an_error() {
        assert!(matches!(answer(true, &[]), Err(Fault::Reply("expected a state"))));
        assert!(matches!(answer(true, &[b"", b""]), Err(Fault::Reply("another number of keys"))));
    }

    #[test]
    fn states_survive_a_round_trip() {
        for instant in [0, 1, 1 << 52, (1 << 56) - 1] {
            let state = CompactState { expires_at: instant, at: instant / 2, detail: u64::MAX - 7 };
            assert_eq!(decode_compact(&encode_state(&state)), Some(state));
            assert_eq!(decode_compact(&[&encode_state(&state)[..], &[7; INSTANT]].concat()), Some(state));
        }
        assert_eq!(decode_compact(b""), Some(CompactState::UNUSED));
    }

    #[test]
    fn malformed_states_are_errors() {
        let log = SlidingLog::per_second(1).into();
        assert_eq!(decode_compact(b"17"), None);
        assert_eq!(decode_log(&log, b"17"), None);
    }
}
