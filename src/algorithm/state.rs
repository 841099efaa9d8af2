//! The state of a key, and the mark of a charge.

use super::settings::Algorithm;

/// The operations of an algorithm on the state of a key, from which all decisions follow.
///
/// Instants and spans are µs, and all arithmetic is exact. No method panics on a state that `charge` and `refund` have
/// produced, at any instant up to [`Timestamp::MAX`](crate::Timestamp::MAX). Clocks may step back: time then stands still
/// for a key until the clock has caught up.
pub(crate) trait State {
    /// Returns the instant from which the state means the same as that of an unused key, so that a store can drop it
    /// without knowing the algorithm. 0 for an unused key.
    fn expires_at(&self) -> u64;

    /// Returns the tokens in use, rounded up.
    fn used(&self, algorithm: &Algorithm, now: u64) -> u64;

    /// Returns the time until at most `most` tokens are in use, or 0 if no more are.
    fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64;

    /// Charges `cost`, which is at least 1 and fits. Returns the tokens in use.
    fn charge(&mut self, algorithm: &Algorithm, now: u64, cost: u64) -> u64;

    /// Returns the state in the form of a compact one: the mark of a charge that was just made, and all that is reported
    /// of the key at this instant.
    fn summary(&self, algorithm: &Algorithm, now: u64) -> CompactState;

    /// Refunds a charge of `cost`, as far as it still counts.
    fn refund(&mut self, algorithm: &Algorithm, mark: ChargeMark, now: u64, cost: u64);
}

/// The state of a key in 24 bytes, whose meaning depends on the algorithm. The default is an unused key.
///
/// All algorithms but the logs keep one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CompactState {
    /// The instant at which the state expires, in µs. 0 for an unused key.
    pub(crate) expires_at: u64,
    /// Another instant, in µs.
    pub(crate) at: u64,
    /// Other data of the algorithm.
    pub(crate) detail: u64,
}

impl CompactState {
    pub(crate) const UNUSED: Self = Self { expires_at: 0, at: 0, detail: 0 };

    /// Returns the halves of the detail, the upper one first.
    pub(super) const fn halves(&self) -> [u64; 2] {
        [self.detail >> 32, self.detail & u32::MAX as u64]
    }

    pub(crate) const fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let (instants, detail) = bytes.split_at_mut(16);
        instants.copy_from_slice(&((self.at as u128) << 64 | self.expires_at as u128).to_le_bytes());
        detail.copy_from_slice(&self.detail.to_le_bytes());
        bytes
    }
}

/// Identifies a charge when it is refunded. Its meaning depends on the store and the algorithm.
///
/// A store of its own kind may put 24 bytes of its choice into it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ChargeMark(pub(crate) CompactState);

impl ChargeMark {
    /// Creates a mark from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 24]) -> Self {
        let ([expires_at, at, detail], []) = bytes.as_chunks::<8>() else { unreachable!() };
        Self(CompactState {
            expires_at: u64::from_le_bytes(*expires_at),
            at: u64::from_le_bytes(*at),
            detail: u64::from_le_bytes(*detail),
        })
    }

    /// Returns the bytes of the mark.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 24] {
        self.0.to_bytes()
    }
}
