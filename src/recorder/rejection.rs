//! Rejected requests: the reason, and the message to the client.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::decision_record::LimitRecord;
use crate::decision::{Decision, OutcomeKind};
use crate::key::KeyError;
use crate::key::head::RequestHead;
use crate::select::ListAction;
use crate::time::ceil_seconds;

/// The reason why a request is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denies the request.
    Limited {
        /// The shortest wait after which the request would be allowed if no other request came. `None` if no wait can
        /// help.
        retry_after: Option<Duration>,
    },
    /// The request lacks the key of a limit.
    MissingKey(KeyError),
    /// The request matches a list of requests that are [always rejected](crate::Builder::always_reject).
    Listed(ListAction),
    /// More than 64 limits apply to requests that are [decided together](crate::RequestLimiter::decide_all).
    TooManyLimits,
    /// The store failed, and the policy is to reject.
    StoreFailed,
}

/// A request that a layer or a [`RequestLimiter`](crate::RequestLimiter) rejects, for a [`Recorder`](crate::Recorder), and for the closure that builds the response:
/// see [`on_reject`](crate::Builder::on_reject).
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    /// The reason for the rejection.
    pub reason: Reason,
    /// The head of the request. If a handler rejects it through a [`Permit`](crate::Permit), the head is empty, unless
    /// the response depends on it: for gRPC, and with [`on_reject`](crate::Builder::on_reject).
    pub head: RequestHead<'a>,
    /// The decision, if a limit denied the request.
    pub(crate) decision: Option<&'a Decision>,
    /// The names of the limits of the limiter, in order.
    pub(crate) names: &'a [Arc<str>],
    /// The wait that the client is told.
    pub(crate) wait: Option<Duration>,
}

impl<'a> Rejection<'a> {
    /// Returns the limits that denied the request. Empty if it was rejected for another [reason](Self::reason).
    pub fn denied_by(&self) -> impl Iterator<Item = LimitRecord<'a>> {
        let Self { decision, names, .. } = *self;
        // A limit that was not charged is not near its limit.
        let records = move |decision| LimitRecord::of_decision(decision, names, 100);
        decision.into_iter().flat_map(records).filter(|limit| limit.outcome.kind() == OutcomeKind::Denied)
    }
}

impl Reason {
    /// Returns the wait after which the client may retry: the exact one for a denial, and 1 s if the store failed.
    /// `None` if no wait can help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { retry_after } => *retry_after,
            Self::MissingKey(_) | Self::Listed(_) | Self::TooManyLimits => None,
            Self::StoreFailed => Some(Duration::from_secs(1)),
        }
    }
}

/// The default response.
impl Rejection<'_> {
    /// Returns the status of the default response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey(KeyError::NotProvided) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::MissingKey(_) | Reason::TooManyLimits => StatusCode::BAD_REQUEST,
            Reason::Listed(action) => action.status().unwrap_or(StatusCode::FORBIDDEN),
            Reason::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the wait after which the client may retry. See [`Reason::retry_after`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.reason.retry_after()
    }

    /// Returns the value of `Retry-After`: [`retry_after`](Self::retry_after) with its
    /// [jitter](crate::Builder::retry_after_jitter), in whole seconds, rounded up, at least 1 and at most the
    /// [longest wait](crate::Builder::max_retry_after). `None` if no wait can help.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.wait.map(|wait| ceil_seconds(wait).max(1))
    }

    /// Returns a message for people. It contains neither keys nor causes of failures.
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = String::new();
        self.push_message(&mut text);
        text
    }

    /// Adds the message to a text: visible ASCII without anything that JSON or gRPC would escape.
    pub(crate) fn push_message(&self, text: &mut impl Write) {
        let message = match (self.reason, self.retry_after_seconds()) {
            (Reason::Limited { .. }, Some(seconds)) => {
                push(text, "Too many requests: try again in ");
                push_wait(text, seconds);
                "."
            }
            (Reason::Limited { .. }, None) => "Too much for one request: it costs more than its limit allows.",
            (Reason::MissingKey(KeyError::Ambiguous), _) => "Ambiguous client identifier: send it once.",
            (Reason::MissingKey(KeyError::NotProvided), _) => "Client address unavailable.",
            (Reason::MissingKey(_), _) => "Missing client identifier.",
            (Reason::Listed(ListAction::TooManyRequests), _) => "Too many requests.",
            (Reason::Listed(_), _) => "The request is not permitted.",
            (Reason::TooManyLimits, _) => "Too many requests at once.",
            (Reason::StoreFailed, _) => "Temporarily unavailable: try again in a moment.",
        };
        push(text, message);
    }
}

/// Adds a number of seconds in its two largest units, such as "7 hours 43 minutes". It is rounded up to the smaller of
/// the two units, so that a client that waits that long never retries too early.
fn push_wait(text: &mut impl Write, seconds: u64) {
    let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
    let (larger, smaller) = match seconds {
        0..60 => ((seconds, " second"), (0, "")),
        60..3_600 => ((seconds / 60, " minute"), (seconds % 60, " second")),
        _ if minutes < 1_440 => ((minutes / 60, " hour"), (minutes % 60, " minute")),
        _ => ((hours / 24, " day"), (hours % 24, " hour")),
    };
    push_count(text, larger);
    if smaller.0 > 0 {
        push(text, " ");
        push_count(text, smaller);
    }
}

fn push_count(text: &mut impl Write, (count, unit): (u64, &str)) {
    push(text, itoa::Buffer::new().format(count));
    push(text, unit);
    if count != 1 {
        push(text, "s");
    }
}

fn push(text: &mut impl Write, piece: &str) {
    // Writing to a buffer can't fail.
    let _ = text.write_str(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_formatted_in_their_two_largest_units_rounded_up() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (2, "2 seconds"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (61, "1 minute 1 second"),
            (119, "1 minute 59 seconds"),
            (120, "2 minutes"),
            (125, "2 minutes 5 seconds"),
            (3_599, "59 minutes 59 seconds"),
            (3_600, "1 hour"),
            (3_601, "1 hour 1 minute"),
            (3_660, "1 hour 1 minute"),
            (3_661, "1 hour 2 minutes"),
            (7_200, "2 hours"),
            (27_779, "7 hours 43 minutes"),
            (27_780, "7 hours 43 minutes"),
            (27_781, "7 hours 44 minutes"),
            (86_340, "23 hours 59 minutes"),
            (86_341, "1 day"),
            (86_400, "1 day"),
            (86_401, "1 day 1 hour"),
            (90_000, "1 day 1 hour"),
            (90_001, "1 day 2 hours"),
            (172_799, "2 days"),
            (273_600, "3 days 4 hours"),
            (366 * 86_400, "366 days"),
            (u64::MAX, "213503982334601 days 8 hours"),
        ] {
            let mut formatted = String::new();
            push_wait(&mut formatted, seconds);
            assert_eq!(formatted, text, "{seconds}");
        }
    }
}
