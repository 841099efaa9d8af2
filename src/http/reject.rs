//! The answers to requests that don't go on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use super::grpc;
use crate::key::Missing;
use crate::request::RequestHead;
use crate::time::ceil_seconds;

/// Why a request does not go on, for the closure that words the answer.
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    pub(super) reason: Reason,
    pub(super) violated: &'a [&'a str],
    pub(super) head: RequestHead<'a>,
}

/// What kept a request from going on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit has no room for it.
    Limited {
        /// The shortest wait after which it would be allowed, if nothing else comes. `None` where
        /// no wait can help.
        retry_after: Option<Duration>,
    },
    /// It has no key for a limit.
    MissingKey(Missing),
    /// The store could not decide.
    StoreFailed,
}

impl<'a> Rejection<'a> {
    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The status that fits.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey(Missing::FromRequest) => StatusCode::BAD_REQUEST,
            Reason::MissingKey(Missing::FromServer) => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::StoreFailed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// What `Retry-After` says: whole seconds, rounded up, at least 1. `None` where no wait can
    /// help.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self.reason {
            Reason::Limited { retry_after } => retry_after.map(|wait| ceil_seconds(wait).max(1)),
            Reason::MissingKey(_) => None,
            Reason::StoreFailed => Some(1),
        }
    }

    /// The names of the limits that have no room.
    #[must_use]
    pub fn violated(&self) -> &'a [&'a str] {
        self.violated
    }

    /// The head of the request.
    #[must_use]
    pub fn head(&self) -> &RequestHead<'a> {
        &self.head
    }

    /// A sentence for people, which gives nothing away.
    #[must_use]
    pub fn message(&self) -> String {
        match (self.reason, self.retry_after_seconds()) {
            (Reason::Limited { .. }, Some(1)) => "Too many requests: try again in 1 second.".into(),
            (Reason::Limited { .. }, Some(seconds)) => format!("Too many requests: try again in {seconds} seconds."),
            (Reason::Limited { .. }, None) => "Too much for one request: it costs more than its limit allows.".into(),
            (Reason::MissingKey(Missing::FromRequest), _) => "The request does not say whom to count it for.".into(),
            (Reason::MissingKey(Missing::FromServer), _) => {
                "The server can't tell whom to count the request for.".into()
            }
            (Reason::StoreFailed, _) => "Too busy to take the request: try again in a moment.".into(),
        }
    }
}

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
        Reason::MissingKey(Missing::FromRequest) => ("about:blank".to_owned(), "Bad Request"),
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
