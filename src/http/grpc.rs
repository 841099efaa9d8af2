//! Rejections of gRPC requests.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::headers::MAX_REPORTED;
use super::text::{insert, number, value};
use crate::recorder::{LimitRecord, Reason, Rejection};

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

/// Builds the response to a gRPC request, which is "trailers-only": HTTP 200, no body, and the gRPC status in the
/// headers. This also works for gRPC-Web, whose clients look for `grpc-status` in the headers before they read the
/// body. [`grpc_content_type`](crate::RequestHead::grpc_content_type) returns its content type. Reserves room for
/// `more_headers` headers.
pub(super) fn grpc_response(
    rejection: &Rejection<'_>,
    content_type: &'static str,
    more_headers: usize,
) -> Response<Bytes> {
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
    let wait = match rejection.reason {
        Reason::MissingKey(_) | Reason::TooManyLimits => None,
        _ => Some(rejection.wait),
    };
    if let Some(details) = details(status, &message, wait.flatten(), rejection) {
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
    insert(headers, GRPC_MESSAGE, value(message.as_bytes()));
    response
}

/// The longest span that a protobuf `Duration` holds, in seconds.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Returns the value of `grpc-status-details-bin`, or `None` if there is neither a wait nor a limit to name.
///
/// Violations name limits, as the `RateLimit` header does, and never keys.
fn details(code: u64, message: &str, retry_delay: Option<Duration>, rejection: &Rejection<'_>) -> Option<HeaderValue> {
    let mut denied_by = rejection.denied_by().take(MAX_REPORTED).peekable();
    if retry_delay.is_none() && denied_by.peek().is_none() {
        return None;
    }
    let any = |name, message| {
        let kind = format!("type.googleapis.com/google.rpc.{name}");
        bytes_field(3, [bytes_field(1, kind), bytes_field(2, message)].concat())
    };
    let mut status = [integer_field(1, code), bytes_field(2, message)].concat();
    if let Some(delay) = retry_delay {
        let delay = [integer_field(1, delay.as_secs().min(MAX_SECONDS)), integer_field(2, delay.subsec_nanos().into())];
        status.extend(any("RetryInfo", bytes_field(1, delay.concat())));
    }
    if denied_by.peek().is_some() {
        let violation = |limit: LimitRecord<'_>| {
            let name = limit.name;
            let fields =
                [bytes_field(1, format!("limit:{name}")), bytes_field(2, format!("Limit \"{name}\" exceeded."))];
            bytes_field(1, fields.concat())
        };
        status.extend(any("QuotaFailure", denied_by.flat_map(violation).collect()));
    }
    HeaderValue::try_from(STANDARD_NO_PAD.encode(status)).ok()
}

/// Encodes a field of a message that is an integer and not negative. Zero is the default, and left out.
fn integer_field(field: u8, value: u64) -> Vec<u8> {
    // The lower bits are the type of the field: 0, an integer.
    if value == 0 { Vec::new() } else { encode(field << 3, value, &[]) }
}

/// Encodes a field of a message that is a string or an embedded message.
fn bytes_field(field: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    // Of the type 2, with its length.
    encode(field << 3 | 2, bytes.len() as u64, bytes)
}

/// Encodes a number in groups of seven bits, the lowest first; all but the last have the high bit set.
fn encode(tag: u8, mut number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![tag];
    while number >= 0x80 {
        field.push(number as u8 | 0x80);
        number >>= 7;
    }
    field.push(number as u8);
    field.extend_from_slice(bytes);
    field
}
