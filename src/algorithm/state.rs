//! The state of a key, and the mark of a charge.

/// The state of a key in 16 bytes, whose meaning depends on the algorithm. The default is an unused key.
///
/// All algorithms but the logs keep one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CompactState {
    /// The instant, in µs, from which the state means the same as the default, so that a store can drop it without
    /// knowing the algorithm. Instants from 2^63 µs on may be encoded otherwise, as an instant that is never reached.
    pub(crate) expires_at: u64,
    /// Other data of the algorithm.
    pub(crate) detail: u64,
}

impl CompactState {
    pub(crate) const UNUSED: Self = Self { expires_at: 0, detail: 0 };
}

/// Identifies a charge when it is refunded. Its meaning depends on the store and the algorithm.
///
/// A store of its own kind may put 16 bytes of its choice into it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ChargeMark {
    /// An instant in µs, such as that of the charge or the end of its window.
    pub(crate) at: u64,
    pub(crate) detail: u64,
}

impl ChargeMark {
    /// The mark of a request that was not charged.
    pub(crate) const NONE: Self = Self { at: 0, detail: 0 };

    /// Creates a mark from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let mark = u128::from_le_bytes(bytes);
        Self { at: mark as u64, detail: (mark >> 64) as u64 }
    }

    /// Returns the bytes of the mark.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        ((self.detail as u128) << 64 | self.at as u128).to_le_bytes()
    }
}

impl From<CompactState> for ChargeMark {
    fn from(state: CompactState) -> Self {
        Self { at: state.expires_at, detail: state.detail }
    }
}

impl From<ChargeMark> for CompactState {
    fn from(mark: ChargeMark) -> Self {
        Self { expires_at: mark.at, detail: mark.detail }
    }
}
