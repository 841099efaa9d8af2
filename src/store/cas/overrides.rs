//! The bytes of an override.
//!
//! | version 1 | bytes | content |
//! |---|---|---|
//! | version | 1 | 1 |
//! | size | 4, 4 | the tokens of the limit: those of a window, or the capacity and the amount of a bucket |
//! | expiry | 8 | the instant, in µs, at which it expires, or 0 if it never does |
//!
//! All numbers are little-endian.

use crate::algorithm::DecodeError;
use crate::store::override_store::StoredOverride;

const VERSION: u8 = 1;

pub(super) fn to_bytes(stored: StoredOverride) -> Vec<u8> {
    let size = stored.size.map(u32::to_le_bytes);
    [&[VERSION], size.as_flattened(), &stored.expires_at.unwrap_or(0).to_le_bytes()].concat()
}

pub(super) fn from_bytes(bytes: &[u8]) -> Result<StoredOverride, DecodeError> {
    match bytes {
        [VERSION, rest @ ..] => {
            let packed = rest.try_into().map(u128::from_le_bytes).map_err(|_| DecodeError::Malformed)?;
            let expires_at = Some((packed >> 64) as u64).filter(|instant| *instant > 0);
            Ok(StoredOverride { size: [packed as u32, (packed >> 32) as u32], expires_at })
        }
        [version, ..] => Err(DecodeError::Version(*version)),
        [] => Err(DecodeError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_survive_a_round_trip() {
        for expires_at in [None, Some(1), Some(u64::MAX)] {
            let stored = StoredOverride { size: [1, u32::MAX], expires_at };
            assert_eq!(from_bytes(&to_bytes(stored)), Ok(stored));
        }
    }

    #[test]
    fn other_versions_and_lengths_are_rejected() {
        let mut bytes = to_bytes(StoredOverride { size: [1, 2], expires_at: Some(3) });
        assert_eq!(from_bytes(&bytes[..16]), Err(DecodeError::Malformed));
        bytes[0] = 2;
        assert_eq!(from_bytes(&bytes), Err(DecodeError::Version(2)));
        assert_eq!(from_bytes(&[]), Err(DecodeError::Malformed));
    }
}
