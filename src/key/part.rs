//! What a key is made of.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::hash::{KeyHash, KeyHasher};

/// A key, part by part, each with its length: `("a", "bc")` and `("ab", "c")` differ.
///
/// It is hashed and then forgotten. Keys of up to 127 bytes stay off the heap.
#[derive(Clone)]
pub struct KeyBuf {
    short: [u8; SHORT],
    len: usize,
    /// All of a key that is too long for `short`, whose `len` is then 0.
    long: Vec<u8>,
}

const SHORT: usize = 128;

impl KeyBuf {
    /// Adds a part.
    #[inline]
    pub fn push(&mut self, part: &[u8]) {
        // Mostly, a short part that there is room for.
        if let Some([len, place @ ..]) = self.short.get_mut(self.len..=self.len + part.len())
            && part.len() < usize::from(u8::MAX)
            && self.long.is_empty()
        {
            *len = part.len() as u8;
            place.copy_from_slice(part);
            self.len += 1 + part.len();
            return;
        }
        // A byte where it will do: the less there is to hash, the better.
        match u8::try_from(part.len()) {
            Ok(len) if len < u8::MAX => self.extend(&[len]),
            _ => {
                self.extend(&[u8::MAX]);
                self.extend(&(part.len() as u64).to_le_bytes());
            }
        }
        self.extend(part);
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        match self.short.get_mut(self.len..self.len + bytes.len()) {
            Some(place) if self.long.is_empty() => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            _ => self.extend_long(bytes),
        }
    }

    #[cold]
    fn extend_long(&mut self, bytes: &[u8]) {
        self.long.extend_from_slice(&self.short[..self.len]);
        self.len = 0;
        self.long.extend_from_slice(bytes);
    }

    /// The hash of all parts. Of a single one it is that of its bytes, so that who has them need not
    /// copy them here.
    #[inline]
    pub(crate) fn hash(&self, hasher: &KeyHasher) -> KeyHash {
        let bytes = self.as_bytes();
        match only_part(bytes) {
            Some(part) => hasher.hash(part),
            None => hasher.hash(bytes).of_parts(),
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.len] } else { &self.long }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    pub(crate) fn len(&self) -> usize {
        self.as_bytes().len()
    }

    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.long.truncate(len);
    }

    /// Takes what was added after the first `len` bytes out.
    pub(super) fn split_off(&mut self, len: usize) -> Self {
        let mut parts = Self::default();
        parts.extend(&self.as_bytes()[len..]);
        self.truncate(len);
        parts
    }

    /// Adds all parts of another key.
    pub(crate) fn append(&mut self, parts: &Self) {
        self.append_bytes(parts.as_bytes());
    }

    /// Adds parts of another key, as it has them.
    pub(crate) fn append_bytes(&mut self, parts: &[u8]) {
        self.extend(parts);
    }
}

/// The only part of `bytes`, if they are a part behind its length and nothing else.
#[inline]
pub(crate) fn only_part(bytes: &[u8]) -> Option<&[u8]> {
    let (len, part) = match bytes {
        [u8::MAX, rest @ ..] => rest.split_first_chunk().map(|(len, part)| (u64::from_le_bytes(*len), part))?,
        [len, part @ ..] => (u64::from(*len), part),
        [] => return None,
    };
    (len == part.len() as u64).then_some(part)
}

impl Default for KeyBuf {
    #[inline]
    fn default() -> Self {
        Self { short: [0; SHORT], len: 0, long: Vec::new() }
    }
}

/// Not the key itself, which may be a credential.
impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf({} bytes)", self.len())
    }
}

/// What can name a bucket: text, bytes, numbers, addresses, and tuples of them.
///
/// What writes the same parts names the same bucket: a header's value and the same text as a
/// `&str`, for example. Numbers are told apart by their width.
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
pub trait Key {
    /// Adds its parts to `key`: at least one, and always as many.
    fn write(&self, key: &mut KeyBuf);

    /// Its only part, where it is one whose bytes are at hand, as those of a text are: what
    /// [`write`](Self::write) adds, without the copy. `None` is always right.
    fn as_part(&self) -> Option<&[u8]> {
        None
    }
}

macro_rules! key_of_bytes {
    ($($of:ty),*) => {
        $(impl Key for $of {
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

/// The hash of a key.
#[inline(always)]
pub(crate) fn hash(key: &(impl Key + ?Sized), hasher: &KeyHasher) -> KeyHash {
    match key.as_part() {
        // Where it is asked for, as most keys are of one part.
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
    ($($of:ty),*) => {
        $(impl Key for $of {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                key.push(&self.to_le_bytes());
            }
        })*
    };
}
key_of_number!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

/// As wide as a `u64`, on every machine.
impl Key for usize {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        (*self as u64).write(key);
    }
}

/// The key of what has one bucket for all.
impl Key for () {
    #[inline]
    fn write(&self, key: &mut KeyBuf) {
        key.push(&[]);
    }
}

/// The key of requests that have none: of a limit without an extractor, and where
/// [`OnMissingKey::Share`](crate::OnMissingKey::Share) has those without a key share a bucket. (For
/// [`Limiter::acquire`](crate::Limiter::acquire), any key of one's choice will do.)
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

/// An IPv4 address mapped into IPv6 (`::ffff:192.0.2.1`) is the same key as the address itself.
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
    ($($of:ty),*) => {
        $(impl<K: Key + ?Sized> Key for $of {
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
    ($($of:ident),*) => {
        impl<$($of: Key),*> Key for ($($of,)*) {
            #[inline]
            fn write(&self, key: &mut KeyBuf) {
                #[allow(non_snake_case)]
                let ($($of,)*) = self;
                $($of.write(key);)*
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
            assert_eq!(hasher.hash(part), hash, "with or without a copy");
        }
        hash
    }

    /// CVE-2026-25480 (Litestar): joined by a separator, keys met where a part held the separator.
    #[test]
    fn parts_never_run_into_each_other() {
        assert_ne!(hash(("a:b", "c")), hash(("a", "b:c")));
        assert_ne!(hash(("a", "b_c")), hash(("a_b", "c")));
        assert_ne!(hash(("", "a")), hash(("a", "")));
        assert_ne!(hash("ab"), hash(("a", "b")));
        assert_ne!(hash("é"), hash("e\u{301}"));
    }

    /// A part that holds what a key of several parts is framed as is not that key.
    #[test]
    fn no_part_can_pass_for_several() {
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
    fn parts_of_any_length_are_told_apart() {
        let long = "x".repeat(300);
        let lengths = [0, 1, 7, 8, 126, 127, 128, 254, 255, 256, 300];
        let mut hashes: Vec<_> = lengths.map(|length| hash(&long[..length])).into();
        hashes.extend(lengths.map(|length| hash((&long[..length], &long[length..]))));
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 2 * lengths.len());
    }

    #[test]
    fn one_text_is_one_key_whatever_holds_it() {
        let text = hash("user:7");
        assert_eq!(text, hash(String::from("user:7")));
        assert_eq!(text, hash(b"user:7"));
        assert_eq!(text, hash(http::HeaderValue::from_static("user:7")));
        assert_eq!(text, hash(Arc::<str>::from("user:7")));
    }

    #[test]
    fn mapped_ipv4_addresses_are_the_addresses_themselves() {
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
