//! Rejections of gRPC requests. gRPC clients map the HTTP status 429 to `UNAVAILABLE`, which many of them retry at once.
//!
//! The response is "trailers-only": HTTP 200, no body, and the gRPC status in the headers. This also works for gRPC-Web,
//! whose clients look for `grpc-status` in the headers before they read the body.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::rejection::Rejection;
use super::values::{insert, number};
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

/// Builds the response to a gRPC request. [`grpc_content_type`](crate::RequestHead::grpc_content_type) returns its content
/// type. Reserves room for `more_headers` headers.
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
    // The five headers below, `Cache-Control`, and `Content-Length`, which Axum adds.
    headers.reserve(7 + more_headers);
    insert(headers, CONTENT_TYPE, HeaderValue::from_static(content_type));
    insert(headers, GRPC_STATUS, number(status));
    let wait = match rejection.reason() {
        Reason::Limited { retry_after } => Some(retry_after),
        Reason::StoreFailed => Some(rejection.retry_after_seconds().map(Duration::from_secs)),
        Reason::Listed(_) => Some(None),
        Reason::MissingKey(_) => None,
    };
    if let Some(details) = details(status, &message, wait.flatten(), rejection.violated()) {
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

/// The most violations in one status. Clients accept 8 KiB of headers in all, and a limit's name has up to 64
/// characters.
const MAX_VIOLATIONS: usize = 16;

/// The longest span that a protobuf `Duration` holds, in seconds.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Returns the value of `grpc-status-details-bin`, or `None` if there is neither a wait nor a limit to name.
///
/// Violations name limits, as the `RateLimit` header does, and never keys.
fn details(code: u64, message: &str, retry_delay: Option<Duration>, violated: &[&str]) -> Option<HeaderValue> {
    if retry_delay.is_none() && violated.is_empty() {
        return None;
    }
    let mut status = Message::default().integer(1, code).bytes(2, message.as_bytes());
    if let Some(delay) = retry_delay {
        let delay =
            Message::default().integer(1, delay.as_secs().min(MAX_SECONDS)).integer(2, delay.subsec_nanos().into());
        status = status.bytes(3, &any("RetryInfo", &Message::default().bytes(1, &delay.0)));
    }
    if !violated.is_empty() {
        let violations = violated.iter().take(MAX_VIOLATIONS).fold(Message::default(), |failure, name| {
            let violation = Message::default()
                .bytes(1, format!("limit:{name}").as_bytes())
                .bytes(2, format!("Limit \"{name}\" exceeded.").as_bytes());
            failure.bytes(1, &violation.0)
        });
        status = status.bytes(3, &any("QuotaFailure", &violations));
    }
    HeaderValue::try_from(STANDARD_NO_PAD.encode(status.0)).ok()
}

/// Encodes an `Any` that holds a message of the package `google.rpc`.
fn any(name: &str, message: &Message) -> Vec<u8> {
    Message::default().bytes(1, format!("type.googleapis.com/google.rpc.{name}").as_bytes()).bytes(2, &message.0).0
}

/// An encoded message, to which fields are added.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Adds an integer that is not negative. Zero is the default, and left out.
    fn integer(mut self, field: u8, value: u64) -> Self {
        const VARINT: u8 = 0;
        if value != 0 {
            self.0.push(field << 3 | VARINT);
            self.varint(value);
        }
        self
    }

    /// Adds a string, bytes, or an embedded message.
    fn bytes(mut self, field: u8, bytes: &[u8]) -> Self {
        const LENGTH_DELIMITED: u8 = 2;
        self.0.push(field << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds an integer in groups of seven bits, the lowest first; all but the last have the high bit set.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
