//! Sets of IP networks, in CIDR notation.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use crate::error::ConfigError;

/// A set of disjoint networks, sorted by address.
#[derive(Clone, Debug)]
pub(crate) struct Cidrs(Arc<[IpNet]>);

impl Cidrs {
    pub(crate) fn parse(texts: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, ConfigError> {
        let networks = texts.into_iter().map(|text| network(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let mut networks = IpNet::aggregate(&networks);
        networks.sort_unstable();
        Ok(Self(networks.into()))
    }

    /// Returns whether a network contains the canonical `address`.
    ///
    /// The networks are disjoint, and sorted like addresses: IPv4 before IPv6, then by their first address. So only the
    /// last network that starts at or before `address` can contain it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let next = self.0.partition_point(|network| network.network() <= address);
        self.0[..next].last().is_some_and(|nearest| nearest.contains(&address))
    }

    /// Returns the number of disjoint networks.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the address family that the set covers, if any: IPv4, or the global unicast addresses of IPv6
    /// (`2000::/3`).
    pub(crate) fn covered_family(&self) -> Option<&'static str> {
        let covers = |all: &str| {
            let all: IpNet = all.parse().expect("a valid network");
            self.0.iter().any(|network| network.contains(&all))
        };
        let families = [("IPv4", "0.0.0.0/0"), ("IPv6", "2000::/3")];
        families.into_iter().find(|(_, all)| covers(all)).map(|(family, _)| family)
    }
}

/// Parses a network, or a single address.
fn network(text: &str) -> Result<IpNet, ConfigError> {
    let network = strict(text).ok_or_else(|| {
        // Some programs read numbers with leading zeros as octal, so the network is ambiguous.
        let without_zeros = strict(&without_leading_zeros(text)).map(|network| network.to_string());
        ConfigError::new(match without_zeros {
            Some(network) => format!(
                "the network {text:?} has a number with a leading zero, which some programs read as octal: \
                 write {network:?} if that is meant"
            ),
            None => {
                format!("{text:?} is not a network: write one like \"10.0.0.0/8\" or \"fd00::/8\", or a single address")
            }
        })
    })?;
    if network.addr() != network.network() {
        let network = network.trunc().to_string();
        return Err(ConfigError::new(format!(
            "the network {text:?} has bits beyond its prefix: write {network:?}, or the address without a prefix if \
             that alone is meant"
        )));
    }
    Ok(canonical(network))
}

/// Parses an address with or without a prefix length. Unlike `IpNet`, it rejects leading zeros.
fn strict(text: &str) -> Option<IpNet> {
    let Some((address, bits)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let number = bits.parse().ok().filter(|number: &u8| number.to_string() == bits)?;
    IpNet::new(address.parse().ok()?, number).ok()
}

/// Removes the leading zeros of decimal numbers. IPv6 groups are hexadecimal and keep theirs.
fn without_leading_zeros(text: &str) -> String {
    let mut shortened = String::new();
    for part in text.split_inclusive(['.', '/']) {
        let significant = part.trim_start_matches('0');
        if !significant.starts_with(|first: char| first.is_ascii_alphanumeric() || first == ':') && part != significant
        {
            shortened.push('0');
        }
        shortened.push_str(significant);
    }
    shortened
}

/// Converts an IPv4-mapped network to IPv4, as addresses are before they are compared.
fn canonical(network: IpNet) -> IpNet {
    if let IpNet::V6(mapped) = network
        && let Some(bits) = mapped.prefix_len().checked_sub(96)
        && let Some(address) = mapped.addr().to_ipv4_mapped()
    {
        return Ipv4Net::new_assert(address, bits).into();
    }
    network
}

/// Returns the address with these 4 or 16 bytes.
pub(crate) fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(cidrs: &[&str], address: &str) -> bool {
        Cidrs::parse(cidrs).unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn networks_contain_their_addresses() {
        let several = ["192.0.2.0/24", "10.0.0.0/8", "fd00::/8", "10.1.0.0/16", "198.51.100.7", "2001:db8::7", "::1"];
        for inside in [
            "10.0.0.0",
            "10.1.2.3",
            "10.255.255.255",
            "192.0.2.0",
            "192.0.2.255",
            "198.51.100.7",
            "fd00::",
            "fdff:ffff::1",
            "2001:db8::7",
            "::1",
        ] {
            assert!(holds(&several, inside), "{inside}");
        }
        for outside in [
            "9.255.255.255",
            "11.0.0.0",
            "192.0.1.255",
            "192.0.3.0",
            "198.51.100.6",
            "198.51.100.8",
            "0.0.0.0",
            "255.255.255.255",
            "::",
            "::2",
            "fc00::1",
            "fe00::",
            "2001:db8::6",
            "2001:db8::8",
            "::10.0.0.1",
        ] {
            assert!(!holds(&several, outside), "{outside}");
        }
        assert!(!holds(&[], "10.0.0.1"));
    }

    #[test]
    fn leading_zeros_are_rejected() {
        for (text, meant) in [
            ("010.0.0.0/8", "10.0.0.0/8"),
            ("10.00.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/08", "10.0.0.0/8"),
            ("0.0.0.0/00", "0.0.0.0/0"),
            ("192.0.2.07", "192.0.2.7/32"),
            ("fd00::/08", "fd00::/8"),
        ] {
            let error = Cidrs::parse([text]).unwrap_err().to_string();
            let expected = format!(
                "the network {text:?} has a number with a leading zero, which some programs read as octal: \
                 write {meant:?} if that is meant"
            );
            assert_eq!(error, expected);
        }
        for text in ["10.0.0.0/+8", "10.0.0.0/", "/8", "", "10.0.0/8", "10.0.0.0/33", "08", "10.0.0.0/8/8"] {
            let error = Cidrs::parse([text]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is not a network: ")), "{error}");
        }
        assert!(Cidrs::parse(["fd00:0000::/8", "0.0.0.0", "10.0.0.0/10"]).is_ok());
    }

    #[test]
    fn families_are_distinguished() {
        assert!(holds(&["::ffff:10.0.0.0/104"], "10.9.9.9"));
        assert!(holds(&["::ffff:10.0.0.1"], "10.0.0.1"));
        assert!(!holds(&["::/64"], "10.0.0.1"));
        assert!(!holds(&["a00::/8"], "10.0.0.1"));
    }

    #[test]
    fn coverage_of_a_family_is_detected() {
        let covered = |cidrs: &[&str]| Cidrs::parse(cidrs).unwrap().covered_family();
        for all in [&["0.0.0.0/0"][..], &["128.0.0.0/1", "0.0.0.0/1"], &["::ffff:0:0/96"], &["fd00::/8", "0.0.0.0/0"]] {
            assert_eq!(covered(all), Some("IPv4"), "{all:?}");
        }
        for all in [&["::/0"][..], &["8000::/1", "::/1"], &["2000::/3"], &["2000::/4", "3000::/4"], &["::/2"]] {
            assert_eq!(covered(all), Some("IPv6"), "{all:?}");
        }
        for some in [&["0.0.0.0/1"][..], &["10.0.0.0/8", "fc00::/7"], &["2000::/4"], &["4000::/2"], &[]] {
            assert_eq!(covered(some), None, "{some:?}");
        }
    }
}
