//! The parsers of the headers in which proxies list the hops of a request: `X-Forwarded-For` and `Forwarded`.

use std::iter;
use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header::FORWARDED;
use smallvec::SmallVec;

use super::head::is_token;

/// Returns the addresses of the hops from right to left, and `None` for hops without an address.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let hops = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
    hops.map(|hop| node_address(hop.trim_ascii()))
}

/// Returns the addresses of the hops from right to left, and `None` for hops without an address.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(FORWARDED).iter().rev();
    lines.flat_map(|line| elements(line.as_bytes())).map(element_address)
}

// How `Forwarded` (RFC 7239) is read from right to left:
//
// Commas outside of quotes separate the hops. The left part of the header is the client's, who may leave a quote open:
// a parser from the left would then take the proxies' commas for quoted ones. From the right, the parser sees all that
// the trusted proxies appended before anything of the client's, so that no client can move the boundaries between
// hops:
//
// - A quote that is met outside of quotes is the end of a quoted string.
// - Inside, a quote is the beginning of the string unless it is escaped, that is, preceded by an odd number of
//   backslashes. In a quoted string, backslashes come in pairs except for the one that escapes, and the opening quote
//   follows a `=`. So the count never reaches into the client's part.
// - At the beginning of a proxy's element, the parser is therefore outside of quotes, and the comma there is a
//   boundary.
//
// Each element is then parsed strictly from the left. A malformed element has no address. Lines are boundaries too: no
// quoted string continues in the next line.

/// Returns the elements of a line from right to left.
fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    iter::from_fn(move || {
        let line = rest.take()?;
        let Some(comma) = last_boundary(line) else { return Some(line) };
        rest = Some(&line[..comma]);
        Some(&line[comma + 1..])
    })
}

/// Returns the position of the last comma outside of quotes.
fn last_boundary(line: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    line.iter().enumerate().rev().find_map(|(at, byte)| {
        match byte {
            b',' if !is_quoted => return Some(at),
            b'"' => is_quoted = !is_quoted || is_escaped(&line[..at]),
            _ => {}
        }
        None
    })
}

/// Returns whether the byte after `before` is escaped, provided that it is inside quotes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// Returns the address of an element's `for` parameter, if the element is well-formed and has exactly one.
///
/// Accepts more than the grammar where the meaning is the same: spaces around pairs, and IPv6 addresses without quotes
/// or brackets, as many proxies write them.
fn element_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in split_unquoted(element, b';').map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty()) {
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&pair[..equals], content(&pair[equals + 1..])?);
        let is_repeated = name.eq_ignore_ascii_case(b"for") && found.replace(address(value)?).is_some();
        if is_repeated || !is_token(name) {
            return None;
        }
    }
    found
}

/// Splits at each `separator` that is not in a quoted string.
fn split_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |&byte| {
        is_quoted ^= byte == b'"' && !is_escaped;
        is_escaped = is_quoted && byte == b'\\' && !is_escaped;
        byte == separator && !is_quoted
    })
}

/// Returns the content of a value, still with the escapes of a quoted one, or `None` if the value is malformed.
fn content(value: &[u8]) -> Option<&[u8]> {
    let Some(quoted) = value.strip_prefix(b"\"") else {
        let is_plain = !value.is_empty() && !value.iter().any(|byte| b"\"\\,= \t".contains(byte));
        return is_plain.then_some(value);
    };
    let mut is_escaped = false;
    let end = quoted.iter().position(|&byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    (end + 1 == quoted.len()).then_some(&quoted[..end])
}

/// Returns the address in the content of a value.
fn address(content: &[u8]) -> Option<IpAddr> {
    /// Longer than any address with a port, even if each of its characters is escaped.
    const MAX_ESCAPED_LEN: usize = 128;

    if content.len() > MAX_ESCAPED_LEN || !content.contains(&b'\\') {
        return node_address(content);
    }
    let mut is_escaped = false;
    let plain = content.iter().copied().filter(|&byte| {
        is_escaped = byte == b'\\' && !is_escaped;
        !is_escaped
    });
    node_address(&plain.collect::<SmallVec<[u8; MAX_ESCAPED_LEN]>>())
}

/// Parses a node of RFC 7239, section 6, with or without port and brackets, or an address with a zone, which is
/// dropped. Returns the canonical address, or `None` for `unknown`, obfuscated names and anything else.
pub(super) fn node_address(node: &[u8]) -> Option<IpAddr> {
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
            assert_eq!(node_address(node.as_bytes()), Some(address.parse().unwrap()), "{node}");
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
            assert_eq!(node_address(node.as_bytes()), None, "{node:?}");
        }
        assert_eq!(node_address(b"1.2.3.4\xff"), None);
    }
}
