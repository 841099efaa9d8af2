//! The one form in which keys reach a store: a keyed 128-bit hash.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher13;

/// The keyed 128-bit hash of a key. All that a store ever sees of it.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct KeyHash(u128);

impl KeyHash {
    /// The hash as a number.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The hash of the same key under one limit among several, whose hash is `limit`.
    ///
    /// Both are keyed with the same secret, so nobody who lacks it can make two of them meet.
    #[must_use]
    #[inline]
    pub(crate) const fn under(self, limit: Self) -> Self {
        Self(self.0 ^ limit.0.rotate_left(64))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({:032x})", self.0)
    }
}

/// Hashes keys with a secret: SipHash-1-3 with 128 bits of output.
///
/// A store says which one it wants. With a secret of its own a process can't be flooded with keys
/// that collide; with a shared one a fleet agrees on every key.
///
/// ```
/// use tower_ratelimit::store::KeyHasher;
///
/// let fleet = KeyHasher::with_secret([7; 16]);
/// assert_eq!(fleet.hash(b"user:42"), fleet.hash(b"user:42"));
/// assert_ne!(fleet.hash(b"user:42"), KeyHasher::random().hash(b"user:42"));
/// ```
#[derive(Clone, Copy)]
pub struct KeyHasher {
    hasher: SipHasher13,
}

impl KeyHasher {
    /// A hasher with a secret that this process drew at random.
    #[must_use]
    pub fn random() -> Self {
        // From the operating system's entropy, as `HashMap` takes it: two values of a keyed hash.
        let [low, high] = [(), ()].map(|()| RandomState::new().hash_one(0x7a5e_u16));
        Self { hasher: SipHasher13::new_with_keys(low, high) }
    }

    /// A hasher with a given secret: every process that has it agrees on every key's hash.
    #[must_use]
    pub fn with_secret(secret: [u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(&secret) }
    }

    /// The hash of a key's bytes.
    #[must_use]
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(self.hasher.hash(key).as_u128())
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher { secret }")
    }
}
