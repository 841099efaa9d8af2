//! Keys that every request has, or may have: its header fields, path, route and method.

use http::Method;
use http::header::{GetAll, HeaderName, HeaderValue};

use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor, done};
use super::part::KeyBuf;
use crate::hash::KeyHasher;
use crate::request::{Repeated, RequestHead};

/// The value of the header called `name`. Missing if the header is absent or empty. A request that
/// repeats the header is rejected with 400: see [repeated headers](super#repeated-headers).
///
/// # Panics
///
/// When `name` is not a header's name.
#[track_caller]
pub fn header(name: &str) -> Header {
    match name.parse() {
        Ok(name) => Header(name),
        Err(_) => panic!("{name:?} is not a header's name: use letters, digits and dashes"),
    }
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    fn value<'a>(&self, head: &RequestHead<'a>) -> Result<&'a HeaderValue, KeyError> {
        match head.single_header(&self.0) {
            Ok(Some(value)) if !value.is_empty() => Ok(value),
            Ok(_) => Err(KeyError::FromRequest),
            Err(Repeated) => Err(KeyError::Ambiguous),
        }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match self.value(head) {
            Ok(value) => done(value, key),
            Err(missing) => Extracted::Missing(missing),
        }
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        match self.value(head) {
            Ok(value) => Hashed::Now(hasher.hash(value.as_bytes())),
            Err(missing) => Hashed::Missing(missing),
        }
    }

    fn candidates<'a>(&self, head: &RequestHead<'a>) -> Option<GetAll<'a, HeaderValue>> {
        Some(head.headers.get_all(&self.0))
    }
}

/// A request's path as the client spelled it, without the query. Many spellings can lead to one
/// route: prefer [`matched_route`], unless the path is all there is, as for gRPC.
pub const fn path() -> Path {
    Path
}

/// See [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeyExtractor for Path {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        done(head.uri.path(), key)
    }
}

/// The route that a request has matched, as it was written (`/users/{id}`). All requests that
/// match none share one key, and so do all where no router has matched yet: in Axum, put the layer
/// on the `Router`, not around it.
pub const fn matched_route() -> MatchedRoute {
    MatchedRoute
}

/// See [`matched_route`].
#[derive(Clone, Copy, Debug)]
pub struct MatchedRoute;

impl KeyExtractor for MatchedRoute {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        done(head.matched_path().unwrap_or(""), key)
    }
}

/// The request's method. HEAD counts as GET, which answers it.
///
/// Clients choose their method as they choose their [`path`]. For them to gain no bucket by inventing
/// one, only the registered methods of RFC 9110 and RFC 5789 (GET, POST, PUT, DELETE, CONNECT, OPTIONS,
/// TRACE and PATCH) have a bucket each. All other methods share one, whose key is `"_OTHER"`. To keep a
/// method of your own apart, use [`from_fn`](super::from_fn), or give it a limit with
/// [`when::method`](crate::when::method).
pub const fn method() -> MethodKey {
    MethodKey
}

/// See [`method`].
#[derive(Clone, Copy, Debug)]
pub struct MethodKey;

impl KeyExtractor for MethodKey {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let method = get_for_head(head.method).as_str();
        done(if is_standard(method) { method } else { OTHER_METHODS }, key)
    }
}

/// The key of all methods that are not standard. `http.request.method` of OpenTelemetry's semantic
/// conventions has the same value.
pub(crate) const OTHER_METHODS: &str = "_OTHER";

/// The method that a request counts as: GET for HEAD, which GET answers.
pub(crate) fn get_for_head(method: &Method) -> &Method {
    if *method == Method::HEAD { &Method::GET } else { method }
}

/// Whether RFC 9110 or RFC 5789 defines the method.
pub(crate) fn is_standard(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH")
}
