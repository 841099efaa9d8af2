//! The bytes of an override.
//!
//! | version 1 | bytes | content |
//! |---|---|---|
//! | version | 1 | 1 |
//! | size | 4, 4 | the tokens of the limit: those of a window, or the capacity and the amount of a bucket |
//! | expiry | 8 | the instant, in µs, at which it expires, or 0 if it never does |
//!
//! All numbers are little-endian.

use crate::algorithm::{DecodeError, Size};

const VERSION: u8 = 1;

/// An override of a limit's size for one key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StoredOverride {
    pub(super) size: Size,
    /// In µs, or 0 if it does not expire.
    pub(super) expires_at: u64,
}

impl StoredOverride {
    /// Returns whether it has not expired at `now` (in µs).
    pub(super) fn is_valid_at(&self, now: u64) -> bool {
        self.expires_at == 0 || now < self.expires_at
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let size = self.size.iter().flat_map(|tokens| tokens.to_le_bytes());
        [VERSION].into_iter().chain(size).chain(self.expires_at.to_le_bytes()).collect()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes {
            [VERSION, rest @ ..] => {
                let packed = rest.try_into().map(u128::from_le_bytes).map_err(|_| DecodeError::Malformed)?;
                Ok(Self { size: [packed as u32, (packed >> 32) as u32], expires_at: (packed >> 64) as u64 })
            }
            [version, ..] => Err(DecodeError::Version(*version)),
            [] => Err(DecodeError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_survive_a_round_trip() {
        let stored = StoredOverride { size: [1, u32::MAX], expires_at: u64::MAX - 1 };
        assert_eq!(StoredOverride::from_bytes(&stored.to_bytes()), Ok(stored));
    }

    #[test]
    fn other_versions_and_lengths_are_rejected() {
        let mut bytes = StoredOverride { size: [1, 2], expires_at: 3 }.to_bytes();
        assert_eq!(StoredOverride::from_bytes(&bytes[..16]), Err(DecodeError::Malformed));
        bytes[0] = 2;
        assert_eq!(StoredOverride::from_bytes(&bytes), Err(DecodeError::Version(2)));
        assert_eq!(StoredOverride::from_bytes(&[]), Err(DecodeError::Malformed));
    }
}
