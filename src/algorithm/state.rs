//! The state of a key, and arithmetic on its numbers.

/// The state of a key in 24 bytes, whose meaning depends on the algorithm.
///
/// All algorithms but the logs keep one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

    pub(super) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes.copy_from_slice([self.expires_at, self.at, self.detail].map(u64::to_le_bytes).as_flattened());
        bytes
    }

    /// Takes the bytes of a state, or returns `None` if they are none.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (expires_at, at) = (take_instant(bytes)?, take_instant(bytes)?);
        // No charge writes a later instant: neither `Timestamp::MAX` nor a period exceeds 2^52 µs.
        (at <= 1 << 53).then_some(Self { expires_at, at, detail: take_u64(bytes)? })
    }
}

/// The result of a look at a state, for a charge.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    /// The tokens in use, rounded up.
    pub(crate) used: u64,
    /// The state after the charge, or as it is if the cost is 0 or does not fit.
    pub(crate) charged: CompactState,
}

/// The end of the instants that states hold: arithmetic with periods cannot overflow before it.
const END_OF_INSTANTS: u64 = 1 << 56;

/// Takes an instant in µs, at which or until which a state counts, off the start of bytes.
pub(super) fn take_instant(bytes: &mut &[u8]) -> Option<u64> {
    take_u64(bytes).filter(|instant| *instant < END_OF_INSTANTS)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?))
}

/// Takes a little-endian number off the start of bytes.
pub(super) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?))
}

/// Returns ⌊a / b⌋, or `u64::MAX` if that exceeds 64 bits.
#[inline]
pub(super) fn div(a: u128, b: u64) -> u64 {
    // Nearly all dividends fit into 64 bits, whose division is one instruction.
    u64::try_from(a).map_or_else(|_| div_wide(a, b), |a| a / b)
}

#[cold]
fn div_wide(a: u128, b: u64) -> u64 {
    u64::try_from(a / u128::from(b)).unwrap_or(u64::MAX)
}

/// Returns ⌈a / b⌉, or `u64::MAX` if that exceeds 64 bits.
#[inline]
pub(crate) fn div_ceil(a: u128, b: u64) -> u64 {
    div(a + u128::from(b - 1), b)
}

/// Returns a · b, exactly.
#[inline]
pub(crate) fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}
