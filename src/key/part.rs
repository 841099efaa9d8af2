//! What a key is made of.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smallvec::SmallVec;

/// A key, part by part, each with its length: `("a", "bc")` and `("ab", "c")` differ.
///
/// It is hashed and then forgotten. Keys of up to 128 bytes stay off the heap.
#[derive(Clone, Default)]
pub struct KeyBuf(SmallVec<[u8; 128]>);

impl KeyBuf {
    /// Adds a part.
    #[inline]
    pub fn push(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.0.extend_from_slice(part);
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Takes what was added after the first `len` bytes out.
    pub(super) fn split_off(&mut self, len: usize) -> Self {
        let parts = Self(SmallVec::from_slice(&self.0[len..]));
        self.0.truncate(len);
        parts
    }

    /// Adds all parts of another key.
    pub(crate) fn append(&mut self, parts: &Self) {
        self.0.extend_from_slice(&parts.0);
    }
}

/// Not the key itself, which may be a credential.
impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf({} bytes)", self.0.len())
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
}

macro_rules! key_of_bytes {
    ($($of:ty),*) => {
        $(impl Key for $of {
            fn write(&self, key: &mut KeyBuf) {
                key.push(self.as_ref());
            }
        })*
    };
}
key_of_bytes!(str, String, [u8], Vec<u8>, bytes::Bytes, http::HeaderValue);

impl Key for Cow<'_, str> {
    fn write(&self, key: &mut KeyBuf) {
        key.push(self.as_bytes());
    }
}

impl<const N: usize> Key for [u8; N] {
    fn write(&self, key: &mut KeyBuf) {
        key.push(self);
    }
}

macro_rules! key_of_number {
    ($($of:ty),*) => {
        $(impl Key for $of {
            fn write(&self, key: &mut KeyBuf) {
                key.push(&self.to_le_bytes());
            }
        })*
    };
}
key_of_number!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);

/// As wide as a `u64`, on every machine.
impl Key for usize {
    fn write(&self, key: &mut KeyBuf) {
        (*self as u64).write(key);
    }
}

/// The key of what has one bucket for all.
impl Key for () {
    fn write(&self, key: &mut KeyBuf) {
        key.push(&[]);
    }
}

impl Key for Ipv4Addr {
    fn write(&self, key: &mut KeyBuf) {
        key.push(&self.octets());
    }
}

impl Key for Ipv6Addr {
    fn write(&self, key: &mut KeyBuf) {
        key.push(&self.octets());
    }
}

/// An IPv4 address mapped into IPv6 (`::ffff:192.0.2.1`) is the same key as the address itself.
impl Key for IpAddr {
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
            fn write(&self, key: &mut KeyBuf) {
                (**self).write(key);
            }
        })*
    };
}
key_of_pointer!(&K, Box<K>, Arc<K>);

macro_rules! key_of_tuple {
    ($($of:ident),*) => {
        impl<$($of: Key),*> Key for ($($of,)*) {
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

    fn bytes(key: impl Key) -> Vec<u8> {
        let mut buf = KeyBuf::default();
        key.write(&mut buf);
        buf.as_bytes().to_vec()
    }

    /// CVE-2026-25480 (Litestar): joined by a separator, keys met where a part held the separator.
    #[test]
    fn parts_never_run_into_each_other() {
        assert_ne!(bytes(("a:b", "c")), bytes(("a", "b:c")));
        assert_ne!(bytes(("a", "b_c")), bytes(("a_b", "c")));
        assert_ne!(bytes(("", "a")), bytes(("a", "")));
        assert_ne!(bytes("ab"), bytes(("a", "b")));
        assert_ne!(bytes("é"), bytes("e\u{301}"));
    }

    #[test]
    fn one_text_is_one_key_whatever_holds_it() {
        let text = bytes("user:7");
        assert_eq!(text, bytes(String::from("user:7")));
        assert_eq!(text, bytes(b"user:7"));
        assert_eq!(text, bytes(http::HeaderValue::from_static("user:7")));
        assert_eq!(text, bytes(Arc::<str>::from("user:7")));
    }

    #[test]
    fn mapped_ipv4_addresses_are_the_addresses_themselves() {
        let mapped: IpAddr = "::ffff:1.2.3.4".parse().unwrap();
        let hex: IpAddr = "::ffff:102:304".parse().unwrap();
        let plain: IpAddr = "1.2.3.4".parse().unwrap();
        let other: IpAddr = "::ffff:1.2.3.5".parse().unwrap();
        assert_eq!(bytes(mapped), bytes(plain));
        assert_eq!(bytes(hex), bytes(plain));
        assert_ne!(bytes(other), bytes(plain));
        assert_ne!(bytes("2001:db8::1.2.3.4".parse::<IpAddr>().unwrap()), bytes(plain));
    }
}
