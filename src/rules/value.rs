//! Compares the values that extractors write with the values of a file.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::descriptor::ValueMatcher;
use super::pattern::Pattern;
use crate::key::{self, KeyBuf};

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
    /// Returns what an extractor writes for `text`.
    ///
    /// # Errors
    ///
    /// Returns an error if no extractor with this format can write the value.
    fn bytes(self, text: &str) -> Result<Box<[u8]>, String> {
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
                return Ok(match address.to_canonical() {
                    IpAddr::V4(address) => address.octets().into(),
                    IpAddr::V6(address) => {
                        let mask = u128::MAX << (128 - u32::from(ipv6_prefix));
                        (address.to_bits() & mask).to_be_bytes().into()
                    }
                });
            }
        }
        Ok(text.as_bytes().into())
    }

    /// Appends the key of an extracted value: `parts`, each preceded by its length.
    pub(super) fn append_key(self, parts: &[u8], key: &mut KeyBuf) {
        let is_non_standard = |method| !str::from_utf8(method).is_ok_and(key::is_standard);
        match (self, key::only_part(parts)) {
            (Self::Method, Some(method)) if is_non_standard(method) => key.push(key::OTHER_METHODS.as_bytes()),
            _ => key.append_bytes(parts),
        }
    }

    /// Matches the text of an extracted value with a pattern.
    pub(super) fn matches(self, pattern: &Pattern, value: &[u8]) -> bool {
        let address: IpAddr = match (self, value.len()) {
            (Self::Text | Self::Method, _) => return pattern.is_match(value),
            (Self::Address { .. }, 4) => <[u8; 4]>::try_from(value).map(Ipv4Addr::from).map(IpAddr::from),
            (Self::Address { .. }, _) => <[u8; 16]>::try_from(value).map(Ipv6Addr::from).map(IpAddr::from),
        }
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let mut text = AddressText { bytes: [0; 45], len: 0 };
        write!(text, "{address}").is_ok() && pattern.is_match(&text.bytes[..text.len])
    }
}

/// The text of an address, without an allocation.
struct AddressText {
    bytes: [u8; 45],
    len: usize,
}

impl Write for AddressText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// A value of a file, in the format of its extractor.
pub(super) enum CompiledValue {
    Any,
    Exact(Box<[u8]>),
    Pattern(Pattern),
}

impl CompiledValue {
    /// Compiles a value of a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the extractor can't write such a value.
    pub(super) fn new(format: ValueFormat, value: &ValueMatcher) -> Result<Self, String> {
        Ok(match value {
            ValueMatcher::Any => Self::Any,
            ValueMatcher::Exact(text) => Self::Exact(format.bytes(text)?),
            ValueMatcher::Pattern(pattern) => Self::Pattern(pattern.clone()),
        })
    }
}
