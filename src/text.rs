//! Text with numbers and durations that a `const fn` can write.

use std::fmt;
use std::time::Duration;

/// Text in an inline buffer of `N` bytes, because a `const fn` can neither allocate nor use `format!`. Parts that do
/// not fit are left out.
#[derive(Debug)]
pub(crate) struct InlineText<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// Returns a duration for people, in its two largest units, rounded up: `15 hours 13 minutes`, `3.4 seconds`, `350 ms`.
/// A client that waits that long never retries too early.
pub(crate) fn rounded_up(span: Duration) -> InlineText<64> {
    let (seconds, nanos) = (span.as_secs(), span.subsec_nanos());
    let up_to = |step: u64| {
        let seconds = seconds.saturating_add(u64::from(nanos > 0));
        Duration::from_secs(seconds.checked_next_multiple_of(step).unwrap_or(seconds))
    };
    let rounded = match (seconds, nanos) {
        (0, 0..1_000_000) => Duration::new(0, nanos.next_multiple_of(1_000)),
        (0, _) => Duration::new(0, nanos.next_multiple_of(1_000_000)),
        (1..60, _) => Duration::new(seconds, nanos.next_multiple_of(100_000_000)),
        (60..3_600, _) => up_to(1),
        (3_600..86_400, _) => up_to(60),
        _ => up_to(3_600),
    };
    exact(rounded)
}

/// Returns a duration in full, for errors about it: `1 hour 0.5 seconds`.
pub(crate) fn exact(span: Duration) -> InlineText<64> {
    InlineText::new("").duration(span)
}

impl<const N: usize> InlineText<N> {
    /// Creates a text that begins with `text`.
    pub(crate) const fn new(text: &str) -> Self {
        Self { bytes: [0; N], len: 0 }.text(text)
    }

    /// Appends `text`, or nothing if it does not fit.
    pub(crate) const fn text(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        if text.len() <= N - self.len {
            let (_, free) = self.bytes.split_at_mut(self.len);
            free.split_at_mut(text.len()).0.copy_from_slice(text);
            self.len += text.len();
        }
        self
    }

    /// Appends a number in decimal.
    pub(crate) const fn number(self, number: u64) -> Self {
        self.digits(number, 1)
    }

    /// Appends a duration in full: `1 hour 0.5 seconds`, `1.5 ms`.
    pub(crate) const fn duration(self, span: Duration) -> Self {
        let (seconds, nanos) = (span.as_secs(), span.subsec_nanos());
        let (whole, fraction, width, unit) = match (seconds, nanos) {
            (0, 1..1_000) => (nanos as u64, 0, 0, " ns"),
            (0, 1_000..1_000_000) => (nanos as u64 / 1_000, nanos % 1_000, 3, " µs"),
            (0, 1_000_000..) => (nanos as u64 / 1_000_000, nanos % 1_000_000, 6, " ms"),
            _ if nanos == 0 && seconds % 60 == 1 => (1, 0, 0, " second"),
            _ => (seconds % 60, nanos, 9, " seconds"),
        };
        let start = self.len;
        let text = self.count(start, seconds / 86_400, " day").count(start, seconds / 3_600 % 24, " hour");
        let text = text.count(start, seconds / 60 % 60, " minute");
        if text.len > start && whole == 0 && fraction == 0 {
            return text;
        }
        let text = text.space(start).number(whole);
        let text = if fraction == 0 { text } else { text.text(".").fraction(fraction, width) };
        text.text(unit)
    }

    /// Appends a count of a unit, unless it is 0, as a part of a duration that begins at `start`.
    const fn count(self, start: usize, count: u64, unit: &str) -> Self {
        if count == 0 {
            return self;
        }
        let text = self.space(start).number(count).text(unit);
        if count == 1 { text } else { text.text("s") }
    }

    /// Appends a space, unless it would be the first character from `start`.
    const fn space(self, start: usize) -> Self {
        if self.len == start { self } else { self.text(" ") }
    }

    /// Appends the digits behind a decimal point, without trailing zeros.
    const fn fraction(self, mut part: u32, mut width: usize) -> Self {
        while part.is_multiple_of(10) {
            part /= 10;
            width -= 1;
        }
        self.digits(part as u64, width)
    }

    /// Appends a number in decimal with at least `width` digits.
    const fn digits(self, number: u64, width: usize) -> Self {
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

impl<const N: usize> fmt::Display for InlineText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_to_their_two_largest_units() {
        let [micros, millis, seconds] = [Duration::from_micros, Duration::from_millis, Duration::from_secs];
        for (span, text) in [
            (Duration::ZERO, "0 seconds"),
            (Duration::from_nanos(1), "1 µs"),
            (micros(999), "999 µs"),
            (micros(1_001), "2 ms"),
            (millis(350), "350 ms"),
            (micros(999_001), "1 second"),
            (millis(1_001), "1.1 seconds"),
            (millis(3_400), "3.4 seconds"),
            (millis(59_901), "1 minute"),
            (millis(60_001), "1 minute 1 second"),
            (millis(3_599_001), "1 hour"),
            (micros(54_720_000_001), "15 hours 13 minutes"),
            (seconds(1), "1 second"),
            (seconds(2), "2 seconds"),
            (seconds(59), "59 seconds"),
            (seconds(60), "1 minute"),
            (seconds(61), "1 minute 1 second"),
            (seconds(119), "1 minute 59 seconds"),
            (seconds(120), "2 minutes"),
            (seconds(125), "2 minutes 5 seconds"),
            (seconds(3_599), "59 minutes 59 seconds"),
            (seconds(3_600), "1 hour"),
            (seconds(3_601), "1 hour 1 minute"),
            (seconds(3_660), "1 hour 1 minute"),
            (seconds(3_661), "1 hour 2 minutes"),
            (seconds(7_200), "2 hours"),
            (seconds(27_779), "7 hours 43 minutes"),
            (seconds(27_780), "7 hours 43 minutes"),
            (seconds(27_781), "7 hours 44 minutes"),
            (seconds(86_340), "23 hours 59 minutes"),
            (seconds(86_341), "1 day"),
            (seconds(86_400), "1 day"),
            (seconds(86_401), "1 day 1 hour"),
            (seconds(90_000), "1 day 1 hour"),
            (seconds(90_001), "1 day 2 hours"),
            (seconds(172_799), "2 days"),
            (seconds(273_600), "3 days 4 hours"),
            (seconds(366 * 86_400), "366 days"),
        ] {
            assert_eq!(rounded_up(span).as_str(), text, "{span:?}");
        }
    }

    #[test]
    fn exact_durations_have_all_units() {
        for (span, text) in [
            (Duration::ZERO, "0 seconds"),
            (Duration::from_nanos(1), "1 ns"),
            (Duration::from_nanos(1_500), "1.5 µs"),
            (Duration::from_nanos(10_010), "10.01 µs"),
            (Duration::from_nanos(1_000_001), "1.000001 ms"),
            (Duration::from_nanos(999_999_999), "999.999999 ms"),
            (Duration::new(1, 500_000_000), "1.5 seconds"),
            (Duration::new(60, 1), "1 minute 0.000000001 seconds"),
            (Duration::from_secs(90_061), "1 day 1 hour 1 minute 1 second"),
            (Duration::from_secs(400 * 86_400), "400 days"),
            (Duration::MAX, "213503982334601 days 7 hours 15.999999999 seconds"),
        ] {
            assert_eq!(exact(span).as_str(), text, "{span:?}");
            assert_eq!(InlineText::<64>::new("in ").duration(span).as_str(), format!("in {text}"));
        }
        assert_eq!(rounded_up(Duration::MAX).as_str(), "213503982334601 days 7 hours 15 seconds");
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 101, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(InlineText::<20>::new("").number(number).as_str(), number.to_string());
        }
    }

    #[test]
    fn text_that_does_not_fit_is_left_out() {
        let long = "é".repeat(10);
        assert_eq!(InlineText::<20>::new(&long).text("x").as_str(), long);
    }
}
