//! Header values: formats them with few allocations, writes them to responses, and merges those of nested layers. A
//! response that already has as many headers as a `HeaderMap` can hold stays as it is.

use std::ops::Deref;
use std::sync::OnceLock;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::key::split_unquoted;

/// A buffer in which texts are built. Short ones take no memory but that of the result. Appending to a `SmallVec` takes
/// more instructions ("allowed, with headers" in `.ci/instructions`).
pub(super) struct Text {
    len: usize,
    inline: [u8; 256],
    /// The whole text, if it does not fit into `inline`.
    heap: Vec<u8>,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { len: 0, inline: [0; 256], heap: Vec::new() }
    }

    #[inline]
    pub(super) fn extend_from_slice(&mut self, piece: &[u8]) {
        let end = self.len + piece.len();
        match self.inline.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(piece),
            None => self.extend_heap(piece),
        }
        self.len = end;
    }

    #[cold]
    fn extend_heap(&mut self, piece: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(piece);
    }

    pub(super) fn push(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.heap)
    }
}

#[inline]
pub(super) fn push_number(text: &mut Text, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Separates the next member of a list from those before.
#[inline]
pub(super) fn push_separator(text: &mut Text) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
}

/// Creates a header value, in one allocation of its exact length.
pub(super) fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("names of limits, digits and punctuation are visible ASCII")
}

/// Formats a number, in one allocation, where `From<u64>` would make two.
pub(super) fn number(number: u64) -> HeaderValue {
    value(itoa::Buffer::new().format(number).as_bytes())
}

/// Formats a list of members.
pub(super) fn join<'a>(members: impl Iterator<Item = &'a [u8]>) -> HeaderValue {
    let mut text = Text::new();
    for member in members {
        push_separator(&mut text);
        text.extend_from_slice(member);
    }
    value(&text)
}

/// Sets a header.
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let _ = headers.try_insert(name, value);
}

/// Sets a header, unless the response contains it.
pub(super) fn insert_missing(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if let Ok(entry) = headers.try_entry(name) {
        let _ = entry.or_try_insert(value);
    }
}

/// Adds a line to a header. Returns whether the header had a line before.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    headers.try_append(name, value).unwrap_or_default()
}

/// Removes repeated names from lists, after a layer has appended a line to each. Of several items with the same name in
/// the last list, the one with the least remaining tokens is kept in all lists. If any line is not a list of named
/// items, nothing is changed. Logs a repeated name, unless `reported` is set, and then sets that.
#[cold]
pub(super) fn merge(fields: &[HeaderName], headers: &mut HeaderMap, reported: &OnceLock<()>) {
    let items = |field| headers.get_all(field).iter().flat_map(|line| split_unquoted(line.as_bytes(), b','));
    let lists: Option<Vec<Vec<_>>> = fields.iter().map(|field| items(field).map(Item::of).collect()).collect();
    let Some(lists @ [.., quotas]) = lists.as_deref() else { return };
    let count = |items: &[Item<'_>], name| items.iter().filter(|item| item.name == name).count();
    let repeated = quotas.iter().enumerate().find(|(index, item)| count(&quotas[..*index], item.name) > 0);
    let Some((_, _repeated)) = repeated else { return };
    reported.get_or_init(|| {
        #[cfg(feature = "tracing")]
        tracing::warn!(
            limit = %String::from_utf8_lossy(_repeated.name),
            "two nested layers have a limit of this name, and headers list only the one with less remaining: give each \
             limit a name of its own. If one layer was applied twice, it charges requests twice: apply it once",
        );
    });
    let merged: Vec<HeaderValue> = lists
        .iter()
        .map(|items| {
            // The item at the position of the one to keep, counted among those of the same name, or the last if there
            // are fewer. Items that the last list lacks are all kept.
            let kept = items.iter().enumerate().filter(|(index, item)| {
                let quotas = quotas.iter().filter(|quota| quota.name == item.name).enumerate();
                let least = quotas.min_by_key(|(_, quota)| quota.remaining);
                let position = count(&items[..*index], item.name);
                least.is_none_or(|(least, _)| position == least.min(count(items, item.name) - 1))
            });
            join(kept.map(|(_, item)| item.text))
        })
        .collect();
    for (field, list) in fields.iter().zip(merged) {
        insert(headers, field.clone(), list);
    }
}

/// A member of a list: a name in quotes, and its parameters.
struct Item<'a> {
    text: &'a [u8],
    /// The name, including its quotes.
    name: &'a [u8],
    /// The parameter `r`. Items without it sort last.
    remaining: u64,
}

impl<'a> Item<'a> {
    fn of(text: &'a [u8]) -> Option<Self> {
        let mut parts = split_unquoted(text, b';');
        let name = parts.next().filter(|name| name.len() > 1 && name.starts_with(b"\"") && name.ends_with(b"\""))?;
        let remaining = parts.find_map(|parameter| parameter.strip_prefix(b"r="));
        let remaining = remaining.and_then(|text| str::from_utf8(text).ok()?.parse().ok()).unwrap_or(u64::MAX);
        Some(Self { text, name, remaining })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_parameters_are_not_parsed_as_the_remaining_tokens() {
        let [policies, quotas] = ["ratelimit-policy", "ratelimit"].map(HeaderName::from_static);
        let mut headers = HeaderMap::new();
        for line in [r#""a";pk="x;r=0;y";r=9"#, r#""a";r=5"#] {
            headers.append(&quotas, HeaderValue::from_static(line));
            headers.append(&policies, HeaderValue::from_static(r#""a";q=10"#));
        }
        merge(&[policies, quotas.clone()], &mut headers, &OnceLock::new());
        assert_eq!(headers.get_all(quotas).iter().collect::<Vec<_>>(), [r#""a";r=5"#]);
    }
}
