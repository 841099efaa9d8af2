//! Text patterns with wildcards.

/// A pattern in which each `*` matches any number of bytes, including none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// Returns `None` if the text has no `*`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.to_owned() })
    }

    /// Returns the pattern as written in the file.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern matches all of `value`. Case-sensitive.
    #[must_use]
    pub fn is_match(&self, value: &[u8]) -> bool {
        let mut parts = self.text.split('*').map(str::as_bytes);
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { return false };
        let Some(rest) = value.strip_prefix(first) else { return false };
        let Some(mut rest) = rest.strip_suffix(last) else { return false };
        // The earliest match of each part leaves the most text for the next.
        for part in parts.filter(|part| !part.is_empty()) {
            let Some(at) = rest.windows(part.len()).position(|window| window == part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}
