//! Keys: values that name a bucket.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::key_buf::KeyBuf;
use crate::key::hash::{KeyHash, KeyHasher};

/// A value that names a bucket: text, bytes, an integer, an IP address, or a tuple of up to four keys.
///
/// Values that write the same bytes name the same bucket, even if their types differ: a `HeaderValue` and a `&str`, for
/// example. An integer is written as its little-endian bytes, so the `u32` 0x31323334 is the same key as the text
/// `4321`, and integers of different widths are different keys. Within one limit, use keys of one type, or add a part
/// that names the type: `("user", id)`. [Alternatives](crate::key::KeyExtractor::or) of an extractor do so themselves.
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

    /// Returns the key's only part, if it has one whose bytes can be borrowed. The part must equal what
    /// [`write`](Self::write) appends. Defaults to `None`, which is always correct but costs a copy.
    fn as_part(&self) -> Option<&[u8]> {
        None
    }
}

macro_rules! key_of_bytes {
    ($($type:ty),*) => {
        $(impl Key for $type {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                key.push(self.as_ref());
            }

            #[inline]
            fn as_part(&self) -> Option<&[u8]> {
                Some(self.as_ref())
            }
        })*
    };
}
key_of_bytes!(str, String, [u8], Vec<u8>, bytes::Bytes, http::HeaderValue);

/// Hashes a key.
#[inline(always)]
pub(crate) fn hash(key: &(impl Key + ?Sized), hasher: &KeyHasher) -> KeyHash {
    match key.as_part() {
        Some(part) => hasher.hash(part),
        None => hash_of_parts(key, hasher),
    }
}

fn hash_of_parts(key: &(impl Key + ?Sized), hasher: &KeyHasher) -> KeyHash {
    let mut parts = KeyBuf::default();
    key.write(&mut parts);
    parts.hash(hasher)
}

impl Key for Cow<'_, str> {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(self.as_bytes());
    }

    #[inline]
    fn as_part(&self) -> Option<&[u8]> {
        Some(self.as_bytes())
    }
}

impl<const N: usize> Key for [u8; N] {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(self);
    }

    #[inline]
    fn as_part(&self) -> Option<&[u8]> {
        Some(self)
    }
}

macro_rules! key_of_number {
    ($($type:ty),*) => {
        $(impl Key for $type {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                key.push(&self.to_le_bytes());
            }
        })*
    };
}
key_of_number!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

/// Writes 64 bits on every platform.
impl Key for usize {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        (*self as u64).write(key);
    }
}

/// A key of one empty part.
impl Key for () {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(&[]);
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

impl Key for Ipv4Addr {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(&self.octets());
    }
}

impl Key for Ipv6Addr {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(&self.octets());
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
}

macro_rules! key_of_pointer {
    ($($type:ty),*) => {
        $(impl<K: Key + ?Sized> Key for $type {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                (**self).write(key);
            }

            #[inline]
            fn as_part(&self) -> Option<&[u8]> {
                (**self).as_part()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: impl Key) -> KeyHash {
        let hasher = KeyHasher::with_secret([7; 16]);
        let mut buf = KeyBuf::default();
        key.write(&mut buf);
        let hash = buf.hash(&hasher);
        if let Some(part) = key.as_part() {
            assert_eq!(hasher.hash(part), hash, "with and without a copy");
        }
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
            assert_ne!(hash(parts), hash(framed.as_bytes()));
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
}
