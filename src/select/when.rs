//! Conditions: which requests a limit applies to, by method, route, host, header or time of day.
//!
//! Pass a condition to [`Limit::when`](crate::Limit::when). Combine conditions with [`and`](Condition::and),
//! [`or`](Condition::or) and [`not`], and write your own with [`from_fn`]. A limit's condition is evaluated before its
//! key and its cost.
//!
//! ```
//! use tower_ratelimit::when::{self, Condition};
//! use tower_ratelimit::{FixedWindow, Limit, key};
//! use http::Method;
//!
//! let posts = Limit::new("posts", FixedWindow::per_minute(10))
//!     .when(when::method(Method::POST).and(when::not(when::header("x-plan", "pro"))))
//!     .by(key::peer_ip());
//!
//! let large = Limit::new("large", FixedWindow::per_hour(5))
//!     .when(when::from_fn(|head| head.path().ends_with(".zip")));
//! # let _ = (posts, large);
//! ```

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::header::{CONNECTION, UPGRADE};
use http::{Method, Version};

use super::of_head;
#[cfg(feature = "time-zones")]
pub use super::time_of_day::{TimeOfDay, time_of_day, try_time_of_day};
pub use super::{Condition, not};
use crate::error::{or_panic, validation};
use crate::key::Spelling;
use crate::key::head::RequestHead;

/// Matches requests by method. `GET` also matches HEAD.
#[must_use]
pub fn method(method: Method) -> impl Condition {
    let or_head = if method == Method::GET { " or HEAD" } else { "" };
    of_head(format!("method is {method}{or_head}").into(), move |head, _| {
        *head.method == method || (*head.method == Method::HEAD && method == Method::GET)
    })
}

/// Matches requests by route, as it is written in the router (`/users/{id}`), including the prefixes of nested routers.
/// If no router has matched the request, as with gRPC, compares the request's path.
///
/// Logs a warning once if the route of a request differs only by a prefix, a trailing slash, case, or the names or the
/// syntax of parameters, or if a route with parameters is compared with a path because the layer is outside the router.
/// Of the requests for other routes, the first 1,024 are examined.
///
/// # Panics
///
/// Panics if `path` does not start with a slash, or has a query or spaces, because it would match nothing.
#[must_use]
#[track_caller]
pub fn route(path: impl Into<String>) -> impl Condition {
    let path = path.into();
    or_panic(validation::path("route", &path));
    let examined = AtomicUsize::new(0);
    of_head(format!("route is {path}").into(), move |head, _| {
        let matches = head.matched_path().unwrap_or_else(|| head.path()) == path;
        if !matches {
            report_near_miss(&examined, head, [&*path]);
        }
        matches
    })
}

/// Logs once that a request has missed a configured route that resembles its own. `examined` counts requests.
#[inline]
pub(crate) fn report_near_miss<'r>(
    examined: &AtomicUsize,
    head: &RequestHead<'_>,
    routes: impl IntoIterator<Item = &'r str>,
) {
    const MAX: usize = 1_024;
    if examined.load(Ordering::Relaxed) < MAX {
        examined.fetch_add(1, Ordering::Relaxed);
        if let Some(_route) = routes.into_iter().find(|route| resembles(route, head))
            && examined.swap(MAX, Ordering::Relaxed) < MAX
        {
            #[cfg(feature = "tracing")]
            tracing::warn!(
                route = _route,
                matched = head.matched_path(),
                "a request missed a route that resembles its own: write `matched` instead, if that is meant; without \
                 `matched`, the layer is outside the router: add it by `Router::layer`, or insert a `RoutePattern`"
            );
        }
    }
}

/// Returns whether a route that a request has missed was probably meant to match it.
#[cold]
fn resembles(route: &str, head: &RequestHead<'_>) -> bool {
    let parts = |path: &str| -> Vec<_> {
        let is_parameter = |part: &str| part.starts_with([':', '*', '{']);
        let part = |part: &str| if is_parameter(part) { String::new() } else { part.to_lowercase() };
        path.trim_end_matches('/').split('/').map(part).collect()
    };
    match head.matched_path() {
        _ if head.path() == route => true,
        Some(matched) => route.len() > 1 && parts(matched).ends_with(&parts(route)[1..]),
        // Outside a router, parameters match nothing.
        None => route.contains('{') && head.original_uri().is_none(),
    }
}

/// Matches requests whose path is `prefix` or lies below it. `/api` matches `/api` and `/api/users`, but not `/apis`.
///
/// Compares the [path](RequestHead::path) as the client spelled it. One route can have many spellings, so don't use
/// this condition to exempt requests from a limit that must hold.
///
/// # Panics
///
/// Panics if `prefix` does not start with a slash, or has a query or spaces, because it would match nothing.
#[must_use]
#[track_caller]
pub fn path_prefix(prefix: impl Into<String>) -> impl Condition {
    let mut prefix = prefix.into();
    or_panic(validation::path("path", &prefix));
    prefix.truncate(prefix.trim_end_matches('/').len());
    of_head(format!("path is {} or below", if prefix.is_empty() { "/" } else { &prefix }).into(), move |head, _| {
        head.path().strip_prefix(&prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Matches requests for a host, over any version of HTTP. Hosts are compared without regard to case, the port and the
/// last dot: see [`RequestHead::host`].
///
/// If the host of a request is invalid, or its URI and `Host` header differ, the condition does not
/// [hold](Condition::holds), and [may hold](Condition::may_hold) for any host.
///
/// ```
/// use tower_ratelimit::{Limit, TokenBucket, when};
///
/// let api = Limit::new("api", TokenBucket::per_second(100)).when(when::host("api.example.org"));
/// # let _ = api;
/// ```
///
/// # Panics
///
/// Panics if `host` is not a name or an IP address. Write the ASCII form of an international name
/// (`xn--bcher-kva.example`).
#[must_use]
#[track_caller]
pub fn host(host: &str) -> impl Condition {
    let host = or_panic(Spelling::Host.parse(host.as_bytes())).into_owned();
    of_head(format!("host is {}", String::from_utf8_lossy(&host)).into(), move |head, is_certain| {
        head.single_host().map_or(!is_certain, |found| found.is_some_and(|found| *found == *host))
    })
}

/// Matches handshakes of WebSockets: over HTTP/1.1, a `GET` with `Upgrade: websocket` and `Connection: upgrade`
/// (RFC 6455), and over later versions, an extended `CONNECT` (RFC 8441).
///
/// An extended `CONNECT` counts whatever its `:protocol`, because each server reports that in a type of its own.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, key, when};
///
/// let sockets = Limit::new("sockets", FixedWindow::per_hour(100)).by(key::peer_ip()).when(when::websocket());
/// # let _ = sockets;
/// ```
#[must_use]
pub fn websocket() -> impl Condition {
    of_head("request is a WebSocket handshake".into(), |head, _| {
        if head.version > Version::HTTP_11 {
            // The target of a plain `CONNECT` has no path.
            return *head.method == Method::CONNECT && head.uri.path_and_query().is_some();
        }
        // Some servers search the whole line for the option, so a client must not evade the condition by `x-upgrade`.
        let upgrades = |line: &[u8]| line.windows(7).any(|text| text.eq_ignore_ascii_case(b"upgrade"));
        *head.method == Method::GET
            && head.has_token(UPGRADE, "websocket")
            && head.header_lines(CONNECTION).any(upgrades)
    })
}

/// Matches requests with the header `name: value`. Values are compared as a whole and byte by byte, without the
/// whitespace around them; a list is not split at its commas. Values that their standard defines as case-insensitive
/// are compared [so](crate::key#spellings), and a content type without its parameters unless `value` has some.
///
/// If the header is [repeated](crate::key#repeated-headers), the condition [holds](Condition::holds) if all lines have
/// the value, and [may hold](Condition::may_hold) if at least one has.
///
/// # Panics
///
/// Panics if `name` is not a valid header name, or is `host`, which HTTP/2 has no header for: use [`host`].
#[must_use]
#[track_caller]
pub fn header(name: &str, value: impl Into<String>) -> impl Condition {
    let name = or_panic(validation::header_name(name));
    let value = value.into();
    let spelling = match Spelling::of(&name) {
        Spelling::MediaType if value.contains(';') => Spelling::Tokens,
        spelling => spelling,
    };
    let value = spelling.normalize(value.trim_ascii().as_bytes()).into_owned();
    let description = match is_credential(name.as_str()) {
        true => format!("header {name} has the configured value"),
        false => format!("header {name} is {:?}", String::from_utf8_lossy(&value)),
    };
    of_head(description.into(), move |head, is_certain| {
        let mut lines = head.header_lines(&name).map(|line| *spelling.normalize(line) == *value);
        match lines.next() {
            Some(first) if is_certain => first && lines.all(|matches| matches),
            Some(first) => first || lines.any(|matches| matches),
            None => false,
        }
    })
}

/// Returns whether the name of a header or a parameter suggests that its value is a credential.
pub(crate) fn is_credential(name: &str) -> bool {
    ["auth", "cookie", "key", "pass", "secret", "session", "token"].iter().any(|word| name.contains(word))
}

/// Makes a condition of a closure that returns whether it holds.
///
/// If the closure reads a [repeated header](crate::key#repeated-headers) by [`RequestHead::header`], the result is
/// ambiguous: the condition [holds](Condition::holds) only for readings without ambiguity, and
/// [may hold](Condition::may_hold) for all others.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, when};
///
/// let guests = Limit::new("guests", FixedWindow::per_day(10))
///     .when(when::from_fn(|head| head.header("authorization").is_none()));
/// # let _ = guests;
/// ```
pub const fn from_fn<F>(holds: F) -> impl Condition
where
    F: Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
{
    of_head(Cow::Borrowed("custom condition"), move |head, is_certain| {
        let (holds, is_ambiguous) = head.read_with(&holds);
        if is_ambiguous { !is_certain } else { holds }
    })
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
    #[should_panic = "the route \"/search?q=1\" matches nothing, because \"?\" is not in the paths of requests"]
    fn a_route_with_a_query_is_an_error() {
        let _ = route("/search?q=1");
    }

    #[test]
    fn a_path_with_a_method_or_a_host_is_rejected_with_the_path_alone() {
        for (text, path) in [
            ("POST /login", "/login"),
            ("GET  /users/{id}", "/users/{id}"),
            ("https://example.org/login", "/login"),
            ("GET https://example.org/a b", "/a b"),
        ] {
            let error = validation::path("route", text).unwrap_err();
            let expected = format!(
                "the route {text:?} matches nothing: write {path:?} alone, and name a method by `when::method`"
            );
            assert_eq!(error.to_string(), expected);
        }
        for text in ["POST", "https://example.org", "login page", "http:/login"] {
            let error = validation::path("route", text).unwrap_err();
            assert!(error.to_string().contains("start it with a slash"), "{error}");
        }
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

    #[test]
    fn conditions_describe_themselves() {
        let describe = |condition: &dyn Condition| condition.describe();
        let login = || route("/login");
        for (condition, expected) in [
            (&method(Method::POST) as &dyn Condition, "method is POST"),
            (&method(Method::GET), "method is GET or HEAD"),
            (&login(), "route is /login"),
            (&path_prefix("/api/"), "path is /api or below"),
            (&path_prefix("/"), "path is / or below"),
            (&header("x-plan", "pro"), "header x-plan is \"pro\""),
            (&header("Authorization", "s3cr3t"), "header authorization has the configured value"),
            (&header("x-bypass-token", "s3cr3t"), "header x-bypass-token has the configured value"),
            (&from_fn(|_| true), "custom condition"),
            (&from_fn(|_| true).label("client is a guest"), "client is a guest"),
            (&login().and(method(Method::PUT)), "route is /login and method is PUT"),
            (&login().and(login().or(login())), "route is /login and (route is /login or route is /login)"),
            (&not(login()), "not (route is /login)"),
        ] {
            assert_eq!(describe(condition), expected);
        }
    }
}
