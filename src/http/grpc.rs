//! Refusals for gRPC: an HTTP status says nothing to its clients but "unavailable, try again".
//!
//! A refusal is "trailers-only": HTTP 200, no body, and the status among the headers.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::headers::NO_STORE;
use super::rejection::{Reason, Rejection};
use super::text::number;
use crate::key::Missing;
use crate::list::Refusal;
use crate::request::RequestHead;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

// https://grpc.io/docs/guides/status-codes/
const INVALID_ARGUMENT: u64 = 3;
const PERMISSION_DENIED: u64 = 7;
const RESOURCE_EXHAUSTED: u64 = 8;
const INTERNAL: u64 = 13;
const UNAVAILABLE: u64 = 14;

/// The content type of a gRPC or gRPC-Web request, which its response must have too.
pub(super) fn content_type<'a>(head: &RequestHead<'a>) -> Option<&'a HeaderValue> {
    let value = head.headers.get(CONTENT_TYPE)?;
    let rest = value.as_bytes().strip_prefix(b"application/grpc")?;
    matches!(rest.first(), None | Some(b'+' | b'-' | b';')).then_some(value)
}

pub(super) fn response(rejection: &Rejection<'_>, content_type: &HeaderValue, more: usize) -> Response<Bytes> {
    let status = match rejection.reason() {
        Reason::Limited { .. } => RESOURCE_EXHAUSTED,
        Reason::MissingKey(
            Missing::FromRequest | Missing::Extension(_) | Missing::NotApplicable | Missing::Ambiguous,
        ) => INVALID_ARGUMENT,
        Reason::MissingKey(Missing::FromServer) => INTERNAL,
        Reason::Listed(Refusal::TooManyRequests) => RESOURCE_EXHAUSTED,
        Reason::Listed(_) => PERMISSION_DENIED,
        Reason::StoreFailed => UNAVAILABLE,
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    // These, and the body's length, which servers tell.
    headers.reserve(6 + more);
    headers.insert(CONTENT_TYPE, content_type.clone());
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(GRPC_STATUS, number(status));
    // With nothing in it to be encoded.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(rejection.message())) {
        headers.insert(GRPC_MESSAGE, message);
    }
    let wait = match rejection.reason() {
        Reason::Limited { retry_after } => Some(retry_after),
        Reason::StoreFailed => Some(rejection.retry_after_seconds().map(Duration::from_secs)),
        Reason::Listed(_) => Some(None),
        Reason::MissingKey(_) => None,
    };
    if let Some(retry_after) = wait {
        // Negative: don't retry (gRFC A6). The largest that it can tell is 24 days.
        let pushback = match retry_after {
            Some(wait) => number(wait.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u64),
            None => HeaderValue::from_static("-1"),
        };
        headers.insert(GRPC_RETRY_PUSHBACK_MS, pushback);
    }
    response
}
