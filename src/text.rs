//! Durations for people, and text that a `const fn` can write.

use std::fmt;
use std::time::Duration;

/// Text in an inline buffer of `N` bytes, because a `const fn` can neither allocate nor use `format!`. Parts that do
/// not fit are left out.
#[derive(Debug)]
pub(crate) struct InlineText<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// A duration for people, in its two largest units, rounded up: `15 hours 13 minutes`, `3.4 seconds`, `350 ms`. A client
/// that waits that long never retries too early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundedUp(pub(crate) Duration);

impl RoundedUp {
    pub(crate) fn write_to(self, text: &mut impl fmt::Write) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        let rounded = match (seconds, nanos) {
            (0, 1..1_000_000) => nanos.next_multiple_of(1_000),
            (0, 1_000_000..) => nanos.next_multiple_of(1_000_000),
            (1..60, 1..) => nanos.next_multiple_of(100_000_000),
            _ => 0,
        };
        if rounded > 0 {
            return text.write_str(exact(Duration::new(seconds, rounded)).as_str());
        }
        let seconds = seconds.saturating_add(u64::from(nanos > 0));
        let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
        let (larger, smaller) = match seconds {
            0..60 => ((seconds, " second"), (0, "")),
            60..3_600 => ((seconds / 60, " minute"), (seconds % 60, " second")),
            _ if minutes < 1_440 => ((minutes / 60, " hour"), (minutes % 60, " minute")),
            _ => ((hours / 24, " day"), (hours % 24, " hour")),
        };
        write_count(text, larger)?;
        if smaller.0 == 0 {
            return Ok(());
        }
        text.write_str(" ")?;
        write_count(text, smaller)
    }
}

fn write_count(text: &mut impl fmt::Write, (count, unit): (u64, &str)) -> fmt::Result {
    text.write_str(itoa::Buffer::new().format(count))?;
    text.write_str(unit)?;
    if count == 1 { Ok(()) } else { text.write_str("s") }
}

impl fmt::Display for RoundedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_to(f)
    }
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
        self.push(text.as_bytes());
        self
    }

    /// Appends a number in decimal.
    pub(crate) const fn number(mut self, number: u64) -> Self {
        self.push_digits(number, 1);
        self
    }

    /// Appends a duration in full: `1 hour 0.5 seconds`, `1.5 ms`.
    pub(crate) const fn duration(mut self, span: Duration) -> Self {
        let (seconds, nanos, start) = (span.as_secs(), span.subsec_nanos(), self.len);
        self.push_count(start, seconds / 86_400, b" day");
        self.push_count(start, seconds / 3_600 % 24, b" hour");
        self.push_count(start, seconds / 60 % 60, b" minute");
        let (whole, fraction, width, unit): (_, _, _, &[u8]) = match (seconds, nanos) {
            (0, 1..1_000) => (nanos as u64, 0, 0, b" ns"),
            (0, 1_000..1_000_000) => (nanos as u64 / 1_000, nanos % 1_000, 3, " µs".as_bytes()),
            (0, 1_000_000..) => (nanos as u64 / 1_000_000, nanos % 1_000_000, 6, b" ms"),
            _ if nanos == 0 && seconds % 60 == 1 => (1, 0, 0, b" second"),
            _ => (seconds % 60, nanos, 9, b" seconds"),
        };
        if self.len == start || whole > 0 || fraction > 0 {
            self.push_space(start);
            self.push_digits(whole, 1);
            if fraction > 0 {
                self.push_fraction(fraction, width);
            }
            self.push(unit);
        }
        self
    }

    /// Appends a count of a unit, unless it is 0, as a part of a duration that begins at `start`.
    const fn push_count(&mut self, start: usize, count: u64, unit: &[u8]) {
        if count > 0 {
            self.push_space(start);
            self.push_digits(count, 1);
            self.push(unit);
            if count > 1 {
                self.push(b"s");
            }
        }
    }

    /// Appends a space, unless it would be the first character from `start`.
    const fn push_space(&mut self, start: usize) {
        if self.len > start {
            self.push(b" ");
        }
    }

    /// Appends a decimal point, and the digits behind it, without trailing zeros.
    const fn push_fraction(&mut self, mut part: u32, mut width: usize) {
        while part.is_multiple_of(10) {
            part /= 10;
            width -= 1;
        }
        self.push(b".");
        self.push_digits(part as u64, width);
    }

    /// Appends a number in decimal with at least `width` digits.
    const fn push_digits(&mut self, mut number: u64, width: usize) {
        let (mut digits, mut start) = ([b'0'; 20], 20);
        while number > 0 || 20 - start < width {
            start -= 1;
            digits[start] += (number % 10) as u8;
            number /= 10;
        }
        self.push(digits.split_at(start).1);
    }

    const fn push(&mut self, text: &[u8]) {
        if text.len() <= N - self.len {
            let (_, free) = self.bytes.split_at_mut(self.len);
            free.split_at_mut(text.len()).0.copy_from_slice(text);
            self.len += text.len();
        }
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
            assert_eq!(RoundedUp(span).to_string(), text, "{span:?}");
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
        assert_eq!(RoundedUp(Duration::MAX).to_string(), "213503982334601 days 8 hours");
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
