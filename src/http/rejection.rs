//! Why a request does not go on.

use std::time::Duration;

use http::StatusCode;

use super::wait::WaitText;
use crate::key::KeyError;
use crate::list::ListAction;
use crate::request::RequestHead;
use crate::time::ceil_seconds;

/// Why a request does not go on, for the closure that words the answer.
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    pub(super) reason: Reason,
    pub(super) violated: &'a [&'a str],
    pub(super) head: RequestHead<'a>,
}

/// What kept a request from going on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit has no room for it.
    Limited {
        /// The shortest wait after which it would be allowed, if nothing else comes. `None` where
        /// no wait can help.
        retry_after: Option<Duration>,
    },
    /// It has no key for a limit.
    MissingKey(KeyError),
    /// It is on a list of those that are always refused.
    Listed(ListAction),
    /// The store could not decide.
    StoreFailed,
}

impl<'a> Rejection<'a> {
    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The status that fits.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey(
                KeyError::FromRequest | KeyError::Extension(_) | KeyError::NotApplicable | KeyError::Ambiguous,
            ) => StatusCode::BAD_REQUEST,
            Reason::MissingKey(KeyError::FromServer) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Listed(refusal) => refusal.status().unwrap_or(StatusCode::FORBIDDEN),
            Reason::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// What `Retry-After` says: whole seconds, rounded up, at least 1. `None` where no wait can
    /// help.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self.reason {
            Reason::Limited { retry_after } => retry_after.map(|wait| ceil_seconds(wait).max(1)),
            Reason::MissingKey(_) | Reason::Listed(_) => None,
            Reason::StoreFailed => Some(1),
        }
    }

    /// The names of the limits that have no room.
    #[must_use]
    pub fn violated(&self) -> &'a [&'a str] {
        self.violated
    }

    /// The head of the request.
    #[must_use]
    pub fn head(&self) -> &RequestHead<'a> {
        &self.head
    }

    /// Returns a sentence for people, which gives away neither keys nor the causes of failures.
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
            (Reason::MissingKey(KeyError::FromRequest | KeyError::Extension(_) | KeyError::NotApplicable), _) => {
                "Missing client identifier."
            }
            (Reason::MissingKey(KeyError::Ambiguous), _) => "Ambiguous client identifier: send it once.",
            (Reason::MissingKey(KeyError::FromServer), _) => "Client address unavailable.",
            (Reason::Listed(ListAction::TooManyRequests), _) => "Too many requests.",
            (Reason::Listed(_), _) => "The request is refused.",
            (Reason::StoreFailed, _) => "Too busy to take the request: try again in a moment.",
        };
        [message, "", "", "", "", ""]
    }
}
