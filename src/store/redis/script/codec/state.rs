//! The 18 bytes that a script stores of a key.

use smallvec::SmallVec;

/// An instant and two counts: the state of a key, or one entry of a log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::store::redis) struct StoredState {
    pub(in crate::store::redis) micros: u128,
    pub(in crate::store::redis) counts: [u32; 2],
}

/// Scripts keep an instant or a span in two numbers: multiples of 10^9 µs, and the rest in µs. Both are exact in a
/// double.
const LIMB: u128 = 1_000_000_000;

impl StoredState {
    /// The length in bytes: 6 and 4 for the instant, 4 for each count.
    pub(in crate::store::redis) const SIZE: usize = 18;

    pub(in crate::store::redis) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..6].copy_from_slice(&((self.micros / LIMB) as u64).to_le_bytes()[..6]);
        bytes[6..10].copy_from_slice(&((self.micros % LIMB) as u32).to_le_bytes());
        bytes[10..14].copy_from_slice(&self.counts[0].to_le_bytes());
        bytes[14..].copy_from_slice(&self.counts[1].to_le_bytes());
        bytes
    }

    /// Parses a sequence of states, or returns `None` if `bytes` are anything else.
    pub(in crate::store::redis) fn parse_all(bytes: &[u8]) -> Option<SmallVec<[Self; 4]>> {
        let (chunks, []) = bytes.as_chunks::<{ Self::SIZE }>() else { return None };
        let mut states = SmallVec::new();
        for chunk in chunks {
            states.push(Self::from_bytes(chunk)?);
        }
        Some(states)
    }

    fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let number = |from: usize, to: usize| {
            let mut number = [0; 8];
            number[..to - from].copy_from_slice(&bytes[from..to]);
            u64::from_le_bytes(number)
        };
        let [high, low] = [u128::from(number(0, 6)), u128::from(number(6, 10))];
        let counts = [number(10, 14) as u32, number(14, 18) as u32];
        (low < LIMB).then_some(Self { micros: high * LIMB + low, counts })
    }

    /// Returns the instant in µs, or `None` if it is later than any that a window or a log can store.
    pub(in crate::store::redis) fn instant(&self) -> Option<u64> {
        u64::try_from(self.micros).ok().filter(|micros| *micros < 1 << 63)
    }
}

/// Returns a span in the two numbers that scripts use: multiples of 10^9 µs, and the rest in µs.
pub(in crate::store::redis) fn split_micros(micros: u128) -> [f64; 2] {
    [(micros / LIMB) as f64, (micros % LIMB) as f64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_a_round_trip() {
        for micros in [0, 1, LIMB - 1, LIMB, 1 << 62, (1 << 77) + 1] {
            let state = StoredState { micros, counts: [u32::MAX, 7] };
            assert_eq!(StoredState::parse_all(&state.to_bytes()).unwrap().as_slice(), [state]);
        }
    }

    #[test]
    fn malformed_states_are_errors() {
        assert!(StoredState::parse_all(b"").unwrap().is_empty());
        assert_eq!(StoredState::parse_all(b"17"), None);
        assert_eq!(StoredState::parse_all(&[0xff; StoredState::SIZE]), None);
        assert_eq!(StoredState { micros: 1 << 63, counts: [0, 0] }.instant(), None);
    }
}
