//! Permits as Axum's extractors, and errors as its responses.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use super::permit::{ChargeError, Permit, PermitRejection};
use crate::error::StoreError;
use crate::limiter::AcquireError;

impl<S: Sync> FromRequestParts<S> for Permit {
    type Rejection = PermitRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, PermitRejection> {
        Self::of(&parts.extensions).ok_or(PermitRejection)
    }
}

/// Responds with 500, because only the operator can correct the configuration.
impl IntoResponse for PermitRejection {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{self}\n")).into_response()
    }
}

impl IntoResponse for ChargeError {
    fn into_response(self) -> Response {
        self.response().map(Body::from)
    }
}

impl IntoResponse for AcquireError {
    fn into_response(self) -> Response {
        self.response().map(Body::from)
    }
}

impl IntoResponse for StoreError {
    fn into_response(self) -> Response {
        self.response().map(Body::from)
    }
}
