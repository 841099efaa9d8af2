//! What the head of a request says.

use http::{HeaderName, HeaderValue, Method};

use super::condition::Condition;
use crate::request::RequestHead;

/// Requests of a method. HEAD counts as GET, which answers it.
#[must_use]
pub const fn method(method: Method) -> MethodIs {
    MethodIs(method)
}

/// See [`method`].
#[derive(Clone, Debug)]
pub struct MethodIs(Method);

impl Condition for MethodIs {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        *head.method == self.0 || (*head.method == Method::HEAD && self.0 == Method::GET)
    }
}

/// Requests that have matched a route, told by the path that it was written with (`/users/{id}`), with
/// the prefixes of the routers it is nested in; where no router has matched one, as for gRPC, by the
/// request's path.
///
/// # Panics
///
/// When `path` does not start with a slash: it would match nothing.
#[must_use]
#[track_caller]
pub fn route(path: impl Into<String>) -> Route {
    let path = path.into();
    assert!(
        path.starts_with('/'),
        "the route {path:?} matches nothing, as paths start with a slash: write \"/{path}\""
    );
    Route(path)
}

/// See [`route`].
#[derive(Clone, Debug)]
pub struct Route(String);

impl Condition for Route {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        head.matched_path().unwrap_or(head.uri.path()) == self.0
    }
}

/// Requests whose path is `prefix`, or lies below it: `/api` covers `/api` and `/api/users`, but not
/// `/apis`.
///
/// The path is as the client spelled it, and many spellings can lead to one route: don't exempt by it
/// what must be limited.
///
/// # Panics
///
/// When `prefix` does not start with a slash: it would match nothing.
#[must_use]
#[track_caller]
pub fn path_prefix(prefix: impl Into<String>) -> PathPrefix {
    let mut prefix = prefix.into();
    assert!(
        prefix.starts_with('/'),
        "the path {prefix:?} matches nothing, as paths start with a slash: write \"/{prefix}\""
    );
    prefix.truncate(prefix.trim_end_matches('/').len());
    PathPrefix(prefix)
}

/// See [`path_prefix`].
#[derive(Clone, Debug)]
pub struct PathPrefix(String);

impl Condition for PathPrefix {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        head.uri.path().strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Requests with a header called `name` whose value is `value`.
///
/// If the header is [repeated](crate::key#repeated-headers), the condition [holds](Condition::holds) if
/// all lines have that value, and [may hold](Condition::may_hold) if one has. A line is compared as a whole,
/// not at its commas.
///
/// # Panics
///
/// When `name` is not a header's name.
#[must_use]
#[track_caller]
pub fn header(name: &str, value: impl Into<String>) -> Header {
    match name.parse() {
        Ok(name) => Header { name, value: value.into() },
        Err(_) => panic!("{name:?} is not a header's name: use letters, digits and dashes"),
    }
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    value: String,
}

impl Header {
    fn is(&self, value: &HeaderValue) -> bool {
        value.as_bytes() == self.value.as_bytes()
    }
}

impl Condition for Header {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.may_hold(head) && head.headers.get_all(&self.name).iter().all(|value| self.is(value))
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        head.headers.get_all(&self.name).iter().any(|value| self.is(value))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn holds(condition: &impl Condition, request: http::request::Builder) -> bool {
        condition.holds(&RequestHead::of(&request.body(()).unwrap()))
    }

    #[test]
    fn a_method_covers_head_where_it_is_get() {
        assert!(holds(&method(Method::GET), Request::head("/")));
        assert!(holds(&method(Method::HEAD), Request::head("/")));
        assert!(!holds(&method(Method::HEAD), Request::get("/")));
        assert!(!holds(&method(Method::POST), Request::get("/")));
    }

    #[test]
    fn a_prefix_ends_where_a_segment_does() {
        for (prefix, path, expected) in [
            ("/api", "/api", true),
            ("/api", "/api/", true),
            ("/api", "/api/users?x=/y", true),
            ("/api/", "/api", true),
            ("/api", "/apis", false),
            ("/api", "/", false),
            ("/", "/anything", true),
        ] {
            assert_eq!(holds(&path_prefix(prefix), Request::get(path)), expected, "{prefix} {path}");
        }
    }

    #[test]
    fn a_route_is_told_by_its_path_where_no_router_has_matched() {
        assert!(holds(&route("/package.Service/Method"), Request::post("/package.Service/Method")));
        assert!(!holds(&route("/package.Service/Method"), Request::post("/package.Service/Methods")));
    }

    #[test]
    fn all_of_every_line_of_a_header_counts() {
        let plan = header("X-Plan", "pro");
        assert!(holds(&plan, Request::get("/").header("x-plan", "pro")));
        assert!(holds(&plan, Request::get("/").header("x-plan", "pro").header("x-plan", "pro")));
        assert!(!holds(&plan, Request::get("/").header("x-plan", "free").header("x-plan", "pro")));
        assert!(!holds(&plan, Request::get("/").header("x-plan", "pro-ish")));
        assert!(!holds(&plan, Request::get("/")));
    }

    #[test]
    #[should_panic = "write \"/users\""]
    fn a_route_that_matches_nothing_is_refused() {
        let _ = route("users");
    }
}
