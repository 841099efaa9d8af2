//! Checks of the values that limits and their conditions are built from.

use std::time::Duration;

use http::HeaderName;

use super::config::{ConfigError, Fault};

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
        return Err(Fault::Zero { what });
    }
    Ok(tokens)
}

/// Returns a span in µs if it is whole microseconds from 1 µs to 366 days. `what` names the value in the error.
pub(crate) const fn span(what: &'static str, is: Duration) -> Result<u64, Fault> {
    if is.is_zero() {
        return Err(Fault::PeriodZero { what });
    }
    if is.as_micros() > LONGEST as u128 || (is.as_micros() == LONGEST as u128 && is.subsec_nanos() > 0) {
        return Err(Fault::PeriodTooLong { what, is });
    }
    if !is.subsec_nanos().is_multiple_of(1_000) {
        return Err(Fault::PeriodNotWhole { what, is });
    }
    Ok(is.as_micros() as u64)
}

/// Returns the most tokens, up to 2^32, that drain in at most 142 years at a rate of `amount` per `interval` µs.
pub(crate) const fn most_tokens(amount: u32, interval: u64) -> u64 {
    let most = LONGEST_DRAIN as u128 * amount as u128 / interval as u128;
    if most > 1 << 32 { 1 << 32 } else { most as u64 }
}

/// Returns the header called `name`.
pub(crate) fn header_name(name: &str) -> Result<HeaderName, ConfigError> {
    let invalid = |_| ConfigError::new(format!("{name:?} is not a header's name: use letters, digits and dashes"));
    name.parse().map_err(invalid)
}

/// Checks that a path starts with a slash, because others match nothing. `what` names the path in the error.
pub(crate) fn path(what: &'static str, path: &str) -> Result<(), ConfigError> {
    if path.starts_with('/') {
        return Ok(());
    }
    let with_slash = format!("/{path}");
    Err(ConfigError::new(format!("the {what} {path:?} matches nothing: start it with a slash, {with_slash:?}")))
}

/// Unwraps a result in a `const fn`, or panics with the fault's message: at compile time in constants.
macro_rules! checked {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(fault) => panic!("{}", fault.message().as_str()),
        }
    };
}
pub(crate) use checked;
