//! The state of a key under any algorithm, and its bytes, for stores that keep states as opaque values.
//!
//! | version 3 | bytes | content |
//! |---|---|---|
//! | version | 1 | 3 |
//! | compact state | 8, 8, 8 | the instant of its expiry and another one, in µs, and the algorithm's detail |
//! | or log | 8, 8 | the instant of its expiry, and the start of its oldest bucket |
//! | | 4, 4, 4 | the total before that bucket, the total, and the number n of older entries |
//! | | n · (8, 4) | of each older entry, the start of its bucket and the total up to it |
//!
//! All numbers are little-endian. The algorithm determines which of the two forms a state has. Bytes of another
//! version, or that do not have the layout of their form, are rejected.

use super::log::Log;
use super::settings::Algorithm;
use super::state::{CompactState, State};

/// The state of a key under any algorithm.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyState {
    Compact(CompactState),
    Log(Log),
}

impl KeyState {
    /// Returns the state of an unused key.
    pub(crate) fn unused(algorithm: &Algorithm) -> Self {
        if algorithm.keeps_log() { Self::Log(Log::default()) } else { Self::Compact(CompactState::UNUSED) }
    }

    pub(crate) fn as_state(&self) -> &dyn State {
        match self {
            Self::Compact(state) => state,
            Self::Log(log) => log,
        }
    }

    pub(crate) fn as_state_mut(&mut self) -> &mut dyn State {
        match self {
            Self::Compact(state) => state,
            Self::Log(log) => log,
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            Self::Compact(state) => bytes.extend(state.to_bytes()),
            Self::Log(log) => log.encode(&mut bytes),
        }
        bytes
    }

    /// Decodes the state of a key under an algorithm.
    pub(crate) fn from_bytes(bytes: &[u8], algorithm: &Algorithm) -> Result<Self, DecodeError> {
        match bytes {
            [VERSION, rest @ ..] => Self::decode(rest, algorithm.keeps_log()).ok_or(DecodeError::Malformed),
            [version, ..] => Err(DecodeError::Version(*version)),
            [] => Err(DecodeError::Malformed),
        }
    }
    fn decode(mut bytes: &[u8], is_log: bool) -> Option<Self> {
        let bytes = &mut bytes;
        let state = if is_log { Self::Log(Log::decode(bytes)?) } else { Self::Compact(CompactState::decode(bytes)?) };
        bytes.is_empty().then_some(state)
    }
}

/// Why bytes are not the state of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DecodeError {
    /// They have a version that this crate does not know.
    Version(u8),
    /// They do not have the layout of their version.
    Malformed,
}

const VERSION: u8 = 3;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{
        CalendarWindow, ChargeMark, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Refill, SlidingLog,
        SlidingWindowCounter, TokenBucket,
    };

    const NOON: u64 = 1_767_225_600_000_000;

    fn charged(algorithm: &Algorithm, charges: u64) -> KeyState {
        let mut state = KeyState::unused(algorithm);
        for at in 0..charges {
            state.as_state_mut().charge(algorithm, NOON + at, 1);
        }
        state
    }

    fn algorithms() -> [Algorithm; 3] {
        let penalty = Penalty::after(3, Duration::from_secs(3_600)).algorithm();
        [TokenBucket::per_minute(10).into(), SlidingLog::per_minute(10).into(), penalty]
    }

    #[test]
    fn states_survive_a_round_trip() {
        for algorithm in algorithms() {
            for charges in 0..5 {
                let state = charged(&algorithm, charges);
                assert_eq!(KeyState::from_bytes(&state.to_bytes(), &algorithm), Ok(state));
            }
        }
    }

    #[test]
    fn compact_states_have_a_fixed_layout() {
        let state = KeyState::Compact(CompactState { expires_at: 2, at: 3, detail: 4 });
        assert_eq!(state.to_bytes(), [&[3][..], [2_u64, 3, 4].map(u64::to_le_bytes).as_flattened()].concat());
    }

    #[test]
    fn other_versions_are_rejected() {
        let algorithm = TokenBucket::per_minute(10).into();
        let mut bytes = charged(&algorithm, 1).to_bytes();
        for version in [0, 1, 2, u8::MAX] {
            bytes[0] = version;
            assert_eq!(KeyState::from_bytes(&bytes, &algorithm), Err(DecodeError::Version(version)));
        }
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        let [bucket, log, penalty] = algorithms();
        for (algorithm, of_another_form) in [(bucket, log), (log, bucket), (penalty, log)] {
            let bytes = charged(&algorithm, 4).to_bytes();
            let decode = |bytes: &[u8]| KeyState::from_bytes(bytes, &algorithm);
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), Err(DecodeError::Malformed), "{len} bytes");
            }
            assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(DecodeError::Malformed));
            assert_eq!(KeyState::from_bytes(&bytes, &of_another_form), Err(DecodeError::Malformed));
        }
        let endless_log = [&[3][..], &[0; 24], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(KeyState::from_bytes(&endless_log, &log), Err(DecodeError::Malformed));
    }

    #[test]
    fn arbitrary_states_never_panic() {
        let day = Duration::from_secs(86_400);
        let algorithms: [Algorithm; 8] = [
            FixedWindow::per_day(10).into(),
            CalendarWindow::daily(10).into(),
            SlidingWindowCounter::per_day(10).into(),
            TokenBucket::per_day(10).into(),
            TokenBucket::per_day(10).refill(Refill::Interval).into(),
            LeakyBucket::per_day(10).into(),
            LeakyBucketQueue::per_day(10).into(),
            Penalty::after(3, day).algorithm(),
        ];
        let numbers = [0, 1, NOON, 1 << 52, (1 << 53) + 1, (1 << 56) - 1, 1 << 56, 1 << 63, u64::MAX];
        let states = || {
            let instants = numbers.into_iter().flat_map(|expires_at| numbers.map(|at| (expires_at, at)));
            instants.flat_map(|(expires_at, at)| numbers.map(|detail| CompactState { expires_at, at, detail }))
        };
        for algorithm in algorithms {
            for state in states() {
                let bytes = KeyState::Compact(state).to_bytes();
                let Ok(stored) = KeyState::from_bytes(&bytes, &algorithm) else { continue };
                for now in [0, NOON, 1 << 52] {
                    for cost in [0, 1, 10, 11] {
                        let mut state = stored.clone();
                        let used = state.as_state().used(&algorithm, now);
                        algorithm.more_after(state.as_state(), now, used);
                        algorithm.reset_after(state.as_state(), now);
                        algorithm.delay(state.as_state(), now, cost);
                        if algorithm.wait(state.as_state(), now, cost) == 0 && cost > 0 {
                            state.clone().as_state_mut().charge(&algorithm, now, cost);
                        }
                        for at in [0, NOON, 1 << 53] {
                            let mark = ChargeMark(CompactState { expires_at: NOON, at, detail: NOON });
                            state.as_state_mut().refund(&algorithm, mark, now, cost);
                        }
                    }
                }
            }
        }
    }
}
