//! Header values: formats them with few allocations, and writes them to responses. A response that already has as many
//! headers as a `HeaderMap` can hold stays as it is.

use std::ops::Deref;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

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

/// Formats a number. Allocates nothing for numbers below 1,000, such as most waits, and once for others, where
/// `From<u64>` would allocate twice.
pub(super) fn number(number: u64) -> HeaderValue {
    /// The numbers below 1,000, with three digits each.
    const DIGITS: [u8; 3_000] = {
        let mut digits = [b'0'; 3_000];
        let mut number = 0;
        while number < 1_000 {
            digits[3 * number] += (number / 100) as u8;
            digits[3 * number + 1] += (number / 10 % 10) as u8;
            digits[3 * number + 2] += (number % 10) as u8;
            number += 1;
        }
        digits
    };
    static TABLE: &[u8] = &DIGITS;
    if number < 1_000 {
        let zeros = usize::from(number < 100) + usize::from(number < 10);
        let digits = &TABLE[3 * number as usize + zeros..3 * number as usize + 3];
        return HeaderValue::from_maybe_shared(Bytes::from_static(digits)).expect("digits are visible ASCII");
    }
    value(itoa::Buffer::new().format(number).as_bytes())
}

/// Formats two numbers, which share an allocation.
pub(super) fn numbers(one: u64, other: u64) -> [HeaderValue; 2] {
    if one.min(other) < 1_000 {
        return [one, other].map(number);
    }
    let mut text: SmallVec<[u8; 64]> = SmallVec::new();
    text.extend_from_slice(itoa::Buffer::new().format(one).as_bytes());
    let first = text.len();
    text.extend_from_slice(itoa::Buffer::new().format(other).as_bytes());
    let mut second = Bytes::from_owner(text);
    [second.split_to(first), second]
        .map(|digits| HeaderValue::from_maybe_shared(digits).expect("digits are visible ASCII"))
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
