//! Errors of configurations, and checks of the values that limits and their conditions are built from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::position::RulePosition;
use super::printable;

/// The longest period or interval in µs: 366 days.
pub(crate) const LONGEST: u64 = 366 * 86_400 * 1_000_000;

/// The longest time in which a bucket drains in µs: 142 years.
pub(crate) const LONGEST_DRAIN: u64 = 1 << 52;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// Returns `tokens` if there is at least one. `what` names the value in the error.
pub(crate) const fn tokens(what: &'static str, tokens: u32) -> Result<u32, Fault> {
    if tokens == 0 {
        return Err(Fault::new(what).text(" is 0: allow at least 1 token, or leave the limit out"));
    }
    Ok(tokens)
}

/// Returns a span in µs if it is whole microseconds from 1 µs to 366 days. `what` names the value in the error.
pub(crate) const fn span(what: &'static str, is: Duration) -> Result<u64, Fault> {
    if is.is_zero() || is.as_nanos() > LONGEST as u128 * 1_000 || !is.subsec_nanos().is_multiple_of(1_000) {
        return Err(Fault::new(what).text(" is ").span(is).text(": use whole microseconds, from 1 µs to 366 days"));
    }
    Ok(is.as_micros() as u64)
}

/// Returns a day of a month if some month has it.
pub(crate) const fn day_of_month(day: u32) -> Result<u8, Fault> {
    match day {
        1..=31 => Ok(day as u8),
        _ => Err(Fault::new("no month has a day ").number(day as u64).text(": use one from 1 to 31")),
    }
}

/// Returns the most tokens, up to 2^32, that drain in at most 142 years at a rate of `amount` per `interval` µs.
pub(crate) const fn most_tokens(amount: u32, interval: u64) -> u64 {
    let most = LONGEST_DRAIN as u128 * amount as u128 / interval as u128;
    if most > 1 << 32 { 1 << 32 } else { most as u64 }
}

/// Returns the header called `name`, unless it is that of the host, which HTTP/2 transmits as a part of the URI.
pub(crate) fn header_name(name: &str) -> Result<HeaderName, ConfigError> {
    if [":authority", "host"].iter().any(|host| name.eq_ignore_ascii_case(host)) {
        return Err(ConfigError::new(format!(
            "{name:?} is not a header in all versions of HTTP: use `key::host()`, `when::host(…)`, or `key: host` in \
             rules"
        )));
    }
    let invalid = |_| ConfigError::new(format!("{name:?} is not a header's name: use letters, digits and dashes"));
    name.parse().map_err(invalid)
}

/// Checks that a path starts with a slash, and has neither a query, a fragment nor spaces: others match nothing. The
/// parameters of a router's patterns, in braces, may contain anything. `what` names the path in the error. Logs a
/// parameter in another syntax, because it would be compared as text.
pub(crate) fn path(what: &'static str, path: &str) -> Result<(), ConfigError> {
    if !path.starts_with('/') {
        let of_url = || path.find("://").and_then(|at| Some(at + 3 + path[at + 3..].find('/')?));
        let message = match path.find(" /").map(|at| at + 1).or_else(of_url) {
            Some(at) => format!(
                "the {what} {path:?} matches nothing: write {:?} alone, and name a method by `when::method`",
                &path[at..]
            ),
            None => {
                let with_slash = format!("/{path}");
                format!("the {what} {path:?} matches nothing: start it with a slash, {with_slash:?}")
            }
        };
        return Err(ConfigError::new(message));
    }
    let mut depth = 0_u32;
    let end = path.find(|character| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(character, '?' | '#' | ' ')
    });
    let Some(end) = end else {
        #[cfg(feature = "tracing")]
        if path.split('/').any(|part| part.starts_with([':', '*'])) {
            tracing::warn!(path, "a part of a path with `:` or `*` is compared as text: Axum has parameters in braces");
        }
        return Ok(());
    };
    let (without, rest) = path.split_at(end);
    Err(ConfigError::new(format!(
        "the {what} {path:?} matches nothing, because {:?} is not in the paths of requests: write {without:?}, or read \
         the query in a closure",
        &rest[..1]
    )))
}

/// Unwraps a result in a `const fn`, or panics with the fault's message: at compile time in constants.
macro_rules! checked {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(fault) => panic!("{}", fault.as_str()),
        }
    };
}
pub(crate) use checked;

/// An invalid configuration. The message names the invalid value and the remedy.
///
/// `Debug` writes the same message, so that `main` prints it when it returns the error.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::FixedWindow;
///
/// let error = FixedWindow::try_new(0, Duration::from_secs(1)).unwrap_err();
/// assert_eq!(error.to_string(), "limit is 0: allow at least 1 token, or leave the limit out");
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct ConfigError {
    /// The message without the position.
    pub(crate) message: String,
    /// The position of the limit in its rules file, if the error concerns such a limit.
    pub(crate) rule: Option<Arc<RulePosition>>,
}

/// Unwraps `result`, or panics with the error's message at the caller's location.
#[track_caller]
pub(crate) fn or_panic<T>(result: Result<T, ConfigError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl ConfigError {
    /// Creates an error whose message names the invalid value and the remedy.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: printable(&message.into()), rule: None }
    }

    /// Creates the error of a time zone that does not exist.
    #[cfg(feature = "time-zones")]
    pub(crate) fn no_time_zone(zone: &str) -> Self {
        ConfigError::new(format!(
            "there is no time zone {zone:?}: use a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
        ))
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        ConfigError::new(fault.as_str())
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = &self.rule {
            write!(f, "{position}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The maximum length of a message in bytes. Parts that do not fit are left out.
const CAPACITY: usize = 256;

/// The message about a value out of its range, found by a constructor that also runs at compile time. The text is in an
/// inline buffer, because a `const fn` can neither allocate nor use `format!`.
#[derive(Debug)]
pub(crate) struct Fault {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Fault {
    /// Creates a message that begins with `text`.
    pub(crate) const fn new(text: &str) -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }.text(text)
    }

    /// Appends `text`, or nothing if it does not fit.
    pub(crate) const fn text(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        if text.len() <= CAPACITY - self.len {
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

    /// Appends a span in the format of `Duration`'s `Debug`: `1.5ms`.
    pub(crate) const fn span(self, span: Duration) -> Self {
        let (whole, part, width, unit) = match (span.as_secs(), span.subsec_nanos()) {
            (0, nanos @ 0..1_000) => (nanos as u64, 0, 0, "ns"),
            (0, nanos @ 1_000..1_000_000) => (nanos as u64 / 1_000, nanos % 1_000, 3, "µs"),
            (0, nanos) => (nanos as u64 / 1_000_000, nanos % 1_000_000, 6, "ms"),
            (seconds, nanos) => (seconds, nanos, 9, "s"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_match_the_debug_output_of_duration() {
        let nanos = [0, 1, 999, 1_000, 1_500, 10_010, 999_999, 1_000_000, 1_000_001, 999_999_999];
        let short = nanos.map(Duration::from_nanos);
        let long = nanos.map(|nanos| Duration::new(31_622_400, nanos as u32));
        for span in short.into_iter().chain(long).chain([Duration::MAX, Duration::from_secs(60)]) {
            assert_eq!(Fault::new("").span(span).as_str(), format!("{span:?}"));
        }
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 101, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(Fault::new("").number(number).as_str(), number.to_string());
        }
    }

    #[test]
    fn text_that_does_not_fit_is_left_out() {
        let long = "é".repeat(CAPACITY / 2);
        assert_eq!(Fault::new(&long).text("x").as_str(), long);
    }
}
