//! The theoretical arrival time of GCRA, and how a state of 16 bytes holds it.

use super::last_charge::LastChargeTick;
use super::state::CompactState;

/// A theoretical arrival time, exactly: an instant in µs, and the fraction of a µs by which it was rounded up.
///
/// # Encoding
///
/// | instant | `expires_at` | `detail` |
/// |---|---|---|
/// | under 2^63 µs | the instant | amount (32 bits), tick of the last charge and rounding (32 bits) |
/// | from 2^63 µs on | 1, and the upper 63 bits of the instant | the lower 32 bits of the instant, rounding (32 bits) |
///
/// The rounding takes as many bits as the amount, and the [tick](LastChargeTick) those above it. An instant from 2^63 µs
/// on, which only buckets that take over 292,000 years to fill can reach, leaves no room for an amount and a tick: it is
/// read as one of the limit's own amount. Read as an instant, its `expires_at` is one that is never reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Tat {
    /// The instant, rounded up to µs: less than 2^78.
    pub(crate) micros: u128,
    /// By how many 1/`amount` of a µs it was rounded up.
    pub(crate) rounding: u32,
    /// The tokens per interval of the limit that has written the state.
    pub(crate) amount: u32,
    pub(crate) last_charge: LastChargeTick,
}

/// Marks the encoding of an instant from 2^63 µs on.
const FAR: u64 = 1 << 63;

impl Tat {
    /// Decodes a state, for a limit of `amount` tokens per interval.
    #[inline]
    pub(crate) fn decode(state: &CompactState, amount: u32) -> Self {
        if state.expires_at & FAR == 0 {
            let amount = (state.detail >> 32) as u32;
            return Self::near(state.expires_at.into(), state.detail as u32, amount);
        }
        Self::decode_far(state, amount)
    }

    #[cold]
    fn decode_far(state: &CompactState, amount: u32) -> Self {
        let packed = u128::from(state.expires_at ^ FAR) << 64 | u128::from(state.detail);
        Self { micros: packed >> 32, rounding: packed as u32, amount, last_charge: LastChargeTick::unknown(amount) }
    }

    /// Creates an instant under 2^63 µs, with the tick and the rounding as they are encoded.
    #[inline]
    pub(crate) fn near(micros: u128, detail: u32, amount: u32) -> Self {
        let last_charge = LastChargeTick::from_bits(amount, detail);
        Self { micros, rounding: detail ^ last_charge.bits(), amount, last_charge }
    }

    #[inline]
    pub(crate) fn encode(self) -> CompactState {
        if !self.is_far() {
            let [amount, detail] = [self.amount, self.last_charge.bits() | self.rounding].map(u64::from);
            return CompactState { expires_at: self.micros as u64, detail: amount << 32 | detail };
        }
        self.encode_far()
    }

    #[cold]
    fn encode_far(self) -> CompactState {
        let packed = self.micros << 32 | u128::from(self.rounding);
        CompactState { expires_at: (packed >> 64) as u64 | FAR, detail: packed as u64 }
    }

    /// Returns whether the encoding leaves no room for the amount and the tick.
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        self.micros >= u128::from(FAR)
    }

    /// Returns the time from `now` to this instant, in 1/`amount` of a µs, which is 1/`interval` of a token. 0 if it
    /// has passed.
    #[inline]
    pub(super) fn backlog(&self, now: u64) -> u128 {
        let left = self.micros.saturating_sub(now.into());
        (left * u128::from(self.amount)).saturating_sub(self.rounding.into())
    }

    /// Returns whether both are the same instant at the same rate, whenever the last charges were.
    pub(super) fn is_same_instant(&self, other: &Self) -> bool {
        (self.micros, self.rounding, self.amount) == (other.micros, other.rounding, other.amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far_instants_survive_a_round_trip() {
        let longest = (1u128 << 62) + (1 << 33) * 31_622_400_000_000;
        for micros in [1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u128::from(u64::MAX), 1 << 64, longest] {
            for amount in [1, 100, u32::MAX] {
                for rounding in [0, amount - 1] {
                    let last_charge = LastChargeTick::unknown(amount);
                    let tat = Tat { micros, rounding, amount, last_charge };
                    assert_eq!(Tat::decode(&tat.encode(), amount), tat);
                    assert!(u128::from(tat.encode().expires_at) >= micros.min(1 << 63));
                }
            }
        }
    }
}
