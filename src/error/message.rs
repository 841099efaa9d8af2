//! Formatting at compile time, so that panics in constants can name values.

use std::time::Duration;

/// The maximum length of a message in bytes. Parts that do not fit are left out.
const CAPACITY: usize = 256;

/// A text in an inline buffer, because a `const fn` can neither allocate nor use `format!`.
pub(crate) struct Message {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Message {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    /// Appends `text`, or nothing if it does not fit.
    pub(super) const fn text(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        if text.len() <= CAPACITY - self.len {
            let (_, free) = self.bytes.split_at_mut(self.len);
            free.split_at_mut(text.len()).0.copy_from_slice(text);
            self.len += text.len();
        }
        self
    }

    /// Appends a number in decimal.
    pub(super) const fn number(self, number: u128) -> Self {
        self.digits(number, 1)
    }

    /// Appends a span in the format of `Duration`'s `Debug`: `1.5ms`.
    pub(super) const fn span(self, span: Duration) -> Self {
        let (whole, part, width, unit) = match (span.as_secs(), span.subsec_nanos()) {
            (0, nanos @ 0..1_000) => (nanos as u128, 0, 0, "ns"),
            (0, nanos @ 1_000..1_000_000) => (nanos as u128 / 1_000, nanos % 1_000, 3, "µs"),
            (0, nanos) => (nanos as u128 / 1_000_000, nanos % 1_000_000, 6, "ms"),
            (seconds, nanos) => (seconds as u128, nanos, 9, "s"),
        };
        let whole = self.number(whole);
        let fraction = if part == 0 { whole } else { whole.text(".").fraction(part, width) };
        fraction.text(unit)
    }

    /// Appends the digits behind a decimal point, without trailing zeros.
    const fn fraction(self, mut part: u32, mut width: usize) -> Self {
        while part.is_multiple_of(10) {
            part /= 10;
            width -= 1;
        }
        self.digits(part as u128, width)
    }

    /// Appends a number in decimal with at least `width` digits.
    const fn digits(self, number: u128, width: usize) -> Self {
        let this = if number >= 10 || width > 1 { self.digits(number / 10, width.saturating_sub(1)) } else { self };
        let digit = (number % 10) as usize;
        this.text("0123456789".split_at(digit).1.split_at(1).0)
    }

    pub(crate) const fn as_str(&self) -> &str {
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            // Unreachable: only whole texts are appended.
            Err(_) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_match_the_debug_output_of_duration() {
        let nanos = [0, 1, 999, 1_000, 1_500, 10_010, 999_999, 1_000_000, 1_000_001, 999_999_999];
        let short = nanos.map(Duration::from_nanos);
        let long = nanos.map(|nanos| Duration::new(31_622_400, nanos as u32));
        for span in short.into_iter().chain(long).chain([Duration::MAX, Duration::from_secs(60)]) {
            assert_eq!(Message::new().span(span).as_str(), format!("{span:?}"));
        }
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 101, u128::from(u32::MAX), u128::MAX] {
            assert_eq!(Message::new().number(number).as_str(), number.to_string());
        }
    }

    #[test]
    fn text_that_does_not_fit_is_left_out() {
        let long = "é".repeat(CAPACITY / 2);
        assert_eq!(Message::new().text(&long).text("x").as_str(), long);
    }
}
