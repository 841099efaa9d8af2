//! The three `X-RateLimit` headers.

use std::cmp::Reverse;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::header_map::insert;
use super::header_style::Reset;
use super::text::numbers;
use crate::decision::{Decision, Outcome, Verdict};
use crate::time::{Timestamp, ceil_seconds};

pub(super) const X_RATE_LIMIT: TripleNames = TripleNames {
    limit: HeaderName::from_static("x-ratelimit-limit"),
    remaining: HeaderName::from_static("x-ratelimit-remaining"),
    reset: HeaderName::from_static("x-ratelimit-reset"),
};
pub(super) const X_RATE_LIMIT_DASHED: TripleNames = TripleNames {
    limit: HeaderName::from_static("x-rate-limit-limit"),
    remaining: HeaderName::from_static("x-rate-limit-remaining"),
    reset: HeaderName::from_static("x-rate-limit-reset"),
};

/// The names of the three `X-RateLimit` headers.
pub(super) struct TripleNames {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

impl TripleNames {
    pub(super) fn all(self) -> [HeaderName; 3] {
        [self.limit, self.remaining, self.reset]
    }

    /// Adds the headers for the limit with this outcome and `capacity`, unless an inner layer has added those of a
    /// tighter limit.
    pub(super) fn write(
        &self,
        reset: Reset,
        decision: &Decision,
        outcome: &Outcome,
        capacity: HeaderValue,
        headers: &mut HeaderMap,
    ) {
        let inner = headers.get(&self.remaining).and_then(|left| left.to_str().ok()?.parse::<u64>().ok());
        // An inner layer that rejected the request has written the headers of the limit that denies.
        let is_inner_denial = decision.is_allowed() && headers.contains_key(RETRY_AFTER);
        if inner.is_some_and(|left| is_inner_denial || left <= outcome.remaining()) {
            return;
        }
        let reset = match reset {
            Reset::Seconds => ceil_seconds(outcome.reset_after()),
            Reset::Epoch => epoch_seconds(decision.at(), outcome),
        };
        insert(headers, self.limit.clone(), capacity);
        let [remaining, reset] = numbers(outcome.remaining(), reset);
        insert(headers, self.remaining.clone(), remaining);
        insert(headers, self.reset.clone(), reset);
    }
}

/// Returns the tighter of two limits: the one that denies for longer, or else the one with less remaining.
pub(super) fn tighter<'a>(one: &'a Outcome, other: &'a Outcome) -> &'a Outcome {
    let looseness = |outcome: &Outcome| {
        let wait = match outcome.verdict() {
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => Some(retry_after.unwrap_or(Duration::MAX)),
        };
        (Reverse(wait), outcome.remaining(), Reverse(outcome.reset_after()))
    };
    if looseness(other) < looseness(one) { other } else { one }
}

fn epoch_seconds(at: Timestamp, outcome: &Outcome) -> u64 {
    let at = u128::from(at.as_micros()) + outcome.reset_after().as_micros();
    u64::try_from(at.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
