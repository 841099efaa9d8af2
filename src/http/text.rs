//! Formats header values with few allocations.

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;

/// The size of the inline buffer.
const INLINE_CAPACITY: usize = 256;

/// A buffer that builds a header value from pieces. Short values need no heap buffer.
pub(super) struct Text {
    len: usize,
    inline: [u8; INLINE_CAPACITY],
    /// The whole text, if it does not fit into `inline`.
    heap: Vec<u8>,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { len: 0, inline: [0; INLINE_CAPACITY], heap: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn push(&mut self, piece: &[u8]) {
        let end = self.len + piece.len();
        match self.inline.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(piece),
            None => self.push_to_heap(piece),
        }
        self.len = end;
    }

    #[cold]
    fn push_to_heap(&mut self, piece: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.len]);
        }
        self.heap.extend_from_slice(piece);
    }

    #[inline]
    pub(super) fn push_number(&mut self, number: u64) {
        self.push(Number::new().format(number).as_bytes());
    }

    /// Returns the value, in one allocation of its exact length.
    pub(super) fn value(&self) -> HeaderValue {
        value(self.inline.get(..self.len).unwrap_or(&self.heap))
    }
}

/// The numbers below this are in [`DIGITS`], so that they need no formatting.
const TABLE_LEN: usize = 1_000;

/// The numbers below [`TABLE_LEN`], with three digits each.
const DIGITS: &str = {
    const BYTES: [u8; 3 * TABLE_LEN] = {
        let mut bytes = [b'0'; 3 * TABLE_LEN];
        let mut number = 0;
        while number < TABLE_LEN {
            bytes[3 * number] += (number / 100) as u8;
            bytes[3 * number + 1] += (number / 10 % 10) as u8;
            bytes[3 * number + 2] += (number % 10) as u8;
            number += 1;
        }
        bytes
    };
    match str::from_utf8(&BYTES) {
        Ok(digits) => digits,
        Err(_) => panic!("digits are ASCII"),
    }
};

/// Returns the digits of a number below [`TABLE_LEN`].
#[inline]
fn table_digits(number: u64) -> Option<&'static str> {
    let number = usize::try_from(number).ok().filter(|number| *number < TABLE_LEN)?;
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    Some(&DIGITS[3 * number + zeros..3 * number + 3])
}

/// A buffer for the digits of a number.
pub(super) struct Number(itoa::Buffer);

impl Number {
    pub(super) fn new() -> Self {
        Self(itoa::Buffer::new())
    }

    #[inline]
    pub(super) fn format(&mut self, number: u64) -> &str {
        match table_digits(number) {
            Some(digits) => digits,
            None => self.0.format(number),
        }
    }
}

/// Formats a number. Allocates nothing for numbers below [`TABLE_LEN`], such as most waits, and once for others, where
/// `From<u64>` would allocate twice.
pub(super) fn number(number: u64) -> HeaderValue {
    match table_digits(number) {
        Some(digits) => HeaderValue::from_static(digits),
        None => value(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// Formats two numbers, which share an allocation.
pub(super) fn numbers(one: u64, other: u64) -> [HeaderValue; 2] {
    if table_digits(one).or(table_digits(other)).is_some() {
        return [number(one), number(other)];
    }
    let mut digits: SmallVec<[u8; 64]> = SmallVec::new();
    let [first, both] = [one, other].map(|number| {
        digits.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        digits.len()
    });
    let digits = Bytes::from_owner(digits);
    let value = |digits| HeaderValue::from_maybe_shared(digits).expect("digits are visible ASCII");
    [value(digits.slice(..first)), value(digits.slice(first..both))]
}

/// Joins pieces to a header value, in one allocation of its exact length.
#[inline(always)]
pub(super) fn joined<const N: usize>(pieces: [&[u8]; N]) -> HeaderValue {
    HeaderValue::try_from(concat(pieces)).expect(VISIBLE_ASCII)
}

/// Joins pieces of any bytes, in one allocation of their total length.
#[inline(always)]
pub(super) fn concat<const N: usize>(pieces: [&[u8]; N]) -> Vec<u8> {
    let mut text = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| text.extend_from_slice(piece));
    text
}

const VISIBLE_ASCII: &str = "names of limits, digits and punctuation are visible ASCII";

fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect(VISIBLE_ASCII)
}
