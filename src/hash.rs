//! The one form in which keys reach a store: a keyed 128-bit hash.

use std::fmt;
use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;
use siphasher::sip128::SipHasher13;

/// The keyed 128-bit hash of a key. All that a store ever sees of it.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
// In words, as it is passed about in registers then. (A word that is read with another that was written a moment
// ago stalls the processor.)
pub struct KeyHash {
    high: u64,
    low: u64,
}

impl KeyHash {
    #[inline]
    const fn new(hash: u128) -> Self {
        Self { high: (hash >> 64) as u64, low: hash as u64 }
    }

    /// The hash as a number.
    #[must_use]
    #[inline]
    pub const fn as_u128(self) -> u128 {
        (self.high as u128) << 64 | self.low as u128
    }

    /// The hash of the same key under one limit among several, whose hash is `limit`.
    ///
    /// Both are keyed with the same secret, so nobody who lacks it can make two of them meet.
    #[must_use]
    #[inline]
    pub(crate) const fn under(self, limit: Self) -> Self {
        Self { high: self.high ^ limit.low, low: self.low ^ limit.high }
    }
}

impl KeyHash {
    /// Of the hash of several parts, framed: one that no single part has, even if it holds that frame.
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

/// Hashes keys with a secret. A store says which one it wants.
///
/// - [`fast`](Self::fast), for one process, which a [`MemoryStore`](crate::MemoryStore) uses: two
///   halves of aHash, each with a random secret of its own of 256 bits. It is made to withstand floods of
///   keys that collide, though nobody has proved that it does, and of its hashes nothing leaves the
///   process: who could make two keys meet would have to learn it from answers.
/// - [`random`](Self::random), for one process whose clients are thought to be capable of that, and
///   [`with_secret`](Self::with_secret), for a fleet: SipHash-1-3 with 128 bits of output, a
///   pseudorandom function by all that is known. It takes some 10 ns more for a short key.
///
/// ```
/// use tower_ratelimit::store::KeyHasher;
///
/// let fleet = KeyHasher::with_secret([7; 16]);
/// assert_eq!(fleet.hash(b"user:42"), fleet.hash(b"user:42"));
/// assert_ne!(fleet.hash(b"user:42"), KeyHasher::random().hash(b"user:42"));
/// ```
#[derive(Clone, Copy)]
pub struct KeyHasher(Kind);

#[derive(Clone, Copy)]
enum Kind {
    Fast { high: Secret, low: Secret },
    Sip(SipHasher13),
}

type Secret = [u64; 4];

impl KeyHasher {
    /// A fast hasher with a secret that this process drew at random.
    #[must_use]
    pub fn fast() -> Self {
        Self(Kind::Fast { high: draw(), low: draw() })
    }

    /// A hasher with a secret that this process drew at random.
    #[must_use]
    pub fn random() -> Self {
        let [low, high] = draw();
        Self(Kind::Sip(SipHasher13::new_with_keys(low, high)))
    }

    /// A hasher with a given secret: every process that has it agrees on every key's hash, on any
    /// machine and in any version.
    #[must_use]
    pub fn with_secret(secret: [u8; 16]) -> Self {
        Self(Kind::Sip(SipHasher13::new_with_key(&secret)))
    }

    /// The hash of a key's bytes.
    #[must_use]
    // Where a key's length is known beforehand, little is left of it.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        match &self.0 {
            Kind::Fast { high, low } => KeyHash { high: half(high, key), low: half(low, key) },
            Kind::Sip(hasher) => sip(hasher, key),
        }
    }
}

// Not inlined, as it is long, and would be in the way of the fast one.
#[inline(never)]
fn sip(hasher: &SipHasher13, key: &[u8]) -> KeyHash {
    KeyHash::new(hasher.hash(key).as_u128())
}

#[inline(always)]
fn half(&[one, two, three, four]: &Secret, key: &[u8]) -> u64 {
    let mut hasher = RandomState::with_seeds(one, two, three, four).build_hasher();
    hasher.write(key);
    hasher.finish()
}

/// From the operating system's entropy, as `HashMap` takes it: values of a keyed hash.
fn draw<const N: usize>() -> [u64; N] {
    [(); N].map(|()| std::hash::RandomState::new().hash_one(0x7a5e_u16))
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher { secret }")
    }
}
