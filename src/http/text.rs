//! The texts of headers and bodies, formatted with few allocations, and their place in a response.
//!
//! A response that already has as many headers as a `HeaderMap` can hold stays as it is.

use std::fmt;
use std::ops::Deref;

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// A buffer in which texts are built. Short ones take no memory but that of the result. Appending to a `SmallVec` takes
/// more instructions ("allowed, with headers" in `.ci/instructions`).
pub(super) struct Text {
    len: usize,
    /// Has room for a problem document.
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

impl fmt::Write for Text {
    #[inline]
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.extend_from_slice(piece.as_bytes());
        Ok(())
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

/// Creates a header value, in one allocation of its exact length.
pub(super) fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("names of limits, digits and punctuation are visible ASCII")
}

/// Formats a number, in one allocation, where `From<u64>` would make two.
pub(super) fn number(number: u64) -> HeaderValue {
    value(itoa::Buffer::new().format(number).as_bytes())
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
