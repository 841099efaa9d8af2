//! The prefixes that make keys of addresses.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::error::Fault;

/// The number of leading bits of an address that make the key, by family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// 32 bits of IPv4 and 64 of IPv6: a client usually controls the rest.
    pub(crate) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    pub(super) const fn ipv4(self, bits: u8) -> Result<Self, Fault> {
        if bits < 1 || bits > 32 {
            return Err(Fault::new("an IPv4 prefix has ").number(bits as u64).text(" bits: use 1 to 32"));
        }
        Ok(Self { ipv4: bits, ..self })
    }

    pub(crate) const fn ipv6(self, bits: u8) -> Result<Self, Fault> {
        if bits < 1 || bits > 128 {
            return Err(Fault::new("an IPv6 prefix has ").number(bits as u64).text(" bits: use 1 to 128"));
        }
        Ok(Self { ipv6: bits, ..self })
    }

    /// Returns the shorter prefix of each family.
    #[cfg(feature = "rules")]
    pub(crate) fn shorter(self, other: Self) -> Self {
        Self { ipv4: self.ipv4.min(other.ipv4), ipv6: self.ipv6.min(other.ipv6) }
    }

    /// Returns the first address of the network of `address`.
    #[inline(always)]
    pub(crate) fn network(self, address: IpAddr) -> IpAddr {
        self.of(address).network()
    }

    /// Writes the network of `address`, with the length of its prefix if it has several addresses.
    pub(crate) fn text(self, address: IpAddr) -> String {
        let network = self.of(address).trunc();
        if network.prefix_len() < network.max_prefix_len() { network.to_string() } else { network.addr().to_string() }
    }

    #[inline(always)]
    fn of(self, address: IpAddr) -> IpNet {
        // Canonicalized before it is masked: otherwise all IPv4-mapped addresses would be one key.
        match address.to_canonical() {
            IpAddr::V4(address) => Ipv4Net::new_assert(address, self.ipv4).into(),
            IpAddr::V6(address) => Ipv6Net::new_assert(address, self.ipv6).into(),
        }
    }
}
