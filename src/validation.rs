//! Checks of the tokens and spans that limits are built from.

use std::time::Duration;

use crate::error::Fault;

/// The longest period or interval in µs: 366 days.
pub(crate) const LONGEST: u64 = 366 * 86_400 * 1_000_000;

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
