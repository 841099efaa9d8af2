//! The answers to requests that don't go on.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};

use super::grpc;
use super::rejection::{Reason, Rejection};
use crate::key::Missing;
use crate::list::Refusal;

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
    pub(super) fn response(&self, rejection: &Rejection<'_>) -> Response<Bytes> {
        let mut response = match (grpc::content_type(&rejection.head), self) {
            (Some(content_type), _) => return grpc::response(rejection, content_type),
            (None, Self::PlainText) => text(rejection),
            (None, Self::ProblemJson) => problem(rejection),
            (None, Self::Custom(word)) => word(rejection),
        };
        if let Some(seconds) = rejection.retry_after_seconds() {
            response.headers_mut().entry(RETRY_AFTER).or_insert(seconds.into());
        }
        // RFC 6585 forbids caches to keep a 429; not all know.
        response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}

fn text(rejection: &Rejection<'_>) -> Response<Bytes> {
    let body = rejection.message() + "\n";
    typed(rejection, "text/plain; charset=utf-8", body)
}

/// RFC 9457, with the types that the RateLimit draft registers.
fn problem(rejection: &Rejection<'_>) -> Response<Bytes> {
    const TYPES: &str = "https://iana.org/assignments/http-problem-types";
    let (kind, title) = match rejection.reason {
        Reason::Limited { .. } => {
            (format!("{TYPES}#quota-exceeded"), "Request cannot be satisfied as assigned quota has been exceeded")
        }
        Reason::StoreFailed => (
            format!("{TYPES}#temporary-reduced-capacity"),
            "Request cannot be satisfied due to temporary server capacity constraints",
        ),
        Reason::MissingKey(Missing::FromRequest | Missing::NotApplicable) => ("about:blank".to_owned(), "Bad Request"),
        Reason::Listed(Refusal::TooManyRequests) => ("about:blank".to_owned(), "Too Many Requests"),
        Reason::Listed(_) => ("about:blank".to_owned(), "Forbidden"),
        Reason::MissingKey(Missing::FromServer) => ("about:blank".to_owned(), "Internal Server Error"),
    };
    let status = rejection.status().as_u16();
    let detail = rejection.message();
    let mut body = format!(r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}""#);
    if !rejection.violated.is_empty() {
        // Names are printable ASCII: only two characters need an escape.
        let quote = |name: &&str| format!("\"{}\"", name.replace('\\', r"\\").replace('"', "\\\""));
        let names: Vec<String> = rejection.violated.iter().map(quote).collect();
        body.push_str(&format!(r#","violated-policies":[{}]"#, names.join(",")));
    }
    body.push('}');
    typed(rejection, "application/problem+json", body)
}

fn typed(rejection: &Rejection<'_>, content_type: &'static str, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = rejection.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
