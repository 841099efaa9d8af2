//! The bytes that a script stores of a key.

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, CompactState, KeyState, Log};

/// The length of a state: 7 bytes for each instant, 4 for each half of the detail. The instant until which Redis keeps the
/// key follows if it is later than its expiry.
pub(in crate::store::redis) const STATE: usize = 22;
const KEPT: usize = STATE + INSTANT;
/// The length of an entry of a log: its instant, and two counts.
const ENTRY: usize = INSTANT + 8;
/// The length of an instant.
pub(in crate::store::redis) const INSTANT: usize = 7;

pub(super) fn encode(state: &CompactState) -> [u8; STATE] {
    let mut bytes = [0; STATE];
    bytes[..INSTANT].copy_from_slice(&state.expires_at.to_le_bytes()[..INSTANT]);
    bytes[INSTANT..2 * INSTANT].copy_from_slice(&state.at.to_le_bytes()[..INSTANT]);
    bytes[2 * INSTANT..].copy_from_slice(&state.detail.to_le_bytes());
    bytes
}

/// Decodes the state of a key under a rule. Returns `None` if no script can have stored it.
pub(in crate::store::redis) fn decode_key(rule: &Algorithm, bytes: &[u8]) -> Option<KeyState> {
    Some(match rule.keeps_log() {
        true => KeyState::Log(decode_log(rule, bytes)?),
        false => KeyState::Compact(decode(bytes)?),
    })
}

/// Decodes a compact state, which is empty for an unused one. Returns `None` if no script can have stored it.
pub(in crate::store::redis) fn decode(bytes: &[u8]) -> Option<CompactState> {
    match bytes.len() {
        0 => Some(CompactState::UNUSED),
        STATE | KEPT => Some(CompactState {
            expires_at: number(&bytes[..INSTANT]),
            at: number(&bytes[INSTANT..2 * INSTANT]),
            detail: number(&bytes[2 * INSTANT..STATE]),
        }),
        _ => None,
    }
}

/// Decodes the entries of a log, oldest first: an instant of the bucket, the total up to and including it, and the tokens
/// charged in it. Returns `None` if no script can have stored them.
///
/// The first entry is the oldest one that counts, and the last one the newest. A script may leave out entries between
/// them that its answer does not depend on: the log then decides as if their tokens had been charged in the bucket of
/// the next entry.
fn decode_log(rule: &Algorithm, bytes: &[u8]) -> Option<Log> {
    let (entries, []) = bytes.as_chunks::<ENTRY>() else { return None };
    let entry = |entry: &[u8; ENTRY]| {
        let (instant, counts) = entry.split_at(INSTANT);
        (number(instant), number(&counts[..4]) as u32, number(&counts[4..]) as u32)
    };
    Log::of_entries(rule, entries.iter().map(entry).collect::<SmallVec<[_; 4]>>())
}

/// Returns a little-endian number of up to 8 bytes.
pub(in crate::store::redis) fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::SlidingLog;

    #[test]
    fn states_survive_a_round_trip() {
        for instant in [0, 1, 1 << 52, (1 << 56) - 1] {
            let state = CompactState { expires_at: instant, at: instant / 2, detail: u64::MAX - 7 };
            assert_eq!(decode(&encode(&state)), Some(state));
            assert_eq!(decode(&[&encode(&state)[..], &[7; INSTANT]].concat()), Some(state));
        }
        assert_eq!(decode(b""), Some(CompactState::UNUSED));
    }

    #[test]
    fn malformed_states_are_errors() {
        let log = SlidingLog::per_second(1).into();
        assert_eq!(decode(b"17"), None);
        assert_eq!(decode_log(&log, b"17"), None);
    }
}
