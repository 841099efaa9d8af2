//! Rejections: their statuses, waits and messages, and the responses as text, problem documents and gRPC statuses.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};

use super::headers::{GRPC_STATUS, Headers, MAX_REPORTED, Text, insert, insert_missing, number, push_number, value};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::KeyError;
use crate::key::head::RequestHead;
use crate::limiter::AcquireError;
use crate::recorder::{LimitRecord, Reason, Rejection};
use crate::select::ListAction;
use crate::time::{ceil_seconds, random_up_to};

/// RFC 6585 forbids caches to store a 429, but not all caches comply.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

type Closure = dyn Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync;

/// The format of rejections.
#[derive(Clone, Default)]
pub(super) struct RejectionFormat {
    pub(super) body: Body,
    /// Whether genuine gRPC requests are rejected like others, rather than with a gRPC status.
    pub(super) ignores_grpc: bool,
    /// The longest random part of `Retry-After`.
    pub(super) longest_jitter: Duration,
    /// The longest wait that clients are told, if it was set.
    pub(super) longest_wait: Option<Duration>,
}

/// The longest wait of JavaScript's timers in whole seconds: they fire at once after more than 2^31 − 1 ms.
const LONGEST_WAIT: Duration = Duration::from_secs(2_147_483);

/// The body of a rejection over plain HTTP.
#[derive(Clone, Default)]
pub(super) enum Body {
    #[default]
    PlainText,
    ProblemJson,
    Custom(Arc<Closure>),
}

impl RejectionFormat {
    /// Returns the content type of a gRPC response, if the request gets one.
    pub(super) fn grpc_content_type(&self, head: &RequestHead<'_>) -> Option<&'static str> {
        head.grpc_content_type().filter(|_| !self.ignores_grpc)
    }

    /// Returns the longest wait that clients are told.
    pub(super) fn longest_wait(&self) -> Duration {
        self.longest_wait.unwrap_or(LONGEST_WAIT)
    }

    /// Returns the wait that a client is told, with a random part.
    pub(super) fn wait(&self, reason: &Reason) -> Option<Duration> {
        let jitter = if self.longest_jitter.is_zero() { Duration::ZERO } else { random_up_to(self.longest_jitter) };
        Some(reason.retry_after()?.saturating_add(jitter).min(self.longest_wait()))
    }

    /// Returns whether the response depends on the head of the request.
    pub(super) fn depends_on_head(&self, head: &RequestHead<'_>) -> bool {
        matches!(self.body, Body::Custom(_)) || self.grpc_content_type(head).is_some()
    }

    /// Builds the response, with room for the headers that report limits.
    pub(super) fn response(&self, rejection: &Rejection<'_>, headers: &Headers) -> Response<Bytes> {
        let grpc_content_type = self.grpc_content_type(&rejection.head);
        let mut response = match grpc_content_type {
            Some(content_type) => grpc_response(rejection, content_type, headers.max_headers()),
            None => self.http_response(rejection, headers),
        };
        let map = response.headers_mut();
        if let Some(seconds) = rejection.retry_after_seconds() {
            // Instead of `Retry-After`, gRPC has `grpc-retry-pushback-ms`.
            headers.write_retry_after(seconds, grpc_content_type.is_some(), map);
        }
        insert_missing(map, CACHE_CONTROL, NO_STORE);
        response
    }

    /// Builds a response over plain HTTP. Reserves room for the headers that are added.
    fn http_response(&self, rejection: &Rejection<'_>, headers: &Headers) -> Response<Bytes> {
        let mut text = Text::new();
        let content_type = match &self.body {
            Body::PlainText => {
                rejection.push_message(&mut text);
                text.push(b'\n');
                PLAIN
            }
            Body::ProblemJson => {
                push_problem(&mut text, rejection);
                PROBLEM
            }
            Body::Custom(respond) => return respond(rejection),
        };
        let mut response = Response::new(Bytes::copy_from_slice(&text));
        *response.status_mut() = rejection.status();
        // `Content-Type`, `Retry-After`, `Cache-Control`, and `Content-Length`, which Axum adds.
        let count = 4 + headers.max_headers();
        // As many fit into a map after its first insertion.
        if count > 6 {
            response.headers_mut().reserve(count);
        }
        insert(response.headers_mut(), CONTENT_TYPE, content_type);
        response
    }
}

/// Adds a problem document (RFC 9457), with the types that the RateLimit draft registers.
fn push_problem(text: &mut Text, rejection: &Rejection<'_>) {
    let status = rejection.status();
    let (kind, title) = match rejection.reason {
        Reason::Limited { .. } => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Reason::StoreFailed => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        // RFC 9457 asks for the phrase of the status as the title.
        Reason::MissingKey(_) | Reason::Listed(_) => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    for piece in [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str(), r#","detail":""#] {
        text.extend_from_slice(piece.as_bytes());
    }
    rejection.push_message(text);
    text.push(b'"');
    let mut end = b"}".as_slice();
    for limit in rejection.denied_by() {
        text.extend_from_slice(if end == b"}" { br#","violated-policies":[""# } else { br#",""# });
        end = b"]}";
        // Names are printable ASCII, of which only two characters need an escape.
        for byte in limit.name.bytes() {
            if matches!(byte, b'\\' | b'"') {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.push(b'"');
    }
    text.extend_from_slice(end);
}

impl AcquireError {
    /// Creates the response with which a layer rejects a request by default: 429 with `Retry-After` for a denial, and
    /// 503 for a failed store. It contains neither keys nor causes of failures, unlike the error's own message, which
    /// is for operators.
    ///
    /// With the feature `axum`, a handler can return the error itself, which responds with this.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::AcquireError> {
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(1))]);
    /// mails.try_acquire("ann@example.org", 1).await?;
    ///
    /// let response = mails.try_acquire("ann@example.org", 1).await.unwrap_err().response();
    /// assert_eq!(response.status(), 429);
    /// assert!(response.headers().contains_key("retry-after"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        match *self {
            Self::Denied { retry_after } => response(Reason::Limited { retry_after }),
            Self::Store(ref error) => error.response(),
        }
    }
}

impl StoreError {
    /// Creates the response with which a layer rejects a request by default if the store fails: 503. For an
    /// [invalid call](StoreErrorKind::InvalidCall), it is 500. It does not contain the causes of the failure, unlike
    /// the error's own message, which is for operators.
    ///
    /// With the feature `axum`, a handler can return the error itself, which responds with this.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        if self.kind() != StoreErrorKind::InvalidCall {
            return response(Reason::StoreFailed);
        }
        let mut response = Response::new(Bytes::from_static(b"Internal server error.\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        insert(response.headers_mut(), CONTENT_TYPE, PLAIN);
        response
    }
}

fn response(reason: Reason) -> Response<Bytes> {
    let request = Request::new(());
    let head = RequestHead::of(&request);
    let format = RejectionFormat::default();
    let rejection = Rejection { reason, decision: None, names: &[], wait: format.wait(&reason), head };
    format.response(&rejection, &Headers::default())
}

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
fn grpc_response(rejection: &Rejection<'_>, content_type: &'static str, more_headers: usize) -> Response<Bytes> {
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
        Reason::MissingKey(_) => None,
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
        bytes(3, [bytes(1, kind), bytes(2, message)].concat())
    };
    let mut status = [integer(1, code), bytes(2, message)].concat();
    if let Some(delay) = retry_delay {
        let delay = [integer(1, delay.as_secs().min(MAX_SECONDS)), integer(2, delay.subsec_nanos().into())];
        status.extend(any("RetryInfo", bytes(1, delay.concat())));
    }
    if denied_by.peek().is_some() {
        let violation = |limit: LimitRecord<'_>| {
            let name = limit.name;
            let fields = [bytes(1, format!("limit:{name}")), bytes(2, format!("Limit \"{name}\" exceeded."))];
            bytes(1, fields.concat())
        };
        status.extend(any("QuotaFailure", denied_by.flat_map(violation).collect()));
    }
    HeaderValue::try_from(STANDARD_NO_PAD.encode(status)).ok()
}

/// Encodes a field of a message that is an integer and not negative. Zero is the default, and left out.
fn integer(field: u8, value: u64) -> Vec<u8> {
    // The lower bits are the type of the field: 0, an integer.
    if value == 0 { Vec::new() } else { encode(field << 3, value, &[]) }
}

/// Encodes a field of a message that is a string or an embedded message.
fn bytes(field: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
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

impl Reason {
    /// Returns the wait after which the client may retry.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { retry_after } => *retry_after,
            Self::MissingKey(_) | Self::Listed(_) => None,
            Self::StoreFailed => Some(Duration::from_secs(1)),
        }
    }
}

/// The default response.
impl Rejection<'_> {
    /// Returns the status of the default response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey(KeyError::NotProvided) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::MissingKey(_) => StatusCode::BAD_REQUEST,
            Reason::Listed(action) => action.status().unwrap_or(StatusCode::FORBIDDEN),
            Reason::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the wait after which the client may retry: the exact one for a denial, and 1 s if the store failed.
    /// `None` if no wait can help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.reason.retry_after()
    }

    /// Returns the value of `Retry-After`: [`retry_after`](Self::retry_after) with its
    /// [jitter](crate::Builder::retry_after_jitter), in whole seconds, rounded up, at least 1 and at most the
    /// [longest wait](crate::Builder::max_retry_after). `None` if no wait can help.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.wait.map(|wait| ceil_seconds(wait).max(1))
    }

    /// Returns a message for people. It contains neither keys nor causes of failures.
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = Text::new();
        self.push_message(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Adds the message to a text: visible ASCII without anything that JSON or gRPC would escape.
    fn push_message(&self, text: &mut Text) {
        let message: &[u8] = match (self.reason, self.retry_after_seconds()) {
            (Reason::Limited { .. }, Some(seconds)) => {
                text.extend_from_slice(b"Too many requests: try again in ");
                push_wait(text, seconds);
                b"."
            }
            (Reason::Limited { .. }, None) => b"Too much for one request: it costs more than its limit allows.",
            (Reason::MissingKey(KeyError::Ambiguous), _) => b"Ambiguous client identifier: send it once.",
            (Reason::MissingKey(KeyError::NotProvided), _) => b"Client address unavailable.",
            (Reason::MissingKey(_), _) => b"Missing client identifier.",
            (Reason::Listed(ListAction::TooManyRequests), _) => b"Too many requests.",
            (Reason::Listed(_), _) => b"The request is not permitted.",
            (Reason::StoreFailed, _) => b"Temporarily unavailable: try again in a moment.",
        };
        text.extend_from_slice(message);
    }
}

/// Adds a number of seconds in its two largest units, such as "7 hours 43 minutes". It is rounded up to the smaller of
/// the two units, so that a client that waits that long never retries too early.
fn push_wait(text: &mut Text, seconds: u64) {
    let (minutes, hours) = (seconds.div_ceil(60), seconds.div_ceil(3_600));
    let (larger, smaller) = match seconds {
        0..60 => ((seconds, " second"), (0, "")),
        60..3_600 => ((seconds / 60, " minute"), (seconds % 60, " second")),
        _ if minutes < 1_440 => ((minutes / 60, " hour"), (minutes % 60, " minute")),
        _ => ((hours / 24, " day"), (hours % 24, " hour")),
    };
    let push = |text: &mut Text, (count, unit): (u64, &str)| {
        push_number(text, count);
        text.extend_from_slice(unit.as_bytes());
        if count != 1 {
            text.push(b's');
        }
    };
    push(text, larger);
    if smaller.0 > 0 {
        text.push(b' ');
        push(text, smaller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_formatted_in_their_two_largest_units_rounded_up() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (2, "2 seconds"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (61, "1 minute 1 second"),
            (119, "1 minute 59 seconds"),
            (120, "2 minutes"),
            (125, "2 minutes 5 seconds"),
            (3_599, "59 minutes 59 seconds"),
            (3_600, "1 hour"),
            (3_601, "1 hour 1 minute"),
            (3_660, "1 hour 1 minute"),
            (3_661, "1 hour 2 minutes"),
            (7_200, "2 hours"),
            (27_779, "7 hours 43 minutes"),
            (27_780, "7 hours 43 minutes"),
            (27_781, "7 hours 44 minutes"),
            (86_340, "23 hours 59 minutes"),
            (86_341, "1 day"),
            (86_400, "1 day"),
            (86_401, "1 day 1 hour"),
            (90_000, "1 day 1 hour"),
            (90_001, "1 day 2 hours"),
            (172_799, "2 days"),
            (273_600, "3 days 4 hours"),
            (366 * 86_400, "366 days"),
            (u64::MAX, "213503982334601 days 8 hours"),
        ] {
            let mut formatted = Text::new();
            push_wait(&mut formatted, seconds);
            assert_eq!(formatted[..], *text.as_bytes(), "{seconds}");
        }
    }
}
