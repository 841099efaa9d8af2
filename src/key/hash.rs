//! Keyed 128-bit hashes of keys, the only form in which keys reach a store.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;
use siphasher::sip128::SipHasher13;

/// The keyed 128-bit hash of a key. Stores see only this hash, never the key.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
// Two `u64`s rather than a `u128`, so that it is passed in registers. Reading both halves at once shortly after they
// were written one by one would stall the processor.
pub struct KeyHash {
    high: u64,
    low: u64,
}

impl KeyHash {
    pub(crate) const ZERO: Self = Self { high: 0, low: 0 };

    #[inline]
    const fn new(hash: u128) -> Self {
        Self { high: (hash >> 64) as u64, low: hash as u64 }
    }

    /// Returns the hash as a number.
    #[must_use]
    #[inline]
    pub const fn as_u128(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    /// Combines the hash of a key with the hash of a limit's identity, so that each limit has its own entry for the
    /// key.
    ///
    /// Both are keyed with the same secret, so that no one without the secret can construct a collision. The halves of
    /// the limit's hash are swapped, so that a key that equals the identity of a limit does not cancel it out.
    #[must_use]
    #[inline]
    pub(crate) const fn under(self, limit: Self) -> Self {
        Self { high: self.high ^ limit.low, low: self.low ^ limit.high }
    }

    /// Returns the hash with all bits inverted.
    pub(crate) const fn complement(self) -> Self {
        Self { high: !self.high, low: !self.low }
    }

    /// Converts the hash of an encoding of several parts. The rotation makes it differ from the hash of a single part
    /// with the same bytes.
    #[inline]
    pub(crate) const fn of_parts(self) -> Self {
        Self::new(self.as_u128().rotate_left(32))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({:032x})", self.as_u128())
    }
}

/// Hashes keys with a secret. Each store [chooses](crate::Store::hasher) its hasher.
///
/// - [`fast`](Self::fast) is for a single process, and is used by [`MemoryStore`](crate::MemoryStore). Each half of the
///   hash is an aHash with a random secret. aHash is designed to resist collision attacks, but has no proof of
///   that. The hashes never leave the process, so an attacker could find collisions only by observing decisions.
/// - [`random`](Self::random) is for a single process that has to resist even such attackers.
///   [`with_secret`](Self::with_secret) is for a fleet. Both use SipHash-1-3 with 128 bits of output, which is believed
///   to be a pseudorandom function. It takes about 10 ns longer for a short key.
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
    kind: HashKind,
    /// Whether charges with these keys need their readable names.
    pub(crate) has_readable_keys: bool,
}

#[derive(Clone, Copy)]
enum HashKind {
    Fast { high: AHashSecret, low: AHashSecret },
    Sip(SipHasher13),
}

type AHashSecret = [u64; 4];

impl KeyHasher {
    /// Creates a fast hasher with a random secret.
    #[must_use]
    pub fn fast() -> Self {
        Self::of_kind(HashKind::Fast { high: random_words(), low: random_words() })
    }

    /// Creates a SipHash hasher with a random secret.
    #[must_use]
    pub fn random() -> Self {
        let [low, high] = random_words();
        Self::of_kind(HashKind::Sip(SipHasher13::new_with_keys(low, high)))
    }

    /// Creates a SipHash hasher with the given secret. All processes with this secret compute the same hashes, on every
    /// platform and in every version of this crate.
    #[must_use]
    pub fn with_secret(secret: [u8; 16]) -> Self {
        Self::of_kind(HashKind::Sip(SipHasher13::new_with_key(&secret)))
    }

    const fn of_kind(kind: HashKind) -> Self {
        Self { kind, has_readable_keys: false }
    }

    /// Returns the hasher of a store with readable keys.
    #[cfg(feature = "redis")]
    pub(crate) fn with_readable_keys(self) -> Self {
        Self { has_readable_keys: true, ..self }
    }

    /// Hashes the bytes of a key.
    #[must_use]
    // Inlined, because a key whose length is known at compile time needs only a few of the instructions.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        match &self.kind {
            HashKind::Fast { high, low } => KeyHash { high: ahash(high, key), low: ahash(low, key) },
            HashKind::Sip(hasher) => sip(hasher, key),
        }
    }
}

// Not inlined, so that the code of the fast hasher stays small.
#[inline(never)]
fn sip(hasher: &SipHasher13, key: &[u8]) -> KeyHash {
    KeyHash::new(hasher.hash(key).as_u128())
}

#[inline(always)]
fn ahash(&[one, two, three, four]: &AHashSecret, key: &[u8]) -> u64 {
    let mut hasher = RandomState::with_seeds(one, two, three, four).build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// Returns random words: SipHash values under the keys of `RandomState`, which derive from 128 bits of the operating
/// system's entropy per thread.
fn random_words<const N: usize>() -> [u64; N] {
    [(); N].map(|()| std::hash::RandomState::new().hash_one(0x7a5e_u16))
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher { secret }")
    }
}
