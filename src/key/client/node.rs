//! The parser of one hop in a list of proxies.

use std::net::{IpAddr, Ipv6Addr};

/// Parses a node of RFC 7239, section 6, with or without port and brackets, or an address with a zone, which is dropped.
/// Returns the canonical address, or `None` for `unknown`, obfuscated names and anything else.
pub(super) fn address(node: &[u8]) -> Option<IpAddr> {
    let node = str::from_utf8(node).ok()?;
    let address = match node.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
                return None;
            }
            IpAddr::V6(ipv6(address)?)
        }
        None => match node.split_once(':') {
            None => IpAddr::V4(node.parse().ok()?),
            Some((address, port)) if is_port(port) => IpAddr::V4(address.parse().ok()?),
            // An IPv6 address without brackets can't have a port.
            Some(_) => IpAddr::V6(ipv6(node)?),
        },
    };
    Some(address.to_canonical())
}

fn ipv6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        None => text.parse().ok(),
        Some((address, zone)) if !zone.is_empty() && zone.bytes().all(is_name_byte) => address.parse().ok(),
        Some(_) => None,
    }
}

/// Returns whether `text` is a number of up to five digits, or an obfuscated port (`_name`).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_name_byte),
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_proxies_write_them() {
        for (node, address) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("192.0.2.1:_hidden", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:4711", "2001:db8::1"),
            ("[2001:db8::1]:_a.b-c_d", "2001:db8::1"),
            ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
            ("::", "::"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%br-0.1]:80", "fe80::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[::ffff:c000:201]:80", "192.0.2.1"),
            ("::ffff:192.0.2.1%1", "192.0.2.1"),
            ("::192.0.2.1", "::c000:201"),
            ("64:ff9b::192.0.2.1", "64:ff9b::c000:201"),
            ("2002:c000:201::", "2002:c000:201::"),
            // Not a port: five groups and a gap.
            ("2001:db8::1:4711", "2001:db8::1:4711"),
        ] {
            assert_eq!(super::address(node.as_bytes()), Some(address.parse().unwrap()), "{node}");
        }
    }

    #[test]
    fn text_without_an_address_is_rejected() {
        for node in [
            "",
            " ",
            "-",
            "unknown",
            "UNKNOWN",
            "unknown:80",
            "_hidden",
            "_hidden:80",
            "unix:",
            "localhost",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.256",
            "01.2.3.4",
            "0x1.2.3.4",
            "16909060",
            "1.2.3.4:",
            "1.2.3.4:123456",
            "1.2.3.4:+80",
            "1.2.3.4:_",
            "1.2.3.4:_ä",
            "1.2.3.4:80:80",
            "1.2.3.4%eth0",
            "1.2.3.4/32",
            " 1.2.3.4",
            "1.2.3.4 ",
            "1.2.3.4 5",
            "[1.2.3.4]",
            "[1.2.3.4]:80",
            "[",
            "[]",
            "[]:80",
            "[::1",
            "::1]",
            "[[::1]]",
            "[::1]80",
            "[::1]:",
            "[::1]:123456",
            "[::1] :80",
            "[::1]:80:80",
            "[::1%]",
            "::1%",
            "::1%eth 0",
            "::1%eth0%eth1",
            "::1/128",
            ":::1",
            "12345::",
            "2001:db8:0:0:0:0:0:1:4711",
            "\"1.2.3.4\"",
            "１.2.3.4",
        ] {
            assert_eq!(super::address(node.as_bytes()), None, "{node:?}");
        }
        assert_eq!(address(b"1.2.3.4\xff"), None);
    }
}
