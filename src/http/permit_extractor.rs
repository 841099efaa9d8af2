//! Axum's extractor of a permit.

use std::fmt;

#[cfg(feature = "axum")]
use axum::{
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
#[cfg(feature = "axum")]
use http::{StatusCode, request::Parts};

#[cfg(feature = "axum")]
use super::permit::Permit;

/// The rejection of the extractor of a [permit](crate::Permit): no limiter around the route gives permits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PermitRejection;

impl fmt::Display for PermitRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request has no `Permit`: put a `RateLimitLayer` with `.permits()` around the route")
    }
}

impl std::error::Error for PermitRejection {}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl<S: Sync> FromRequestParts<S> for Permit {
    type Rejection = PermitRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, PermitRejection> {
        Self::of(&parts.extensions).ok_or(PermitRejection)
    }
}

/// Responds with 500, because only the operator can correct the configuration.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl IntoResponse for PermitRejection {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{self}\n")).into_response()
    }
}
