//! Rejections of requests.

use std::time::Duration;

use http::StatusCode;

use super::wait::WaitText;
use crate::key::KeyError;
use crate::list::ListAction;
use crate::reason::Reason;
use crate::request::RequestHead;
use crate::time::ceil_seconds;

/// A rejected request, for the closure that builds the response: see
/// [`on_reject`](crate::Builder::on_reject).
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    pub(super) reason: Reason,
    pub(super) violated: &'a [&'a str],
    pub(super) head: RequestHead<'a>,
}

impl<'a> Rejection<'a> {
    /// Returns why the request is rejected.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the status of the default response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey(
                KeyError::NotSent | KeyError::MissingExtension(_) | KeyError::NotApplicable | KeyError::Ambiguous,
            ) => StatusCode::BAD_REQUEST,
            Reason::MissingKey(KeyError::NotProvided) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Listed(action) => action.status().unwrap_or(StatusCode::FORBIDDEN),
            Reason::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the wait after which the client may retry: the exact one for a denial, and 1 s if the store failed.
    /// `None` if no wait can help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Limited { retry_after } => retry_after,
            Reason::MissingKey(_) | Reason::Listed(_) => None,
            Reason::StoreFailed => Some(Duration::from_secs(1)),
        }
    }

    /// Returns the value of `Retry-After`: [`retry_after`](Self::retry_after) in whole seconds, rounded up, at least 1.
    /// `None` if no wait can help.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after().map(|wait| ceil_seconds(wait).max(1))
    }

    /// Returns the names of the limits that deny the request.
    #[must_use]
    pub fn violated(&self) -> &'a [&'a str] {
        self.violated
    }

    /// Returns the head of the request.
    #[must_use]
    pub fn head(&self) -> &RequestHead<'a> {
        &self.head
    }

    /// Returns a message for people. It contains neither keys nor causes of failures.
    #[must_use]
    pub fn message(&self) -> String {
        self.sentence(&mut WaitText::new()).concat()
    }

    /// Returns the message in pieces: visible ASCII without anything that JSON or gRPC would escape.
    #[inline]
    pub(super) fn sentence<'n>(&self, wait: &'n mut WaitText) -> [&'n str; 6] {
        let message = match (self.reason, self.retry_after_seconds()) {
            (Reason::Limited { .. }, Some(seconds)) => {
                let [number, unit, smaller_number, smaller_unit] = wait.format(seconds);
                return ["Too many requests: try again in ", number, unit, smaller_number, smaller_unit, "."];
            }
            (Reason::Limited { .. }, None) => "Too much for one request: it costs more than its limit allows.",
            (Reason::MissingKey(KeyError::NotSent | KeyError::MissingExtension(_) | KeyError::NotApplicable), _) => {
                "Missing client identifier."
            }
            (Reason::MissingKey(KeyError::Ambiguous), _) => "Ambiguous client identifier: send it once.",
            (Reason::MissingKey(KeyError::NotProvided), _) => "Client address unavailable.",
            (Reason::Listed(ListAction::TooManyRequests), _) => "Too many requests.",
            (Reason::Listed(_), _) => "The request is not permitted.",
            (Reason::StoreFailed, _) => "Temporarily unavailable: try again in a moment.",
        };
        [message, "", "", "", "", ""]
    }
}
