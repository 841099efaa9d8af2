//! Rejections of gRPC requests. gRPC clients map the HTTP status 429 to `UNAVAILABLE`, which many of them retry at once.
//!
//! The response is "trailers-only": HTTP 200, no body, and the gRPC status in the headers. This also works for gRPC-Web,
//! whose clients look for `grpc-status` in the headers before they read the body.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::grpc_details;
use super::header_map::insert;
use super::headers::NO_STORE;
use super::rejection::Rejection;
use super::text::number;
use crate::reason::Reason;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

// https://grpc.io/docs/guides/status-codes/
const INVALID_ARGUMENT: u64 = 3;
const PERMISSION_DENIED: u64 = 7;
const RESOURCE_EXHAUSTED: u64 = 8;
const INTERNAL: u64 = 13;
const UNAVAILABLE: u64 = 14;

/// Builds the response to a gRPC request. `content_type` is the result of [`content_type`](crate::grpc::content_type).
/// Reserves room for `more_headers` headers.
pub(super) fn response(rejection: &Rejection<'_>, content_type: &'static str, more_headers: usize) -> Response<Bytes> {
    let status = match rejection.status() {
        StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
        StatusCode::BAD_REQUEST => INVALID_ARGUMENT,
        StatusCode::FORBIDDEN => PERMISSION_DENIED,
        StatusCode::SERVICE_UNAVAILABLE => UNAVAILABLE,
        _ => INTERNAL,
    };
    let message = rejection.message();
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    // The six headers below, and `Content-Length`, which Axum adds.
    headers.reserve(7 + more_headers);
    insert(headers, CONTENT_TYPE, HeaderValue::from_static(content_type));
    insert(headers, CACHE_CONTROL, NO_STORE);
    insert(headers, GRPC_STATUS, number(status));
    let wait = match rejection.reason() {
        Reason::Limited { retry_after } => Some(retry_after),
        Reason::StoreFailed => Some(rejection.retry_after_seconds().map(Duration::from_secs)),
        Reason::Listed(_) => Some(None),
        Reason::MissingKey(_) => None,
    };
    if let Some(details) = grpc_details::header(status, &message, wait.flatten(), rejection.violated()) {
        insert(headers, GRPC_STATUS_DETAILS, details);
    }
    if let Some(retry_after) = wait {
        // Negative: don't retry (gRFC A6). The longest wait that fits is 24 days.
        let pushback = match retry_after {
            Some(wait) => number(wait.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u64),
            None => HeaderValue::from_static("-1"),
        };
        insert(headers, GRPC_RETRY_PUSHBACK_MS, pushback);
    }
    // No character of a message needs percent-encoding.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
        insert(headers, GRPC_MESSAGE, message);
    }
    response
}
