//! The bytes of a key's state, for stores that keep states as opaque values.
//!
//! All numbers are little-endian. Bytes of another version, or that do not have the layout of their version, are
//! rejected.
//!
//! | version 2 | bytes | content |
//! |---|---|---|
//! | version | 1 | 2 |
//! | kinds | 1 | bit 0: the state is a log; bit 1: the state of a penalty follows at the end |
//! | compact state | 8, 8, 8 | the instant at which it expires and another one, in µs, and the algorithm's detail |
//! | or log | 8, 8, 4, 4 | the instant at which it expires, the start of its oldest bucket, the total before that, the total |
//! | | 4, n · 12 | the number of older entries, and of each the start of its bucket (8) and the total up to it (4) |
//! | penalty | 8, 8, 8 | as a compact state |

use super::key_state::KeyState;
use super::log::Log;
use super::read_bytes::{take_instant, take_u64};
use super::state::CompactState;

/// All that is stored for a key under one limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredKey {
    pub(crate) state: KeyState,
    /// The strikes and lockouts of the key. That of an unused key is not stored.
    pub(crate) penalty: CompactState,
}

/// Why bytes are not the state of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DecodeError {
    /// They have a version that this crate does not know.
    Version(u8),
    /// They do not have the layout of their version.
    Malformed,
}

const VERSION: u8 = 2;
const IS_LOG: u8 = 1;
const HAS_PENALTY: u8 = 1 << 1;

impl StoredKey {
    /// Returns the instant, in µs, from which the key is unused again and its bytes can be dropped.
    pub(crate) fn expires_at(&self) -> u64 {
        self.state.as_state().expires_at().max(self.penalty.expires_at)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let has_penalty = self.penalty != CompactState::UNUSED;
        let is_log = matches!(self.state, KeyState::Log(_));
        let kinds = if is_log { IS_LOG } else { 0 } | if has_penalty { HAS_PENALTY } else { 0 };
        let mut bytes = vec![VERSION, kinds];
        match &self.state {
            KeyState::Compact(state) => bytes.extend(state.to_bytes()),
            KeyState::Log(log) => log.encode(&mut bytes),
        }
        if has_penalty {
            bytes.extend(self.penalty.to_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes {
            [VERSION, kinds, rest @ ..] => decode(*kinds, rest).ok_or(DecodeError::Malformed),
            [version, ..] if *version != VERSION => Err(DecodeError::Version(*version)),
            _ => Err(DecodeError::Malformed),
        }
    }
}

fn decode(kinds: u8, mut rest: &[u8]) -> Option<StoredKey> {
    if kinds & !(IS_LOG | HAS_PENALTY) != 0 {
        return None;
    }
    let bytes = &mut rest;
    let state = if kinds & IS_LOG == 0 {
        KeyState::Compact(decode_compact(bytes)?)
    } else {
        KeyState::Log(Log::decode(bytes)?)
    };
    let penalty = if kinds & HAS_PENALTY == 0 { CompactState::UNUSED } else { decode_compact(bytes)? };
    bytes.is_empty().then_some(StoredKey { state, penalty })
}

fn decode_compact(bytes: &mut &[u8]) -> Option<CompactState> {
    // A charge at the latest instant expires in time.
    let at_most_charged = |at: &u64| *at <= 1 << 53;
    let (expires_at, at) = (take_instant(bytes)?, take_instant(bytes).filter(at_most_charged)?);
    Some(CompactState { expires_at, at, detail: take_u64(bytes)? })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{
        Algorithm, CalendarWindow, ChargeMark, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Refill, SlidingLog,
        SlidingWindowCounter, TokenBucket,
    };

    const NOON: u64 = 1_767_225_600_000_000;

    fn stored(algorithm: impl Into<Algorithm>, charges: u64) -> StoredKey {
        let algorithm = algorithm.into();
        let mut state = KeyState::unused(&algorithm);
        for at in 0..charges {
            state.as_state_mut().charge(&algorithm, NOON + at, 1);
        }
        StoredKey { state, penalty: CompactState::UNUSED }
    }

    fn struck(mut stored: StoredKey) -> StoredKey {
        Penalty::after(3, Duration::from_secs(3_600)).strike(&mut stored.penalty, NOON);
        stored
    }

    #[test]
    fn states_survive_a_round_trip() {
        for charges in 0..5 {
            for state in [stored(TokenBucket::per_minute(10), charges), stored(SlidingLog::per_minute(10), charges)] {
                for state in [state.clone(), struck(state)] {
                    assert_eq!(StoredKey::from_bytes(&state.to_bytes()).as_ref(), Ok(&state));
                }
            }
        }
    }

    #[test]
    fn a_key_is_kept_until_its_state_and_its_penalty_have_expired() {
        let state = stored(TokenBucket::per_minute(60), 1);
        assert_eq!(state.expires_at(), NOON + 1_000_000);
        assert_eq!(struck(state).expires_at(), NOON + 3_600_000_000);
    }

    #[test]
    fn compact_states_have_a_fixed_layout() {
        let state = KeyState::Compact(CompactState { expires_at: 2, at: 3, detail: 4 });
        let stored = StoredKey { state, penalty: CompactState { expires_at: 5, at: 6, detail: 7 } };
        let numbers = [2_u64, 3, 4, 5, 6, 7].map(u64::to_le_bytes).concat();
        assert_eq!(stored.to_bytes(), [&[2, 2][..], &numbers].concat());
    }

    #[test]
    fn other_versions_are_rejected() {
        let mut bytes = stored(TokenBucket::per_minute(10), 1).to_bytes();
        for version in [0, 1, u8::MAX] {
            bytes[0] = version;
            assert_eq!(StoredKey::from_bytes(&bytes), Err(DecodeError::Version(version)));
        }
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        for state in [stored(TokenBucket::per_minute(10), 1), struck(stored(SlidingLog::per_minute(10), 4))] {
            let bytes = state.to_bytes();
            for len in 0..bytes.len() {
                assert_eq!(StoredKey::from_bytes(&bytes[..len]), Err(DecodeError::Malformed), "{len} bytes");
            }
            assert_eq!(StoredKey::from_bytes(&[&bytes[..], &[0]].concat()), Err(DecodeError::Malformed));
            let unknown_kind = [&[2, 4][..], &bytes[2..]].concat();
            assert_eq!(StoredKey::from_bytes(&unknown_kind), Err(DecodeError::Malformed));
        }
        let endless_log = [&[2, 1][..], &[0; 24], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(StoredKey::from_bytes(&endless_log), Err(DecodeError::Malformed));
    }

    #[test]
    fn arbitrary_states_never_panic() {
        let day = Duration::from_secs(86_400);
        let algorithms: [Algorithm; 7] = [
            FixedWindow::per_day(10).into(),
            CalendarWindow::daily(10).into(),
            SlidingWindowCounter::per_day(10).into(),
            TokenBucket::per_day(10).into(),
            TokenBucket::per_day(10).refill(Refill::Interval).into(),
            LeakyBucket::per_day(10).into(),
            LeakyBucketQueue::per_day(10).into(),
        ];
        let numbers = [0, 1, NOON, 1 << 52, (1 << 53) + 1, (1 << 56) - 1, 1 << 56, 1 << 63, u64::MAX];
        let states = || {
            let instants = numbers.into_iter().flat_map(|expires_at| numbers.map(|at| (expires_at, at)));
            instants.flat_map(|(expires_at, at)| numbers.map(|detail| CompactState { expires_at, at, detail }))
        };
        let penalty = Penalty::after(3, day);
        for algorithm in algorithms {
            for state in states() {
                let bytes = [&[2, 0][..], &state.to_bytes()].concat();
                let Ok(stored) = StoredKey::from_bytes(&bytes) else { continue };
                for now in [0, NOON, 1 << 52] {
                    for cost in [0, 1, 10, 11] {
                        let mut state = stored.state.clone();
                        let mut decided = state.clone();
                        algorithm.evaluate(state.as_state(), now, cost);
                        algorithm.decide(decided.as_state_mut(), now, cost);
                        for at in [0, NOON, 1 << 53] {
                            let mark = ChargeMark(CompactState { expires_at: NOON, at, detail: NOON });
                            state.as_state_mut().refund(&algorithm, mark, now, cost);
                        }
                    }
                }
            }
        }
        for state in states() {
            let bytes = [&[2, 2][..], &[0; 24], &state.to_bytes()].concat();
            let Ok(mut stored) = StoredKey::from_bytes(&bytes) else { continue };
            Penalty::locked_for(&stored.penalty, NOON);
            penalty.strike(&mut stored.penalty, NOON);
        }
    }
}
