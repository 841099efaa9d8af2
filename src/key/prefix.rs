//! The network prefixes that make keys of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::bucket_key::Key;
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use crate::error::Fault;
use crate::key::hash::{KeyHash, KeyHasher};

/// The number of leading bits of an address that make the key, by family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// 32 bits of IPv4 and 64 of IPv6: a client usually controls the rest.
    pub(super) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    #[track_caller]
    pub(super) const fn ipv4(self, bits: u8) -> Self {
        if bits < 1 || bits > 32 {
            panic!("{}", Fault::Ipv4Prefix { bits }.message().as_str());
        }
        Self { ipv4: bits, ..self }
    }

    #[track_caller]
    pub(super) const fn ipv6(self, bits: u8) -> Self {
        if bits < 1 || bits > 128 {
            panic!("{}", Fault::Ipv6Prefix { bits }.message().as_str());
        }
        Self { ipv6: bits, ..self }
    }

    /// Appends the network of `address` to `key`.
    #[inline(always)]
    pub(super) fn write(self, address: IpAddr, key: &mut KeyBuf) {
        match self.network(address) {
            IpAddr::V4(address) => address.write(key),
            IpAddr::V6(address) => address.write(key),
        }
    }

    /// Hashes the network of `address`, as a key of its own.
    #[inline(always)]
    pub(super) fn hash(self, address: IpAddr, hasher: &KeyHasher) -> KeyHash {
        match self.network(address) {
            IpAddr::V4(address) => hasher.hash(&address.octets()),
            IpAddr::V6(address) => hasher.hash(&address.octets()),
        }
    }

    /// Describes the network of `address`, for explanations.
    pub(super) fn describe(self, name: &'static str, address: Option<IpAddr>) -> KeyPart {
        match address.map(|address| self.network(address)) {
            None => KeyPart::missing(name),
            Some(IpAddr::V4(network)) if self.ipv4 < 32 => KeyPart::new(name, format!("{network}/{}", self.ipv4)),
            Some(IpAddr::V6(network)) if self.ipv6 < 128 => KeyPart::new(name, format!("{network}/{}", self.ipv6)),
            Some(address) => KeyPart::new(name, address.to_string()),
        }
    }

    /// Returns the first address of the network of `address`.
    #[inline]
    pub(super) fn network(self, address: IpAddr) -> IpAddr {
        // Canonicalized before it is masked: otherwise all IPv4-mapped addresses would be one key.
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let mask = u32::MAX << (32 - u32::from(self.ipv4));
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6));
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2026-30827 (express-rate-limit): mapped addresses were masked as IPv6, so all of IPv4 was one key.
    #[test]
    fn mapped_addresses_are_canonicalized_before_masking() {
        let bytes = |address: &str| {
            let mut key = KeyBuf::default();
            Prefixes::DEFAULT.ipv6(56).write(address.parse().unwrap(), &mut key);
            key.as_bytes().to_vec()
        };
        assert_eq!(bytes("::ffff:192.0.2.1"), bytes("192.0.2.1"));
        assert_ne!(bytes("::ffff:192.0.2.1"), bytes("::ffff:192.0.2.2"));
        assert_eq!(bytes("2001:db8::1"), bytes("2001:db8:0:ff::2"));
        assert_ne!(bytes("2001:db8::1"), bytes("2001:db8:0:100::1"));
    }
}
