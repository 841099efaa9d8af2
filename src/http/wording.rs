//! The answers to requests that don't go on.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;

use super::grpc;
use super::rejection::{Reason, Rejection};
use super::text::{Number, number};
use crate::key::Missing;
use crate::list::Refusal;

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// RFC 6585 forbids caches to keep a 429; not all know.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

pub(super) type Closure = dyn Fn(&Rejection<'_>) -> Response<Bytes> + Send + Sync;

/// How refusals are worded.
#[derive(Clone, Default)]
pub(super) enum Wording {
    #[default]
    PlainText,
    ProblemJson,
    Custom(Arc<Closure>),
}

impl fmt::Debug for Wording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PlainText => "PlainText",
            Self::ProblemJson => "ProblemJson",
            Self::Custom(_) => "Custom",
        })
    }
}

impl Wording {
    /// The answer, with room for so many headers more.
    pub(super) fn response(&self, rejection: &Rejection<'_>, more: usize) -> Response<Bytes> {
        match (grpc::content_type(&rejection.head), self) {
            (Some(content_type), _) => grpc::response(rejection, content_type, more),
            (None, Self::PlainText) => typed(rejection, PLAIN, text(rejection), more),
            (None, Self::ProblemJson) => typed(rejection, PROBLEM, problem(rejection), more),
            (None, Self::Custom(word)) => {
                let mut response = word(rejection);
                let headers = response.headers_mut();
                if let Some(seconds) = rejection.retry_after_seconds() {
                    headers.entry(RETRY_AFTER).or_insert_with(|| number(seconds));
                }
                headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
                response
            }
        }
    }
}

fn typed(rejection: &Rejection<'_>, content_type: HeaderValue, body: Bytes, more: usize) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    // These, and the body's length, which servers tell.
    headers.reserve(4 + more);
    headers.insert(CONTENT_TYPE, content_type);
    if let Some(seconds) = rejection.retry_after_seconds() {
        headers.insert(RETRY_AFTER, number(seconds));
    }
    headers.insert(CACHE_CONTROL, NO_STORE);
    response
}

fn text(rejection: &Rejection<'_>) -> Bytes {
    let mut number = Number::new();
    let [before, seconds, after] = rejection.sentence(&mut number);
    [before, seconds, after, "\n"].concat().into()
}

/// RFC 9457, with the types that the RateLimit draft registers.
fn problem(rejection: &Rejection<'_>) -> Bytes {
    let (kind, title) = match rejection.reason {
        Reason::Limited { .. } => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        Reason::StoreFailed => (
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        Reason::MissingKey(Missing::FromRequest | Missing::NotApplicable) => ("about:blank", "Bad Request"),
        Reason::Listed(Refusal::TooManyRequests) => ("about:blank", "Too Many Requests"),
        Reason::Listed(_) => ("about:blank", "Forbidden"),
        Reason::MissingKey(Missing::FromServer) => ("about:blank", "Internal Server Error"),
    };
    let status = rejection.status();
    let mut number = Number::new();
    let [before, seconds, after] = rejection.sentence(&mut number);
    let mut pieces: SmallVec<[&str; 32]> = SmallVec::new();
    pieces.extend([r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status.as_str()]);
    pieces.extend([r#","detail":""#, before, seconds, after, "\""]);
    for (index, name) in rejection.violated.iter().enumerate() {
        pieces.push(if index == 0 { r#","violated-policies":[""# } else { r#",""# });
        // Names are printable ASCII: only two characters need an escape.
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
