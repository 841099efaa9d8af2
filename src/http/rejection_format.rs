//! The format of rejections.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, HeaderValue};
use smallvec::SmallVec;

use super::grpc;
use super::header_map::insert_missing;
use super::headers::{Headers, NO_STORE};
use super::rejection::Rejection;
use super::text::concat;
use super::wait::WaitText;
use crate::decision::Decision;
use crate::grpc::content_type;
use crate::reason::Reason;
use crate::request::RequestHead;

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

pub(super) type Closure = dyn Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync;

/// The format of rejections.
#[derive(Clone, Debug)]
pub(super) struct RejectionFormat {
    pub(super) body: Body,
    /// Whether genuine gRPC requests are answered with a gRPC status.
    pub(super) grpc: bool,
}

/// The body of a rejection over plain HTTP.
#[derive(Clone, Default)]
pub(super) enum Body {
    #[default]
    PlainText,
    ProblemJson,
    Custom(Arc<Closure>),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PlainText => "PlainText",
            Self::ProblemJson => "ProblemJson",
            Self::Custom(_) => "Custom",
        })
    }
}

impl Default for RejectionFormat {
    fn default() -> Self {
        Self { body: Body::default(), grpc: true }
    }
}

impl RejectionFormat {
    /// Returns the content type of a gRPC response, if the request gets one.
    pub(super) fn grpc_content_type(&self, head: &RequestHead<'_>) -> Option<&'static str> {
        if self.grpc { content_type(head) } else { None }
    }

    /// Returns whether the response depends on the head of the request.
    pub(super) fn depends_on_head(&self, head: &RequestHead<'_>) -> bool {
        matches!(self.body, Body::Custom(_)) || self.grpc_content_type(head).is_some()
    }

    /// Returns whether a response over plain HTTP names the limits that deny.
    pub(super) fn names_limits(&self) -> bool {
        !matches!(self.body, Body::PlainText)
    }

    /// Builds the response, with the headers that report `decision`.
    pub(super) fn response(
        &self,
        rejection: &Rejection<'_>,
        grpc_content_type: Option<&'static str>,
        headers: &Headers,
        decision: Option<&Decision>,
    ) -> Response<Bytes> {
        if let Some(content_type) = grpc_content_type {
            let mut response = grpc::response(rejection, content_type, headers.max_headers());
            // Instead of `Retry-After`, gRPC has `grpc-retry-pushback-ms`.
            if let Some(seconds) = rejection.retry_after_seconds() {
                headers.write_x_retry_after(seconds, response.headers_mut());
            }
            return with_headers(response, headers, decision);
        }
        let (content_type, body) = match &self.body {
            Body::PlainText => (PLAIN, text(rejection)),
            Body::ProblemJson => (PROBLEM, problem(rejection)),
            Body::Custom(respond) => return with_headers(custom(rejection, &**respond, headers), headers, decision),
        };
        let mut response = Response::new(body);
        *response.status_mut() = rejection.status();
        headers.write_rejection(content_type, rejection.retry_after_seconds(), decision, response.headers_mut());
        response
    }
}

/// Adds the headers that report a decision.
fn with_headers(mut response: Response<Bytes>, headers: &Headers, decision: Option<&Decision>) -> Response<Bytes> {
    if let Some(decision) = decision {
        headers.write(decision, response.headers_mut());
    }
    response
}

/// Calls the closure of `on_reject`, and adds the headers that its response lacks.
fn custom(rejection: &Rejection<'_>, respond: &Closure, headers: &Headers) -> Response<Bytes> {
    let mut response = respond(rejection);
    if let Some(seconds) = rejection.retry_after_seconds() {
        headers.write_retry_after(seconds, response.headers_mut());
    }
    insert_missing(response.headers_mut(), CACHE_CONTROL, NO_STORE);
    response
}

/// Returns the message as a line of plain text.
fn text(rejection: &Rejection<'_>) -> Bytes {
    let mut wait = WaitText::new();
    let [start, number, unit, smaller_number, smaller_unit, end] = rejection.sentence(&mut wait).map(str::as_bytes);
    concat([start, number, unit, smaller_number, smaller_unit, end, b"\n"]).into()
}

/// Returns a problem document (RFC 9457), with the types that the RateLimit draft registers.
fn problem(rejection: &Rejection<'_>) -> Bytes {
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
    let mut wait = WaitText::new();
    let mut pieces: SmallVec<[&str; 32]> = SmallVec::new();
    pieces.extend([r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str()]);
    pieces.push(r#","detail":""#);
    pieces.extend(rejection.sentence(&mut wait));
    pieces.push("\"");
    for (index, name) in rejection.violated.iter().enumerate() {
        pieces.push(if index == 0 { r#","violated-policies":[""# } else { r#",""# });
        // Names are printable ASCII, of which only two characters need an escape.
        for part in name.split_inclusive(['\\', '"']) {
            match part.strip_suffix(['\\', '"']) {
                Some(start) => pieces.extend([start, "\\", &part[start.len()..]]),
                None => pieces.push(part),
            }
        }
        pieces.push("\"");
    }
    pieces.push(if rejection.violated.is_empty() { "}" } else { "]}" });
    pieces.concat().into()
}
