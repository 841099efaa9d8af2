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
use crate::text::RoundedUp;
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
                let _ = RoundedUp(Duration::from_secs(seconds)).write_to(text);
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

fn push(text: &mut impl Write, piece: &str) {
    // Writing to a buffer can't fail.
    let _ = text.write_str(piece);
}
