//! Decodes the reply of the script. `lua/prelude.lua` describes the format.

use deadpool_redis::redis::Value;
use smallvec::SmallVec;

use super::state::{self, INSTANT, STATE};
use crate::store::redis::error::Fault;
use crate::time::Timestamp;

/// The reply to one request.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Reply {
    is_allowed: bool,
    /// For each key, the length of its state, and that. Most requests have at most two limits.
    states: SmallVec<[u8; 2 * (1 + STATE + INSTANT)]>,
}

impl Reply {
    pub(in crate::store::redis) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Returns the state that each key held before the request: for each cell the override of its key, if it can have
    /// one, and its own. A state is empty for a key without one.
    pub(in crate::store::redis) fn states(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.states[..];
        std::iter::from_fn(move || take_state(&mut rest))
    }

    /// Parses the first of several replies, and removes it from `bytes`.
    fn parse(bytes: &mut &[u8]) -> Option<Result<Self, Fault>> {
        let is_allowed = match take(bytes, 1)?[0] {
            b'y' => true,
            b'n' => false,
            b'e' => {
                let length = u16::from_le_bytes(take(bytes, 2)?.try_into().ok()?);
                let error = take(bytes, length.into())?;
                return Some(Err(Fault::script(String::from_utf8_lossy(error).into_owned())));
            }
            _ => return None,
        };
        let keys = take(bytes, 1)?[0];
        let start = *bytes;
        for _ in 0..keys {
            take_state(bytes)?;
        }
        let states = SmallVec::from_slice(&start[..start.len() - bytes.len()]);
        Some(Ok(Self { is_allowed, states }))
    }
}

/// Removes the length of a state and that from `bytes`, and returns the state.
fn take_state<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take(bytes, 1)?[0];
    take(bytes, length.into())
}

/// Removes the first `length` bytes, and returns them.
fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// The replies to the requests of one call.
#[derive(Debug)]
pub(in crate::store::redis) struct Replies {
    /// The instant of all decisions, in µs.
    pub(in crate::store::redis) now: u64,
    /// The reply to each request, or why it could not be performed.
    pub(in crate::store::redis) replies: Vec<Result<Reply, Fault>>,
}

/// The instant and the reply of one request.
pub(in crate::store::redis) type TimedReply = Result<(u64, Reply), Fault>;

impl Replies {
    /// Parses the reply to a call of so many `requests`.
    pub(in crate::store::redis) fn parse(reply: Value, requests: usize) -> Result<Self, Fault> {
        let Value::BulkString(reply) = reply else { return Err(Fault::Reply("expected a string")) };
        let mut bytes = &reply[..];
        let now = take(&mut bytes, INSTANT).map(state::number);
        let now = now.filter(|now| *now <= Timestamp::MAX.as_micros()).ok_or(Fault::Reply("expected an instant"))?;
        let replies: Option<Vec<_>> = (0..requests).map(|_| Reply::parse(&mut bytes)).collect();
        match replies {
            Some(replies) if bytes.is_empty() => Ok(Self { now, replies }),
            _ => Err(Fault::Reply("another number of requests")),
        }
    }

    /// Returns the reply to each request, with the instant.
    pub(in crate::store::redis) fn timed(self) -> Vec<TimedReply> {
        self.replies.into_iter().map(|reply| reply.map(|reply| (self.now, reply))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
