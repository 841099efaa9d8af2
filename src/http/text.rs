//! The text of values: written where it costs least.

use bytes::Bytes;
use http::HeaderValue;
use smallvec::SmallVec;

/// How much of a text lies on the stack.
const SHORT: usize = 256;

/// The text of a value that is put together of pieces: on the stack while it is short.
pub(super) struct Text {
    len: usize,
    short: [u8; SHORT],
    /// All of it, once it is longer.
    long: Vec<u8>,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { len: 0, short: [0; SHORT], long: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn push(&mut self, piece: &[u8]) {
        let end = self.len + piece.len();
        match self.short.get_mut(self.len..end) {
            Some(place) => place.copy_from_slice(piece),
            None => self.push_beyond(piece),
        }
        self.len = end;
    }

    #[cold]
    fn push_beyond(&mut self, piece: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.len]);
        }
        self.long.extend_from_slice(piece);
    }

    #[inline]
    pub(super) fn push_number(&mut self, number: u64) {
        self.push(Number::new().format(number).as_bytes());
    }

    /// Copied once, into memory that is as long as it.
    pub(super) fn value(&self) -> HeaderValue {
        value(self.short.get(..self.len).unwrap_or(&self.long))
    }
}

/// How many numbers need not be formatted.
const FEW: usize = 1_000;

/// Each of them, in three digits.
const DIGITS: &str = {
    const BYTES: [u8; 3 * FEW] = {
        let mut bytes = [b'0'; 3 * FEW];
        let mut number = 0;
        while number < FEW {
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

/// The digits of a number below [`FEW`].
#[inline]
fn few(number: u64) -> Option<&'static str> {
    let number = usize::try_from(number).ok().filter(|number| *number < FEW)?;
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    Some(&DIGITS[3 * number + zeros..3 * number + 3])
}

/// Where the digits of a number are written.
pub(super) struct Number(itoa::Buffer);

impl Number {
    pub(super) fn new() -> Self {
        Self(itoa::Buffer::new())
    }

    #[inline]
    pub(super) fn format(&mut self, number: u64) -> &str {
        match few(number) {
            Some(digits) => digits,
            None => self.0.format(number),
        }
    }
}

/// A number: no allocation for most waits, and one for others, where `From<u64>` would take two.
pub(super) fn number(number: u64) -> HeaderValue {
    match few(number) {
        Some(digits) => HeaderValue::from_static(digits),
        None => value(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// Two numbers, which share what they allocate.
pub(super) fn numbers(one: u64, other: u64) -> [HeaderValue; 2] {
    if few(one).or(few(other)).is_some() {
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

/// The text of all pieces, which are copied once, into memory that is as long as they.
#[inline(always)]
pub(super) fn joined<const N: usize>(pieces: [&[u8]; N]) -> HeaderValue {
    HeaderValue::try_from(concat(pieces)).expect(OURS)
}

/// The same, of whatever bytes.
#[inline(always)]
pub(super) fn concat<const N: usize>(pieces: [&[u8]; N]) -> Vec<u8> {
    let mut text = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| text.extend_from_slice(piece));
    text
}

const OURS: &str = "names are visible ASCII, and the rest is ours";

fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect(OURS)
}
