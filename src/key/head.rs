//! Keys from the request line: path, matched route and method.

use http::Method;

use super::extractor::{Extracted, KeyExtractor, describe_shown, write};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use crate::key::heads::RequestHead;

/// Extracts the [path](RequestHead::path) as the client spelled it, without the query. One route can have many spellings,
/// each with a bucket of its own: prefer [`matched_route`], except for services without a router.
pub const fn path() -> Path {
    Path
}

/// An extractor that reads the path. Returned by [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeyExtractor for Path {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        write(head.path(), key)
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_shown("path", self, head)
    }
}

/// Extracts the route that the request has matched, as it is written in the router (`/users/{id}`). All requests
/// without a matched route share one key. In Axum, add the layer to the `Router` rather than around it: outside, no
/// route is matched yet.
///
/// The route of a gRPC request that no router has handled is its path (`/package.Service/Method`). Clients can invent
/// methods, each with a bucket of its own.
pub const fn matched_route() -> MatchedRoute {
    MatchedRoute
}

/// An extractor that reads the matched route. Returned by [`matched_route`].
#[derive(Clone, Copy, Debug)]
pub struct MatchedRoute;

impl KeyExtractor for MatchedRoute {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let route = head.matched_path().unwrap_or_else(|| {
            let is_routed = head.original_uri().is_some();
            if !is_routed && head.grpc_content_type().is_some() { head.path() } else { "" }
        });
        write(route, key)
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_shown("route", self, head)
    }
}

/// Extracts the method. HEAD counts as GET.
///
/// The methods of RFC 9110 and RFC 5789 (GET, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE and PATCH) have a bucket each.
/// All other methods share the key `"_OTHER"`, so that clients gain no buckets by inventing methods. For a separate
/// bucket for a method of your own, use [`from_fn`](super::from_fn), or a limit with
/// [`when::method`](crate::when::method).
pub const fn method() -> MethodKey {
    MethodKey
}

/// An extractor that reads the method. Returned by [`method`].
#[derive(Clone, Copy, Debug)]
pub struct MethodKey;

impl KeyExtractor for MethodKey {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let method = head_as_get(head.method).as_str();
        write(if is_standard(method) { method } else { OTHER_METHODS }, key)
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_shown("method", self, head)
    }
}

/// The key of all non-standard methods, the same as in OpenTelemetry's semantic conventions.
pub(crate) const OTHER_METHODS: &str = "_OTHER";

/// Maps HEAD to GET.
pub(crate) fn head_as_get(method: &Method) -> &Method {
    if *method == Method::HEAD { &Method::GET } else { method }
}

/// Returns whether RFC 9110 or RFC 5789 defines the method.
pub(crate) fn is_standard(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH")
}
