//! The reason of a rejection.

use std::time::Duration;

use crate::key::KeyError;
use crate::select::ListAction;

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
    /// The store failed, and the policy is to reject.
    StoreFailed,
}
