//! `Forwarded` (RFC 7239), from the right.
//!
//! Commas separate the hops, but not those in quotes; and what is left of what trusted proxies
//! have added is the client's, who may leave a quote open. A reader from the left would then take
//! the proxies' commas for quoted ones. One from the right comes through what the proxies have
//! added before it meets anything of the client's, so nothing that a client sends can move the
//! boundaries of what they have added:
//!
//! - A quote that is met outside of quotes ends a quoted string.
//! - In there, a quote begins the string unless it is escaped. It is if an odd number of backslashes
//!   stands before it: in a quoted string they come in pairs but for the one that escapes, and the
//!   quote that begins the string follows a `=`. All of them are the proxy's own.
//! - So where a proxy's element begins, the reader is outside of quotes, and the comma there is a
//!   boundary.
//!
//! Each element is then read strictly, and from the left. One that is not well-formed names nobody.
//! Lines are joined at boundaries: no quoted string goes on in the next line.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::FORWARDED;
use smallvec::SmallVec;

use super::node;

/// The addresses that the hops name, from the right.
pub(super) fn hops(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(FORWARDED).iter().rev();
    lines.flat_map(|line| FromRight { rest: Some(line.as_bytes()) }).map(address)
}

/// The elements of a line, from the right.
struct FromRight<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for FromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        let Some(comma) = last_boundary(rest) else { return Some(rest) };
        self.rest = Some(&rest[..comma]);
        Some(&rest[comma + 1..])
    }
}

/// Where the last comma is that is not in quotes.
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

/// Whether what follows `before` is escaped, if it is in quotes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// The address that an element says it is `for`. Nothing unless all of the element is well-formed,
/// and says so once.
///
/// More than the grammar is let pass where it means the same: spaces around the pairs, and an IPv6
/// address without quotes or brackets, as many proxies write it.
fn address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element.trim_ascii();
    while !rest.is_empty() {
        if let Some(next) = rest.strip_prefix(b";") {
            rest = next.trim_ascii_start();
            continue;
        }
        let equals = rest.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        if !is_token(name) {
            return None;
        }
        let (value, next) = split_value(value)?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(value.address()?).is_some() {
            return None;
        }
        rest = next.trim_ascii_start();
        if !(rest.is_empty() || rest.starts_with(b";")) {
            return None;
        }
    }
    found
}

/// A parameter's value.
enum Value<'a> {
    Plain(&'a [u8]),
    /// What is between the quotes, still escaped.
    Quoted(&'a [u8]),
}

impl Value<'_> {
    fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::Plain(node) => node::address(node),
            Self::Quoted(node) if !node.contains(&b'\\') => node::address(node),
            Self::Quoted(escaped) => node::address(&unescaped(escaped)?),
        }
    }
}

/// More than the longest address with a port, if each character is escaped.
const LONGEST: usize = 128;

fn unescaped(text: &[u8]) -> Option<SmallVec<[u8; LONGEST]>> {
    if text.len() > LONGEST {
        return None;
    }
    let mut is_escaped = false;
    let plain = text.iter().copied().filter(|&byte| {
        is_escaped = byte == b'\\' && !is_escaped;
        !is_escaped
    });
    Some(plain.collect())
}

/// A parameter's value, and what follows it.
fn split_value(text: &[u8]) -> Option<(Value<'_>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| b"; \t".contains(byte)).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        let is_well_formed = !value.is_empty() && !value.iter().any(|byte| b"\"\\,=".contains(byte));
        return is_well_formed.then_some((Value::Plain(value), rest));
    };
    let mut is_escaped = false;
    let end = quoted.iter().position(|&byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((Value::Quoted(&quoted[..end]), &quoted[end + 1..]))
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}
