//! The state of a key, and the mark of a charge.

/// The state of a key in 24 bytes, whose meaning depends on the algorithm. The default is an unused key.
///
/// All algorithms but the logs keep one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CompactState {
    /// The instant, in µs, from which the state means the same as the default, so that a store can drop it without
    /// knowing the algorithm.
    pub(crate) expires_at: u64,
    /// Another instant, in µs.
    pub(crate) at: u64,
    /// Other data of the algorithm.
    pub(crate) detail: u64,
}

impl CompactState {
    pub(crate) const UNUSED: Self = Self { expires_at: 0, at: 0, detail: 0 };

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
    /// The mark of a request that was not charged.
    pub(crate) const NONE: Self = Self(CompactState::UNUSED);

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
