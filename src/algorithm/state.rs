//! The state of a key, and the mark of a charge.

/// The state of a key in 16 bytes, whose meaning depends on the algorithm. The default is an unused key.
///
/// All algorithms but the logs keep one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CompactState {
    /// The instant, in µs, from which the state means the same as the default, so that a store can drop it without
    /// knowing the algorithm. Instants from 2^63 µs on may be encoded otherwise, as an instant that is never reached.
    pub(crate) expires_at: u64,
    /// Whatever else the algorithm needs.
    pub(crate) detail: u64,
}

impl CompactState {
    pub(crate) const UNUSED: Self = Self { expires_at: 0, detail: 0 };
}

/// Identifies a charge when it is refunded. Its meaning depends on the algorithm.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ChargeMark {
    /// An instant in µs, such as that of the charge or the end of its window.
    pub(crate) at: u64,
    pub(crate) detail: u64,
}

impl ChargeMark {
    /// The mark of a request that was not charged.
    pub(crate) const NONE: Self = Self { at: 0, detail: 0 };
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
