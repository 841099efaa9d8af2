//! Comparing what extractors write with the values of a file.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::descriptor::Wanted;
use super::pattern::Pattern;
use crate::key::{self, KeyBuf};

/// What an extractor writes, as far as values can be compared with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    Text,
    /// A method, and never `HEAD`. Values are compared with any method; methods that are not standard share a
    /// bucket.
    Method,
    /// An address' 4 or 16 bytes, of which `ipv6_prefix` bits count.
    Address {
        ipv6_prefix: u8,
    },
}

impl Form {
    /// What an extractor writes for `text`, or why it never would.
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
                let address = address.map_err(|_| format!("{text:?} is no IP address: write one, or use a `*`"))?;
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

    /// Adds the key for what an extractor has written: `parts`, each behind its length.
    pub(super) fn append_key(self, parts: &[u8], key: &mut KeyBuf) {
        let is_invented = |method| !str::from_utf8(method).is_ok_and(key::is_standard);
        match (self, key::only_part(parts)) {
            (Self::Method, Some(method)) if is_invented(method) => key.push(key::OTHER_METHODS.as_bytes()),
            _ => key.append_bytes(parts),
        }
    }

    /// Hands `pattern` the text of what was found.
    pub(super) fn fits(self, pattern: &Pattern, found: &[u8]) -> bool {
        let address: IpAddr = match (self, found.len()) {
            (Self::Text | Self::Method, _) => return pattern.is_match(found),
            (Self::Address { .. }, 4) => <[u8; 4]>::try_from(found).map(Ipv4Addr::from).map(IpAddr::from),
            (Self::Address { .. }, _) => <[u8; 16]>::try_from(found).map(Ipv6Addr::from).map(IpAddr::from),
        }
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let mut text = AddressText { bytes: [0; 45], len: 0 };
        write!(text, "{address}").is_ok() && pattern.is_match(&text.bytes[..text.len])
    }
}

/// An address as text, off the heap.
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

/// A value of a file, as it is compared with what an extractor writes.
pub(super) enum Value {
    Any,
    Exactly(Box<[u8]>),
    Like(Pattern),
}

impl Value {
    pub(super) fn of(form: Form, wanted: &Wanted) -> Result<Self, String> {
        Ok(match wanted {
            Wanted::Any => Self::Any,
            Wanted::Exactly(text) => Self::Exactly(form.bytes(text)?),
            Wanted::Like(pattern) => Self::Like(pattern.clone()),
        })
    }
}
