//! What a request's actual cost is taken from.

use http::{Extensions, HeaderMap, Response, StatusCode};

/// The head of a response: all but its body.
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
    /// Its status. (gRPC tells failures by `grpc-status`, among the headers or after the body.)
    pub status: StatusCode,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What the handler and the layers further in say of it.
    pub extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// The head of `response`.
    #[must_use]
    pub fn of<B>(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }

    /// The first header called `name`, if there is one and it is visible ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }
}
