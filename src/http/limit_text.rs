//! The parts of headers that are the same in all responses.

use bytes::Bytes;
use http::HeaderValue;

use super::effective_window::Replenishment;
use super::text::number;
use crate::algorithm::Algorithm;
use crate::time::ceil_seconds;

/// The parts of headers that are the same in all responses, for one limit.
#[derive(Clone, Debug)]
pub(super) struct LimitText {
    /// `"name"`
    pub(super) name: Bytes,
    /// `"name";r=`
    pub(super) remaining: Bytes,
    /// `"name";q=20;w=2`
    pub(super) policy: Bytes,
    pub(super) replenishment: Replenishment,
    /// `20`
    pub(super) capacity: HeaderValue,
}

impl LimitText {
    pub(super) fn of(name: &str, algorithm: &Algorithm) -> Self {
        let escaped = name.replace('\\', r"\\").replace('"', "\\\"");
        let name = format!("\"{escaped}\"");
        let capacity = algorithm.capacity();
        let window = algorithm.window();
        let replenishment = Replenishment::of(algorithm);
        let policy = match window.as_secs() {
            // The length of the window depends on the date, and is added to each response.
            _ if replenishment.calendar().is_some() => format!("{name};q={capacity}"),
            0 => format!("{name};q={capacity}"),
            _ => format!("{name};q={capacity};w={}", integer(ceil_seconds(window))),
        };
        let remaining = format!("{name};r=").into();
        Self { name: name.into(), remaining, policy: policy.into(), replenishment, capacity: number(capacity) }
    }
}

/// Limits a number to the largest integer of structured fields (RFC 9651, section 3.3.1).
#[inline]
pub(super) fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}
