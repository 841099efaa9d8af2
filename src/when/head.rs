//! Conditions on the head of a request: method, route, path and headers.

use std::fmt;

use http::{HeaderName, Method};

use super::condition::Condition;
use crate::error::or_panic;
use crate::key::heads::RequestHead;
use crate::validation;

/// Matches requests by method. `GET` also matches HEAD.
#[must_use]
pub const fn method(method: Method) -> MethodIs {
    MethodIs(method)
}

/// A condition on the method. Returned by [`method`].
#[derive(Clone, Debug)]
pub struct MethodIs(Method);

impl Condition for MethodIs {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        *head.method == self.0 || (*head.method == Method::HEAD && self.0 == Method::GET)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "method is {}", self.0)?;
        if self.0 == Method::GET { f.write_str(" or HEAD") } else { Ok(()) }
    }
}

/// Matches requests by route, as it is written in the router (`/users/{id}`), including the prefixes of nested routers.
/// If no router has matched the request, as with gRPC, compares the request's path.
///
/// # Panics
///
/// Panics if `path` does not start with a slash, because it would match nothing.
#[must_use]
#[track_caller]
pub fn route(path: impl Into<String>) -> Route {
    let path = path.into();
    or_panic(validation::path("route", &path));
    Route(path)
}

/// A condition on the matched route. Returned by [`route`].
#[derive(Clone, Debug)]
pub struct Route(String);

impl Condition for Route {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        head.matched_path().unwrap_or_else(|| head.path()) == self.0
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route is {}", self.0)
    }
}

/// Matches requests whose path is `prefix` or lies below it. `/api` matches `/api` and `/api/users`, but not `/apis`.
///
/// Compares the [path](RequestHead::path) as the client spelled it. One route can have many spellings, so don't use this
/// condition to exempt requests from a limit that must hold.
///
/// # Panics
///
/// Panics if `prefix` does not start with a slash, because it would match nothing.
#[must_use]
#[track_caller]
pub fn path_prefix(prefix: impl Into<String>) -> PathPrefix {
    let mut prefix = prefix.into();
    or_panic(validation::path("path", &prefix));
    prefix.truncate(prefix.trim_end_matches('/').len());
    PathPrefix(prefix)
}

/// A condition on the path. Returned by [`path_prefix`].
#[derive(Clone, Debug)]
pub struct PathPrefix(String);

impl Condition for PathPrefix {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        head.path().strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path is {} or below", if self.0.is_empty() { "/" } else { &self.0 })
    }
}

/// Matches requests with the header `name: value`. Values are compared as a whole and byte by byte, without the
/// whitespace around them; a list is not split at its commas.
///
/// If the header is [repeated](crate::key#repeated-headers), the condition [holds](Condition::holds) if all lines have
/// the value, and [may hold](Condition::may_hold) if at least one has.
///
/// # Panics
///
/// Panics if `name` is not a valid header name.
#[must_use]
#[track_caller]
pub fn header(name: &str, value: impl Into<String>) -> Header {
    Header { name: or_panic(validation::header_name(name)), value: value.into().trim_ascii().to_owned() }
}

/// A condition on a header. Returned by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    value: String,
}

impl Header {
    fn matches(&self, value: &[u8]) -> bool {
        value == self.value.as_bytes()
    }
}

impl Condition for Header {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.may_hold(head) && head.header_lines(&self.name).all(|value| self.matches(value))
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        head.header_lines(&self.name).any(|value| self.matches(value))
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_credential(&self.name) {
            return write!(f, "header {} has the configured value", self.name);
        }
        write!(f, "header {} is {:?}", self.name, self.value)
    }
}

/// Returns whether a header's name suggests that its value is a credential.
fn is_credential(name: &HeaderName) -> bool {
    ["auth", "cookie", "key", "pass", "secret", "session", "token"].iter().any(|word| name.as_str().contains(word))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn holds(condition: &impl Condition, request: http::request::Builder) -> bool {
        condition.holds(&RequestHead::of(&request.body(()).unwrap()))
    }

    #[test]
    fn get_covers_head() {
        assert!(holds(&method(Method::GET), Request::head("/")));
        assert!(holds(&method(Method::HEAD), Request::head("/")));
        assert!(!holds(&method(Method::HEAD), Request::get("/")));
        assert!(!holds(&method(Method::POST), Request::get("/")));
    }

    #[test]
    fn path_prefixes_match_whole_segments() {
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
    fn routes_match_the_path_if_no_router_has_matched() {
        assert!(holds(&route("/package.Service/Method"), Request::post("/package.Service/Method")));
        assert!(!holds(&route("/package.Service/Method"), Request::post("/package.Service/Methods")));
    }

    #[test]
    fn headers_match_only_if_all_lines_match() {
        let plan = header("X-Plan", "pro");
        assert!(holds(&plan, Request::get("/").header("x-plan", "pro")));
        assert!(holds(&plan, Request::get("/").header("x-plan", "pro").header("x-plan", "pro")));
        assert!(!holds(&plan, Request::get("/").header("x-plan", "free").header("x-plan", "pro")));
        assert!(!holds(&plan, Request::get("/").header("x-plan", "pro-ish")));
        assert!(!holds(&plan, Request::get("/")));
    }

    #[test]
    #[should_panic = "the route \"users\" matches nothing: start it with a slash, \"/users\""]
    fn routes_without_a_slash_are_rejected() {
        let _ = route("users");
    }

    #[test]
    #[should_panic = "the path \"api\" matches nothing: start it with a slash, \"/api\""]
    fn paths_without_a_slash_are_rejected() {
        let _ = path_prefix("api");
    }

    #[test]
    #[should_panic = "\"x plan\" is not a header's name: use letters, digits and dashes"]
    fn headers_that_can_never_exist_are_rejected() {
        let _ = header("x plan", "pro");
    }
}
