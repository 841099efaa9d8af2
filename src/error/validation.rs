//! Errors of configurations, and checks of the values that limits and their conditions are built from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::position::RulePosition;
use super::printable;
use crate::text::InlineText;

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
        return Err(Fault::new(what).text(" is ").duration(is).text(": use whole microseconds, from 1 µs to 366 days"));
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
    /// Creates the error of a store that [can't keep a limit](crate::Store::prepare). The message names the invalid
    /// value and the remedy.
    pub fn new(message: impl Into<String>) -> Self {
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

/// The message about a value out of its range, found by a constructor that also runs at compile time.
pub(crate) type Fault = InlineText<256>;
