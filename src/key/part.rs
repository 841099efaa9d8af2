//! The parts of a key, as explanations show them.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::encoding::KeyBuf;
use super::hash::KeyHasher;
use crate::error::printable;

/// A part of a request's key, for an [explanation](crate::explain).
///
/// Addresses, methods, routes and paths are shown. The values of headers, cookies and query parameters, and those that
/// closures return, may be credentials: each is shown by a fingerprint such as `#5f0c9a1e`, until
/// [`Explanation::reveal_keys`](crate::explain::Explanation::reveal_keys) is called. Equal values have equal
/// fingerprints, as long as the [secret of the store](crate::store::KeyHasher) is the same.
///
/// ```
/// use tower_ratelimit::key::KeyPart;
///
/// let part = KeyPart::new("tenant", "shop");
/// assert_eq!(part.to_string(), "tenant shop");
/// ```
#[derive(Clone, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct KeyPart {
    name: Cow<'static, str>,
    /// The fingerprint, if the value is hidden.
    value: Option<String>,
    hidden: bool,
    /// The value, if it is hidden.
    #[cfg_attr(feature = "serde", serde(skip))]
    secret: Vec<u8>,
    /// Whether the value is not known until an asynchronous extractor has found it.
    #[cfg_attr(feature = "serde", serde(skip))]
    is_looked_up: bool,
}

impl KeyPart {
    /// Creates a part whose value is shown.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        Self { value: Some(value.into()), ..Self::missing(name) }
    }

    /// Creates a part whose value is hidden behind a fingerprint.
    pub fn secret(name: impl Into<Cow<'static, str>>, value: impl Into<Vec<u8>>) -> Self {
        Self { hidden: true, secret: value.into(), ..Self::new(name, "#") }
    }

    /// Creates a part that the request does not have.
    pub fn missing(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), value: None, hidden: false, secret: Vec::new(), is_looked_up: false }
    }

    /// Creates a part whose value an asynchronous extractor finds.
    pub fn looked_up(name: impl Into<Cow<'static, str>>) -> Self {
        Self { is_looked_up: true, ..Self::missing(name) }
    }

    /// Creates hidden parts of the values in `key`.
    pub(crate) fn hidden(name: &str, key: &KeyBuf) -> Vec<Self> {
        key.parts().map(|part| Self::secret(name.to_owned(), part)).collect()
    }

    /// Returns the name, such as `header x-api-key`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value, or the fingerprint of a hidden one. Returns `None` if the part is missing, or is not known
    /// because an asynchronous extractor looks it up.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Sets the fingerprint of a hidden value.
    pub(crate) fn set_fingerprint(&mut self, hasher: &KeyHasher) {
        if self.hidden {
            self.value = Some(format!("#{:08x}", hasher.hash(&self.secret).as_u128() >> 96));
        }
    }

    /// Shows a hidden value.
    pub(crate) fn reveal(&mut self) {
        if self.hidden {
            *self = Self::new(self.name.clone(), text(&self.secret));
        }
    }

    /// Sets the value that was looked up, which stays hidden, if `key` has a single part.
    pub(crate) fn found(&mut self, key: &KeyBuf) {
        if let Some(bytes) = key.only_part().filter(|_| self.is_looked_up) {
            *self = Self::secret(self.name.clone(), bytes);
        }
    }
}

/// Returns the bytes as printable text if they are text without control characters, or else in hexadecimal.
pub(crate) fn text(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => printable(text),
        _ => bytes.iter().fold("0x".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

/// Writes the name and the value, or the fingerprint of a hidden one.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = if self.is_looked_up { "(looked up)" } else { "(missing)" };
        write!(f, "{} {}", printable(&self.name), printable(self.value.as_deref().unwrap_or(missing)))
    }
}

/// Does not show hidden values.
impl fmt::Debug for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPart({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_values_are_shown_only_after_they_are_revealed() {
        let mut part = KeyPart::secret("header x-api-key", "s3cr3t");
        part.set_fingerprint(&KeyHasher::with_secret([7; 16]));
        for shown in [part.to_string(), format!("{part:?}"), part.value().unwrap().to_owned()] {
            assert!(!shown.contains("s3cr3t"), "{shown}");
        }
        part.reveal();
        assert_eq!(part.to_string(), "header x-api-key s3cr3t");
    }

    #[test]
    fn fingerprints_distinguish_values() {
        let fingerprint = |value: &str| {
            let mut part = KeyPart::secret("key", value);
            part.set_fingerprint(&KeyHasher::with_secret([7; 16]));
            part.value().unwrap().to_owned()
        };
        assert_eq!(fingerprint("a"), fingerprint("a"));
        assert_ne!(fingerprint("a"), fingerprint("b"));
    }

    #[test]
    fn bytes_that_are_not_text_are_shown_in_hexadecimal() {
        let mut parts = KeyBuf::default();
        parts.push(&42_u16.to_le_bytes());
        parts.push("é".as_bytes());
        let mut parts = KeyPart::hidden("key", &parts);
        parts.iter_mut().for_each(KeyPart::reveal);
        assert_eq!(parts, [KeyPart::new("key", "0x2a00"), KeyPart::new("key", "é")]);
    }
}
