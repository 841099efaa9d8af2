//! The error of a charge by a permit.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::ledger::Ledger;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::reason::Reason;

/// A charge that was denied, or that the store could not decide: see
/// [`Permit::try_charge`](crate::Permit::try_charge).
///
/// With the feature `axum`, it implements Axum's `IntoResponse`, so that a handler can return it.
#[derive(Debug)]
pub struct ChargeError {
    ledger: Arc<Ledger>,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Denied(Decision),
    Store(StoreError),
}

impl ChargeError {
    pub(super) fn denied(ledger: &Arc<Ledger>, decision: Decision) -> Self {
        Self { ledger: ledger.clone(), cause: Cause::Denied(decision) }
    }

    pub(super) fn store(ledger: &Arc<Ledger>, error: StoreError) -> Self {
        Self { ledger: ledger.clone(), cause: Cause::Store(error) }
    }

    /// Returns the decision that denied the charge, or `None` if the store could not decide.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.cause {
            Cause::Denied(decision) => Some(decision),
            Cause::Store(_) => None,
        }
    }

    /// Creates the response with which the limiter rejects a request for this reason: 429 for a denial and 503 for a
    /// failed store, unless the limiter is configured otherwise. See [`Permit::reject`](crate::Permit::reject).
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        match &self.cause {
            Cause::Denied(decision) => {
                self.ledger.reject(Reason::Limited { retry_after: decision.retry_after() }, Some(decision))
            }
            Cause::Store(_) => self.ledger.reject(Reason::StoreFailed, None),
        }
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Denied(_) => f.write_str("the charge was denied"),
            Cause::Store(error) => write!(f, "the charge could not be decided: {error}"),
        }
    }
}

impl Error for ChargeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Denied(_) => None,
            Cause::Store(error) => error.source(),
        }
    }
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponse for ChargeError {
    fn into_response(self) -> axum::response::Response {
        self.response().map(axum::body::Body::from)
    }
}
