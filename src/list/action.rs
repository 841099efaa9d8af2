//! How those are answered whom a list refuses.

use http::StatusCode;

/// How requests are answered that a list [always refuses](crate::RateLimitLayer::always_reject_with).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ListAction {
    /// With 403; gRPC requests with `PERMISSION_DENIED`.
    #[default]
    Forbidden,
    /// With 429, and no hint when to try again; gRPC requests with `RESOURCE_EXHAUSTED`.
    TooManyRequests,
    /// They are not, to try a list out: [`Event::ListMatched`](crate::Event::ListMatched) is told, and they
    /// go on.
    Shadow,
}

impl ListAction {
    /// The status, unless there is no refusal.
    #[must_use]
    pub const fn status(self) -> Option<StatusCode> {
        match self {
            Self::Forbidden => Some(StatusCode::FORBIDDEN),
            Self::TooManyRequests => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Shadow => None,
        }
    }
}
