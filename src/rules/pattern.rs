//! Texts with wildcards.

/// A text in which each `*` stands for any number of bytes, or none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// `None` where there is no `*`: it is a plain text.
    pub(super) fn of(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.to_owned() })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it fits all of `value`. Case counts.
    #[must_use]
    pub fn is_match(&self, value: &[u8]) -> bool {
        let mut parts = self.text.split('*').map(str::as_bytes);
        let (Some(first), Some(last)) = (parts.next(), parts.next_back()) else { return false };
        let Some(rest) = value.strip_prefix(first) else { return false };
        let Some(mut rest) = rest.strip_suffix(last) else { return false };
        // The earliest place for each part leaves the most room for the next.
        for part in parts.filter(|part| !part.is_empty()) {
            let Some(at) = rest.windows(part.len()).position(|window| window == part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}
