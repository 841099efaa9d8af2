//! How much of an address makes a key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::part::{Key, KeyBuf};
use crate::hash::{KeyHash, KeyHasher};

/// The leading bits of an address that count: those of the network that one client has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// All of IPv4, and 64 bits of IPv6: a client usually has the rest at its disposal.
    pub(super) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    #[track_caller]
    pub(super) const fn ipv4(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 32, "an IPv4 prefix has 1 to 32 bits");
        Self { ipv4: bits, ..self }
    }

    #[track_caller]
    pub(super) const fn ipv6(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        Self { ipv6: bits, ..self }
    }

    /// Adds what counts of `address` to `key`.
    #[inline(always)]
    pub(super) fn write(self, address: IpAddr, key: &mut KeyBuf) {
        match self.network(address) {
            IpAddr::V4(address) => address.write(key),
            IpAddr::V6(address) => address.write(key),
        }
    }

    /// The hash of the key that is made of it alone.
    #[inline(always)]
    pub(super) fn hash(self, address: IpAddr, hasher: &KeyHasher) -> KeyHash {
        match self.network(address) {
            IpAddr::V4(address) => hasher.hash(&address.octets()),
            IpAddr::V6(address) => hasher.hash(&address.octets()),
        }
    }

    /// What counts of `address`: the first one of its network.
    #[inline]
    pub(super) fn network(self, address: IpAddr) -> IpAddr {
        // First what it is, then what of it counts: the other way round, all of IPv4 mapped into
        // IPv6 would be one key.
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

    /// CVE-2026-30827 (express-rate-limit): cut before it was known to be mapped, all of IPv4 was
    /// one key.
    #[test]
    fn a_mapped_address_is_known_before_it_is_cut() {
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
