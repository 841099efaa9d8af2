//! Keys: values that name a bucket, and the bytes that they are hashed from.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smallvec::SmallVec;

use super::hash::{KeyHash, KeyHasher};

/// A value that names a bucket: text, bytes, an integer, an IP address, or a tuple of up to four keys.
///
/// Values that write the same bytes name the same bucket, even if their types differ: a `HeaderValue` and a `&str`, for
/// example. A number is the same key in every integer type (16 little-endian bytes and a zero), but another one than its digits as text.
/// An address is another key than its text. Within one limit, use keys of one kind, or add a part that names the kind:
/// `("user", id)`.
/// [Alternatives](crate::key::KeyExtractor::or) of an extractor do so themselves.
///
/// Implement the trait for your own type by writing its fields:
///
/// ```
/// use tower_ratelimit::key::{Key, KeyBuf};
///
/// struct Tenant {
///     id: u64,
/// }
///
/// impl Key for Tenant {
///     fn write(&self, key: &mut KeyBuf) {
///         self.id.write(key);
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used as a rate limit key",
    label = "expected a `Key`",
    note = "keys are text, bytes, integers, IP addresses, and tuples of up to four keys",
    note = "implement `tower_ratelimit::key::Key` for your own type, or convert the value with `to_string()`"
)]
pub trait Key {
    /// Appends the key's parts to `key`: at least one, and the same number for every value of the type.
    fn write(&self, key: &mut KeyBuf);

    /// Hashes the key. Must equal the hash of what [`write`](Self::write) appends.
    #[doc(hidden)]
    #[inline]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        KeyBuf::of(self).hash(hasher)
    }
}

/// Implements [`Key`] for types that are written as one part, which is hashed without a buffer.
macro_rules! key_of_one_part {
    ($($type:ty),*; $value:ident => $part:expr) => {
        $(impl Key for $type {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                let $value = self;
                key.push($part);
            }

            #[inline(always)]
            fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
                let $value = self;
                hasher.hash($part)
            }
        })*
    };
}
key_of_one_part!(str, String, [u8], Vec<u8>, bytes::Bytes, http::HeaderValue; text => text.as_ref());
key_of_one_part!(u8, u16, u32, u64, i8, i16, i32, i64; number => &integer(i128::from(*number).to_le_bytes()));
key_of_one_part!(u128, i128; number => &integer(number.to_le_bytes()));
key_of_one_part!(usize; number => &integer((*number as i128).to_le_bytes()));
key_of_one_part!(Ipv4Addr, Ipv6Addr; address => &address.octets());
// One empty part.
key_of_one_part!((); _unit => &[]);
key_of_one_part!(Cow<'_, str>; text => text.as_bytes());

/// Returns the key of a number, which is the same in all types. It is longer than an address.
fn integer(bytes: [u8; 16]) -> [u8; 17] {
    let mut key = [0; 17];
    key[..16].copy_from_slice(&bytes);
    key
}

impl<const N: usize> Key for [u8; N] {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(self);
    }

    #[inline(always)]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        hasher.hash(self)
    }
}

/// Writes an IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) as the IPv4 address.
impl Key for IpAddr {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        match self.to_canonical() {
            Self::V4(address) => address.write(key),
            Self::V6(address) => address.write(key),
        }
    }

    #[inline(always)]
    fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
        match self.to_canonical() {
            Self::V4(address) => address.hash_with(hasher),
            Self::V6(address) => address.hash_with(hasher),
        }
    }
}

/// The key of requests without a key: those of a limit without an extractor, and those that
/// [`OnMissingKey::Share`](crate::OnMissingKey::Share) puts into one bucket.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Shared;

impl Key for Shared {
    #[inline]
    fn write(&self, _: &mut KeyBuf) {}
}

macro_rules! key_of_pointer {
    ($($type:ty),*) => {
        $(impl<K: Key + ?Sized> Key for $type {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                (**self).write(key);
            }

            #[inline(always)]
            fn hash_with(&self, hasher: &KeyHasher) -> KeyHash {
                (**self).hash_with(hasher)
            }
        })*
    };
}
key_of_pointer!(&K, Box<K>, Arc<K>);

macro_rules! key_of_tuple {
    ($($part:ident),*) => {
        impl<$($part: Key),*> Key for ($($part,)*) {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                $($part.write(key);)*
            }
        }
    };
}
key_of_tuple!(A);
key_of_tuple!(A, B);
key_of_tuple!(A, B, C);
key_of_tuple!(A, B, C, D);

/// A key's parts, each prefixed with its length, so that `("a", "bc")` and `("ab", "c")` differ.
///
/// The limiter hashes the buffer and drops it: no store sees the key itself. Keys of up to 127 bytes need no
/// allocation.
#[derive(Clone, Default)]
pub struct KeyBuf(SmallVec<[u8; 128]>);

impl KeyBuf {
    /// Returns the parts of a key.
    pub(crate) fn of(key: &(impl Key + ?Sized)) -> Self {
        let mut parts = Self::default();
        key.write(&mut parts);
        parts
    }

    /// Appends a part.
    #[inline]
    pub fn push(&mut self, part: &[u8]) {
        // One byte of length for short parts, and 0xFF with eight more for others.
        match u8::try_from(part.len()) {
            Ok(len) if len < u8::MAX => self.0.push(len),
            _ => {
                self.0.push(u8::MAX);
                self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
            }
        }
        self.0.extend_from_slice(part);
    }

    /// Hashes all parts. The hash of a single part is the hash of its bytes, so that callers that have them need no
    /// buffer.
    #[inline]
    pub(crate) fn hash(&self, hasher: &KeyHasher) -> KeyHash {
        match self.only_part() {
            Some(part) => hasher.hash(part),
            None => hasher.hash(&self.0).of_parts(),
        }
    }

    /// Iterates over the parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (part, others) = first_part(rest)?;
            rest = others;
            Some(part)
        })
    }

    /// Returns the part, if there is exactly one.
    #[inline]
    pub(crate) fn only_part(&self) -> Option<&[u8]> {
        first_part(&self.0).filter(|(_, rest)| rest.is_empty()).map(|(part, _)| part)
    }

    /// Appends all parts of another key.
    pub(crate) fn append(&mut self, parts: &Self) {
        self.0.extend_from_slice(&parts.0);
    }
}

/// Splits the first part off the encoded parts `bytes`.
#[inline]
fn first_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = match bytes {
        [u8::MAX, rest @ ..] => rest.split_first_chunk().map(|(len, rest)| (u64::from_le_bytes(*len), rest))?,
        [len, rest @ ..] => (u64::from(*len), rest),
        [] => return None,
    };
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// Shows the length, but not the key, which may be a credential.
impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: impl Key) -> KeyHash {
        let hasher = KeyHasher::with_secret([7; 16]);
        let mut buf = KeyBuf::default();
        key.write(&mut buf);
        let hash = buf.hash(&hasher);
        assert_eq!(key.hash_with(&hasher), hash, "with and without a buffer");
        hash
    }

    /// CVE-2026-25480 (Litestar): keys joined by a separator collided if a part contained the separator.
    #[test]
    fn part_boundaries_distinguish_keys() {
        assert_ne!(hash(("a:b", "c")), hash(("a", "b:c")));
        assert_ne!(hash(("a", "b_c")), hash(("a_b", "c")));
        assert_ne!(hash(("", "a")), hash(("a", "")));
        assert_ne!(hash("ab"), hash(("a", "b")));
        assert_ne!(hash("é"), hash("e\u{301}"));
    }

    #[test]
    fn one_part_never_equals_the_encoding_of_several() {
        for parts in [("a", "b"), ("", ""), ("192.0.2.1", "/path")] {
            let mut framed = KeyBuf::default();
            parts.write(&mut framed);
            assert_ne!(hash(parts), hash(&*framed.0));
        }
        let hasher = KeyHasher::with_secret([7; 16]);
        assert_ne!(KeyBuf::default().hash(&hasher), hash(""));
        assert_ne!(KeyBuf::default().hash(&hasher), hash(()));
    }

    #[test]
    fn lengths_distinguish_keys() {
        let long = "x".repeat(300);
        let lengths = [0, 1, 7, 8, 126, 127, 128, 254, 255, 256, 300];
        let mut hashes: Vec<_> = lengths.map(|length| hash(&long[..length])).into();
        hashes.extend(lengths.map(|length| hash((&long[..length], &long[length..]))));
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 2 * lengths.len());
    }

    #[test]
    fn every_text_type_is_the_same_key() {
        let text = hash("user:7");
        assert_eq!(text, hash(String::from("user:7")));
        assert_eq!(text, hash(b"user:7"));
        assert_eq!(text, hash(http::HeaderValue::from_static("user:7")));
        assert_eq!(text, hash(Arc::<str>::from("user:7")));
        assert_eq!(text, hash(Cow::from("user:7")));
    }

    #[test]
    fn mapped_addresses_equal_their_ipv4_addresses() {
        let mapped: IpAddr = "::ffff:1.2.3.4".parse().unwrap();
        let hex: IpAddr = "::ffff:102:304".parse().unwrap();
        let plain: IpAddr = "1.2.3.4".parse().unwrap();
        let other: IpAddr = "::ffff:1.2.3.5".parse().unwrap();
        assert_eq!(hash(mapped), hash(plain));
        assert_eq!(hash(hex), hash(plain));
        assert_ne!(hash(other), hash(plain));
        assert_ne!(hash("2001:db8::1.2.3.4".parse::<IpAddr>().unwrap()), hash(plain));
    }

    #[test]
    fn a_number_is_one_key_in_every_integer_type() {
        assert_eq!(hash(0x1234_u16), hash(integer(0x1234_u128.to_le_bytes())));
        let of_seven = [hash(7_u8), hash(7_u16), hash(7_u32), hash(7_usize), hash(7_u128), hash(7_i8), hash(7_i16)];
        assert_eq!(of_seven, [hash(7_u64); 7]);
        assert_eq!([hash(7_i32), hash(7_i64), hash(7_i128)], [hash(7_u64); 3]);
        assert_eq!([hash(-2_i8), hash(-2_i16), hash(-2_i32), hash(-2_i64)], [hash(-2_i128); 4]);
        assert_eq!(hash(i64::MAX), hash(i64::MAX as u64));
        assert_eq!(hash(u64::MAX), hash(u128::from(u64::MAX)));
        assert_eq!(hash(1_u128 << 100), hash(1_i128 << 100));
        assert_ne!(hash(()), hash(Shared));
    }

    #[test]
    fn different_numbers_are_different_keys() {
        let mut hashes = Vec::from([i64::MIN, -256, -255, -2, -1, 0, 1, 255, 256, i64::MAX].map(hash));
        hashes.extend([u64::MAX, u64::MAX - 1, 1 << 63].map(hash));
        hashes.extend([i128::MIN, i128::MIN + 1, i128::MAX, i128::from(u64::MAX) + 1].map(hash));
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}
