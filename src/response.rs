//! The head of a response, which the actual cost of a request is computed from.

use http::{Extensions, HeaderMap, Response, StatusCode};

/// The head of a response: everything except the body.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_ratelimit::ResponseHead;
///
/// let response = Response::builder().status(401).header("x-reason", "password").body(()).unwrap();
/// let head = ResponseHead::of(&response);
/// assert_eq!((head.status, head.header("x-reason")), (StatusCode::UNAUTHORIZED, Some("password")));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status. gRPC reports failures by `grpc-status`, in the headers or in the trailers, instead.
    pub status: StatusCode,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The extensions that the handler and the inner layers have set.
    pub extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// Returns the head of `response`.
    #[must_use]
    pub fn of<B>(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }

    /// Returns the value of the first header `name`, if there is one and it is visible ASCII.
    ///
    /// Unlike [`RequestHead::header`](crate::RequestHead::header), this accepts repeated headers, because the
    /// application has written them.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }
}
