//! The action for requests that match a list.

use http::StatusCode;

/// The action for requests that match a list: see
/// [`always_reject_with`](crate::Builder::always_reject_with).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ListAction {
    /// Rejects the request with 403, and gRPC requests with `PERMISSION_DENIED`.
    #[default]
    Forbidden,
    /// Rejects the request with 429, without `Retry-After`, and gRPC requests with `RESOURCE_EXHAUSTED`.
    TooManyRequests,
    /// Only reports [`Event::ListMatched`](crate::Event::ListMatched), to try a list out. The limits then apply as
    /// usual.
    Shadow,
}

impl ListAction {
    /// Returns the status of the rejection, or `None` for [`Shadow`](Self::Shadow).
    #[must_use]
    pub const fn status(self) -> Option<StatusCode> {
        match self {
            Self::Forbidden => Some(StatusCode::FORBIDDEN),
            Self::TooManyRequests => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Shadow => None,
        }
    }
}
