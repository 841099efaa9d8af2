//! Compares the values that extractors write with the values of a file.

use std::io::Write;
use std::net::IpAddr;

use crate::key::{self, KeyBuf};

/// A value of a file, in the format of its extractor.
#[derive(Clone, Eq, Hash, PartialEq)]
pub(super) enum Matcher {
    Any,
    Exact(Box<[u8]>),
    Pattern(Box<str>),
}

/// The format in which an extractor writes values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ValueFormat {
    Text,
    /// A method other than `HEAD`, which is extracted as `GET`. Non-standard methods can be compared, but share a
    /// bucket.
    Method,
    /// The 4 or 16 bytes of an address. Of IPv6 addresses, only the first `ipv6_prefix` bits are set.
    Address {
        ipv6_prefix: u8,
    },
}

impl ValueFormat {
    /// Compiles a value of a file.
    ///
    /// # Errors
    ///
    /// Returns an error if no extractor with this format can write the value.
    pub(super) fn matcher(self, value: Option<&str>) -> Result<Matcher, String> {
        let Some(text) = value else { return Ok(Matcher::Any) };
        if is_pattern(text) {
            return Ok(Matcher::Pattern(text.into()));
        }
        match self {
            Self::Text => {}
            Self::Method if text == "HEAD" => return Err("HEAD counts as GET: write `GET`".to_owned()),
            Self::Method => {
                let upper = text.to_uppercase();
                if upper != text && key::is_standard(&upper) {
                    return Err(format!("methods are written in upper case: write `{upper}`"));
                }
            }
            Self::Address { ipv6_prefix } => {
                let address = text.parse::<IpAddr>();
                let address = address.map_err(|_| format!("{text:?} is not an IP address: write one, or use a `*`"))?;
                return Ok(Matcher::Exact(match address.to_canonical() {
                    IpAddr::V4(address) => address.octets().into(),
                    IpAddr::V6(address) => {
                        let mask = u128::MAX << (128 - u32::from(ipv6_prefix));
                        (address.to_bits() & mask).to_be_bytes().into()
                    }
                }));
            }
        }
        Ok(Matcher::Exact(text.as_bytes().into()))
    }

    /// Appends the key of an extracted value.
    pub(super) fn append_key(self, value: &KeyBuf, key: &mut KeyBuf) {
        let is_non_standard = |method| !str::from_utf8(method).is_ok_and(key::is_standard);
        match (self, key::only_part(value.as_bytes())) {
            (Self::Method, Some(method)) if is_non_standard(method) => key.push(key::OTHER_METHODS.as_bytes()),
            _ => key.append(value),
        }
    }

    /// Returns whether a pattern matches the text of an extracted value.
    pub(super) fn matches(self, pattern: &str, value: &[u8]) -> bool {
        let Self::Address { .. } = self else { return is_match(pattern, value) };
        let address = match <[u8; 4]>::try_from(value) {
            Ok(v4) => IpAddr::from(v4),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(value).unwrap_or_default()),
        };
        // Without an allocation. An address has at most 45 characters.
        let mut text = [0; 45];
        let mut free = text.as_mut_slice();
        let is_written = write!(free, "{address}").is_ok();
        let len = 45 - free.len();
        is_written && is_match(pattern, &text[..len])
    }
}

/// Returns whether a value is a pattern, in which each `*` matches any text.
pub(super) fn is_pattern(value: &str) -> bool {
    value.contains('*')
}

/// Returns whether a pattern, in which each `*` matches any number of bytes, matches all of `value`.
fn is_match(pattern: &str, value: &[u8]) -> bool {
    let mut parts = pattern.split('*').map(str::as_bytes);
    let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { return false };
    let Some(mut rest) = value.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    // The earliest match of each part leaves the most text for the next.
    parts.filter(|part| !part.is_empty()).all(|part| {
        let found = rest.windows(part.len()).position(|window| window == part);
        rest = found.map_or(&[], |at| &rest[at + part.len()..]);
        found.is_some()
    })
}
