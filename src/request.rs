//! What keys and costs are taken from.

use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{AsHeaderName, HeaderValue};
use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// The head of a request: all but its body.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
///
/// let request = Request::get("/search").header("x-plan", "pro").body(()).unwrap();
/// let head = RequestHead::of(&request);
/// assert_eq!((head.uri.path(), head.header("x-plan")), ("/search", Some("pro")));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its URI.
    pub uri: &'a Uri,
    /// Its version of HTTP.
    pub version: Version,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What the server and the layers further out say of it.
    pub extensions: &'a Extensions,
    /// Set when a repeated header is read by [`header`](Self::header).
    ambiguity: Option<&'a AtomicBool>,
}

impl<'a> RequestHead<'a> {
    /// The head of `request`.
    #[must_use]
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
            ambiguity: None,
        }
    }

    /// Calls `read` with this head. Also returns whether `read` asked [`header`](Self::header) for a repeated header.
    pub(crate) fn read_with<T>(&self, read: impl FnOnce(&RequestHead<'_>) -> T) -> (T, bool) {
        let ambiguity = AtomicBool::new(false);
        let value = read(&RequestHead { ambiguity: Some(&ambiguity), ..*self });
        (value, ambiguity.into_inner())
    }

    /// The value of the header called `name`, if the request has exactly one and it is visible ASCII.
    ///
    /// `None` if the header is [repeated](crate::key#repeated-headers), because another reader of the request may take
    /// another line. A closure that reads it here and is a key or a condition then counts as ambiguous, whatever it
    /// returns, so that a client gains nothing by repeating a header. All lines are in [`headers`](Self::headers); a
    /// closure that reads them there has to treat repeated headers itself.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        match self.single_header(name) {
            Ok(value) => value?.to_str().ok(),
            Err(Repeated) => {
                if let Some(ambiguity) = self.ambiguity {
                    ambiguity.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// The value of a header that may occur once.
    pub(crate) fn single_header(&self, name: impl AsHeaderName) -> Result<Option<&'a HeaderValue>, Repeated> {
        let mut values = self.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(Repeated),
        }
    }

    /// The route that the request has matched, as it was written, if Axum's router has matched one.
    #[must_use]
    pub fn matched_path(&self) -> Option<&'a str> {
        #[cfg(feature = "axum")]
        if let Some(path) = self.extensions.get::<axum::extract::MatchedPath>() {
            return Some(path.as_str());
        }
        None
    }
}

/// A header that may occur once occurs more than once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeated;

/// A copy of a head, for what has to wait.
pub(crate) struct OwnHead {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    extensions: Extensions,
}

impl OwnHead {
    pub(crate) fn of(head: &RequestHead<'_>) -> Self {
        Self {
            method: head.method.clone(),
            uri: head.uri.clone(),
            version: head.version,
            headers: head.headers.clone(),
            extensions: head.extensions.clone(),
        }
    }

    pub(crate) fn head(&self) -> RequestHead<'_> {
        let Self { method, uri, version, headers, extensions } = self;
        RequestHead { method, uri, version: *version, headers, extensions, ambiguity: None }
    }
}
