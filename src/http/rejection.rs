//! The format of rejections: as text, as problem documents, by a closure, or as gRPC statuses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use super::grpc::grpc_response;
use super::headers::Headers;
use super::text::{Text, insert, insert_missing};
use crate::key::head::RequestHead;
use crate::recorder::{Reason, Rejection};
use crate::time::random_up_to;

/// RFC 6585 forbids caches to store a 429, but not all caches comply.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
pub(super) const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
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

    /// Returns the wait for `Retry-After`, with a random part.
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
        Reason::MissingKey(_) | Reason::Listed(_) | Reason::TooManyLimits => {
            ("about:blank", status.canonical_reason().unwrap_or_default())
        }
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
        // Names are printable ASCII. Only two of its characters need an escape.
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
