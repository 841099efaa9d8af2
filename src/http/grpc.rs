//! Rejections of gRPC requests. gRPC clients map the HTTP status 429 to `UNAVAILABLE`, which many of them retry at once.
//!
//! The response is "trailers-only": HTTP 200, no body, and the gRPC status in the headers. This also works for gRPC-Web,
//! whose clients look for `grpc-status` in the headers before they read the body.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Version};

use super::grpc_details;
use super::headers::NO_STORE;
use super::rejection::Rejection;
use super::text::number;
use crate::reason::Reason;
use crate::request::RequestHead;

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

/// A protocol and the content types that a response in it can have.
struct Protocol {
    /// Whether it works over HTTP/1, as gRPC-Web does.
    is_web: bool,
    base: &'static str,
    proto: &'static str,
    json: &'static str,
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        is_web: false,
        base: "application/grpc",
        proto: "application/grpc+proto",
        json: "application/grpc+json",
    },
    Protocol {
        is_web: true,
        base: "application/grpc-web",
        proto: "application/grpc-web+proto",
        json: "application/grpc-web+json",
    },
    Protocol {
        is_web: true,
        base: "application/grpc-web-text",
        proto: "application/grpc-web-text+proto",
        json: "application/grpc-web-text+json",
    },
];

/// Returns the content type of the response to a genuine gRPC or gRPC-Web request, and `None` for any other request.
///
/// A header alone must not turn the rejection of another request into a 200. So a genuine request is a `POST`, has one
/// content type, and uses HTTP/2 or later unless it is gRPC-Web. The content type of the response is one of the
/// constants above rather than a copy of the client's text.
pub(super) fn content_type(head: &RequestHead<'_>) -> Option<&'static str> {
    if *head.method != Method::POST {
        return None;
    }
    let mut values = head.headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let media_type = value.to_str().ok()?.split(';').next()?.trim();
    let (base, format) = match media_type.split_once('+') {
        Some((base, format)) => (base, Some(format)),
        None => (media_type, None),
    };
    let protocol = PROTOCOLS.iter().find(|protocol| protocol.base.eq_ignore_ascii_case(base))?;
    if !protocol.is_web && head.version < Version::HTTP_2 {
        return None;
    }
    match format {
        None => Some(protocol.base),
        Some(format) if format.eq_ignore_ascii_case("proto") => Some(protocol.proto),
        Some(format) if format.eq_ignore_ascii_case("json") => Some(protocol.json),
        Some(format) => is_token(format).then_some(protocol.base),
    }
}

/// Returns whether a text is a token of RFC 9110, as the subtype of a media type is.
fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// Builds the response to a gRPC request. `content_type` is the result of [`content_type`]. Reserves room for
/// `more_headers` headers.
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
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, NO_STORE);
    headers.insert(GRPC_STATUS, number(status));
    let wait = match rejection.reason() {
        Reason::Limited { retry_after } => Some(retry_after),
        Reason::StoreFailed => Some(rejection.retry_after_seconds().map(Duration::from_secs)),
        Reason::Listed(_) => Some(None),
        Reason::MissingKey(_) => None,
    };
    if let Some(details) = grpc_details::header(status, &message, wait.flatten(), rejection.violated()) {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
    if let Some(retry_after) = wait {
        // Negative: don't retry (gRFC A6). The longest wait that fits is 24 days.
        let pushback = match retry_after {
            Some(wait) => number(wait.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u64),
            None => HeaderValue::from_static("-1"),
        };
        headers.insert(GRPC_RETRY_PUSHBACK_MS, pushback);
    }
    // No character of a message needs percent-encoding.
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}
