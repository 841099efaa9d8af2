//! Comparing what extractors write with the values of a file.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::descriptor::Wanted;
use super::pattern::Pattern;
use crate::key::only_part;

/// What an extractor writes, as far as values can be compared with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    Text,
    /// Text, and never `HEAD`.
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
                if upper != text && upper.parse::<http::Method>().is_ok_and(|method| is_standard(&method)) {
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

    /// Hands `pattern` the text of what was found.
    fn fits(self, pattern: &Pattern, found: &[u8]) -> bool {
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

fn is_standard(method: &http::Method) -> bool {
    use http::Method;
    let standard = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    standard.contains(method) || [Method::OPTIONS, Method::TRACE, Method::CONNECT].contains(method)
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

/// The values with which a descriptor is chosen from those with the same key.
pub(super) struct Chosen {
    form: Form,
    wanted: Value,
    /// What more specific descriptors beside it take.
    taken: HashSet<Box<[u8]>>,
    taken_like: Vec<Pattern>,
}

enum Value {
    Any,
    Exactly(Box<[u8]>),
    Like(Pattern),
}

impl Chosen {
    /// What `wanted` takes, of what those `beside` it with the same key leave: an exact value goes
    /// before a pattern, the first pattern before the next, and any value comes last.
    pub(super) fn new<'a>(
        form: Form,
        wanted: &Wanted,
        beside: impl Iterator<Item = &'a Wanted>,
    ) -> Result<Self, String> {
        let mut chosen = Self { form, wanted: Value::Any, taken: HashSet::new(), taken_like: Vec::new() };
        match wanted {
            Wanted::Any => {}
            Wanted::Exactly(text) => {
                chosen.wanted = Value::Exactly(form.bytes(text)?);
                return Ok(chosen);
            }
            Wanted::Like(pattern) => chosen.wanted = Value::Like(pattern.clone()),
        }
        let mut is_earlier = true;
        for other in beside {
            is_earlier &= other != wanted;
            match other {
                // What is wrong with it is said where it stands.
                Wanted::Exactly(text) => chosen.taken.extend(form.bytes(text)),
                Wanted::Like(pattern) if is_earlier || *wanted == Wanted::Any => {
                    chosen.taken_like.push(pattern.clone());
                }
                Wanted::Like(_) | Wanted::Any => {}
            }
        }
        Ok(chosen)
    }

    /// Whether any value will do, if no other descriptor takes it.
    pub(super) fn is_any(&self) -> bool {
        matches!(self.wanted, Value::Any)
    }

    /// Whether the value is always the same.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.wanted, Value::Exactly(_))
    }

    /// The wanted bytes, to find two values that are spelled differently and are the same.
    pub(super) fn exactly(&self) -> Option<&[u8]> {
        match &self.wanted {
            Value::Exactly(bytes) => Some(bytes),
            Value::Any | Value::Like(_) => None,
        }
    }

    /// Whether it takes what an extractor has written: `parts`, each behind its length.
    pub(super) fn takes(&self, parts: &[u8]) -> bool {
        let Some(found) = only_part(parts) else {
            // No text can be compared with several parts.
            return self.is_any();
        };
        let is_wanted = match &self.wanted {
            Value::Any => true,
            Value::Exactly(bytes) => **bytes == *found,
            Value::Like(pattern) => self.form.fits(pattern, found),
        };
        is_wanted
            && !self.taken.contains(found)
            && !self.taken_like.iter().any(|pattern| self.form.fits(pattern, found))
    }
}
