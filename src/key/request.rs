//! Keys that the head of a request contains: a header, a bearer token, a cookie, a query parameter, the host, the path,
//! the route or the method.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderName, Method};

use super::encoding::KeyBuf;
use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor};
use super::hash::KeyHasher;
use super::head::{Repeated, RequestHead, is_token};
use super::part::{KeyPart, text};
use super::spelling::Spelling;
use crate::error::{or_panic, validation};

/// Extracts the value of the header `name`, as bytes, without the whitespace around it.
///
/// The key is missing if the header is absent or blank. A request that repeats the header is
/// [ambiguous](super#repeated-headers), and is rejected with 400. Clients choose their headers: see
/// [trust](super#trust). Values that their standard defines as case-insensitive have [one spelling](super#spellings).
///
/// ```
/// use tower_ratelimit::{Limit, TokenBucket, key};
///
/// let api = Limit::new("api", TokenBucket::per_second(10)).by(key::header("x-api-key"));
/// # let _ = api;
/// ```
///
/// # Panics
///
/// Panics if `name` is not a valid header name, or is `host`, which HTTP/2 has no header for: use [`host`].
#[track_caller]
pub fn header(name: &str) -> impl KeyExtractor + Clone + use<> {
    let name = or_panic(validation::header_name(name));
    HeadKey::Header(Spelling::of(&name), name)
}

/// Extracts the token of `Authorization: Bearer`, as bytes. The scheme may be written in any case.
///
/// The key is missing if there is no such header, or it has another scheme. A request that repeats the header, or has
/// spaces or commas in its token, is [ambiguous](super#repeated-headers), and is rejected with 400. Clients choose
/// their tokens: place the limiter inside the layer that checks them. See [trust](super#trust).
///
/// ```
/// use tower_ratelimit::{Limit, TokenBucket, key};
///
/// let api = Limit::new("api", TokenBucket::per_second(10)).by(key::bearer());
/// # let _ = api;
/// ```
pub const fn bearer() -> impl KeyExtractor + Clone {
    HeadKey::Bearer
}

/// Extracts the value of the cookie `name`, as bytes.
///
/// Cookies are read by RFC 6265, section 4.2: pairs `name=value`, separated by semicolons, in any number of `Cookie`
/// lines. Names are case-sensitive. Double quotes around a value are not part of the key, because servers disagree on
/// whether they belong to the value. Percent encoding is kept as it is.
///
/// The key is missing if the cookie is absent or empty. A request with several cookies of that name, in one line or in
/// several, is [ambiguous](super#repeated-headers), and is rejected with 400. Clients choose their cookies: see
/// [trust](super#trust).
///
/// ```
/// use tower_ratelimit::{Limit, TokenBucket, key};
///
/// let sessions = Limit::new("sessions", TokenBucket::per_second(10)).by(key::cookie("session"));
/// # let _ = sessions;
/// ```
///
/// # Panics
///
/// Panics if `name` is not a token of RFC 9110: letters, digits and ``!#$%&'*+-.^_`|~``.
#[track_caller]
pub fn cookie(name: &str) -> impl KeyExtractor + Clone + use<> {
    assert!(is_token(name.as_bytes()), "{name:?} is not a cookie's name: use letters, digits, dashes and underscores");
    HeadKey::Cookie(name.into())
}

/// Extracts the value of the query parameter `name`, as text.
///
/// Names and values are decoded as `application/x-www-form-urlencoded`, so that all encodings of a value are the same
/// key.
///
/// The key is missing if the parameter is absent or empty. A request with several parameters of that name is
/// [ambiguous](super#repeated-headers), and is rejected with 400. Clients choose their query: see [trust](super#trust).
///
/// ```
/// use tower_ratelimit::{Limit, TokenBucket, key};
///
/// let api = Limit::new("api", TokenBucket::per_second(10)).by(key::query("api_key"));
/// # let _ = api;
/// ```
pub fn query(name: &str) -> impl KeyExtractor + Clone + use<> {
    HeadKey::Query(name.into())
}

/// Extracts the [host](RequestHead::host) that the request is for, over any version of HTTP, as text: a name in lower
/// case without a port (`example.org`), or an IP address (`192.0.2.1`, `[2001:db8::1]`).
///
/// The key is missing if there is no host. A request whose host is invalid, or whose URI and `Host` header differ, is
/// [ambiguous](super#repeated-headers), and is rejected with 400. Clients choose the host: place the limiter inside the
/// layer that rejects hosts which the service does not have. See [trust](super#trust).
///
/// ```
/// use tower_ratelimit::{Limit, TokenBucket, key};
///
/// let site = Limit::new("site", TokenBucket::per_second(100)).by(key::host());
/// # let _ = site;
/// ```
pub const fn host() -> impl KeyExtractor + Clone {
    HeadKey::Host
}

/// Extracts the [path](RequestHead::path) as the client spelled it, without the query. One route can have many
/// spellings, each with a bucket of its own: prefer [`matched_route`], except for services without a router.
pub const fn path() -> impl KeyExtractor + Clone {
    HeadKey::Path
}

/// Extracts the route that the request has matched, as it is written in the router (`/users/{id}`). All requests
/// without a matched route share one key. In Axum, add the layer to the `Router` rather than around it: outside, no
/// route is matched yet.
///
/// The route of a gRPC request that no router has handled is its path (`/package.Service/Method`). Clients can invent
/// methods, each with a bucket of its own.
pub const fn matched_route() -> impl KeyExtractor + Clone {
    HeadKey::Route
}

/// Extracts the method. HEAD counts as GET.
///
/// The methods of RFC 9110 and RFC 5789 (GET, POST, PUT, DELETE, CONNECT, OPTIONS, TRACE and PATCH) have a bucket each.
/// All other methods share the key `"_OTHER"`, so that clients gain no buckets by inventing methods. For a separate
/// bucket for a method of your own, use [`from_fn`](super::from_fn), or a limit with
/// [`when::method`](crate::when::method).
pub const fn method() -> impl KeyExtractor + Clone {
    HeadKey::Method { is_any: false }
}

/// Extracts the method, also a non-standard one, for comparison with the values of a rules file.
#[cfg(feature = "rules")]
pub(crate) const fn any_method() -> impl KeyExtractor {
    HeadKey::Method { is_any: true }
}

#[derive(Clone)]
enum HeadKey {
    Header(Spelling, HeaderName),
    Bearer,
    Host,
    Cookie(Box<str>),
    Query(Box<str>),
    Path,
    Route,
    /// The method. Non-standard methods share a key unless `is_any` is set.
    Method {
        is_any: bool,
    },
}

impl HeadKey {
    #[inline]
    fn find<'h>(&self, head: &RequestHead<'h>) -> Result<Cow<'h, [u8]>, KeyError> {
        let text = match self {
            Self::Header(spelling, name) => return only_line(head, name).map(|value| spelling.normalize(value)),
            Self::Bearer => return bearer_token(only_line(head, &AUTHORIZATION)?).map(Cow::Borrowed),
            Self::Host => return head.single_host().map_err(|Repeated| KeyError::Ambiguous)?.ok_or(KeyError::NotSent),
            Self::Cookie(name) => {
                let lines = head.headers.get_all(COOKIE).iter();
                let pairs = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
                return only(pairs.filter_map(|pair| value_of(pair, name.as_bytes())).map(Cow::Borrowed));
            }
            Self::Query(name) => {
                let parameters = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
                return only(parameters.filter(|(key, _)| **key == **name).map(|(_, value)| match value {
                    Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
                    Cow::Owned(value) => Cow::Owned(value.into_bytes()),
                }));
            }
            Self::Path => head.path(),
            Self::Route => head.matched_path().unwrap_or_else(|| {
                let is_routed = head.original_uri().is_some();
                if !is_routed && head.grpc_content_type().is_some() { head.path() } else { "" }
            }),
            Self::Method { is_any } => {
                let method = if *head.method == Method::HEAD { "GET" } else { head.method.as_str() };
                if *is_any || is_standard(method) { method } else { OTHER_METHODS }
            }
        };
        Ok(Cow::Borrowed(text.as_bytes()))
    }
}

/// Returns the value of a header that has one line.
fn only_line<'h>(head: &RequestHead<'h>, name: &HeaderName) -> Result<&'h [u8], KeyError> {
    let line = head.single_header(name).map_err(|Repeated| KeyError::Ambiguous)?;
    line.filter(|value| !value.is_empty()).ok_or(KeyError::NotSent)
}

/// Returns the token of a value of `Authorization`. Programs disagree on where a token with spaces or commas ends.
fn bearer_token(credentials: &[u8]) -> Result<&[u8], KeyError> {
    let mut words = credentials.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    match (words.next(), words.next(), words.next()) {
        (Some(scheme), Some(token), end) if scheme.eq_ignore_ascii_case(b"bearer") => {
            if end.is_none() && !token.contains(&b',') { Ok(token) } else { Err(KeyError::Ambiguous) }
        }
        _ => Err(KeyError::NotSent),
    }
}

/// Returns the only one of the values that the client sent under a name.
fn only<'h>(mut values: impl Iterator<Item = Cow<'h, [u8]>>) -> Result<Cow<'h, [u8]>, KeyError> {
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(KeyError::Ambiguous),
        (Some(value), None) if !value.is_empty() => Ok(value),
        _ => Err(KeyError::NotSent),
    }
}

/// Returns the value of the pair `name=value`, without whitespace and quotes around it.
fn value_of<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let equals = pair.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    (key == name).then_some(unquoted.unwrap_or(value))
}

impl KeyExtractor for HeadKey {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
        key.push(&self.find(head)?);
        Ok(Extracted::Done)
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        Hashed::Known(self.find(head).map(|value| hasher.hash(&value)))
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        let name = match self {
            Self::Header(_, name) => format!("header {name}"),
            Self::Bearer => "bearer token".into(),
            Self::Host => "host".into(),
            Self::Cookie(name) => format!("cookie {name}"),
            Self::Query(name) => format!("query {name}"),
            Self::Path => "path".into(),
            Self::Route => "route".into(),
            // Explanations and metrics show the key, so that clients can't invent values.
            Self::Method { is_any: true } => return method().describe(head),
            Self::Method { is_any: false } => "method".into(),
        };
        let is_secret = matches!(self, Self::Header(..) | Self::Bearer | Self::Cookie(_) | Self::Query(_));
        vec![match self.find(head) {
            Ok(value) if is_secret => KeyPart::secret(name, value),
            Ok(value) => KeyPart::new(name, text(&value)),
            Err(_) => KeyPart::missing(name),
        }]
    }

    fn header_name(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(_, name) => Some(name),
            _ => None,
        }
    }

    fn spelling(&self) -> Spelling {
        match self {
            Self::Header(spelling, _) => *spelling,
            Self::Host => Spelling::Host,
            _ => Spelling::Exact,
        }
    }
}

/// The key of all non-standard methods, the same as in OpenTelemetry's semantic conventions.
pub(crate) const OTHER_METHODS: &str = "_OTHER";

/// Returns whether RFC 9110 or RFC 5789 defines the method.
pub(crate) fn is_standard(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH")
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn cookie_in(lines: &[&[u8]]) -> Result<Vec<u8>, KeyError> {
        let mut request = Request::new(());
        for line in lines {
            request.headers_mut().append(COOKIE, line.to_vec().try_into().unwrap());
        }
        HeadKey::Cookie("sid".into()).find(&RequestHead::of(&request)).map(Cow::into_owned)
    }

    fn parameter_in(uri: &str) -> Result<Vec<u8>, KeyError> {
        let request = Request::get(uri).body(()).unwrap();
        HeadKey::Query("a b".into()).find(&RequestHead::of(&request)).map(Cow::into_owned)
    }

    #[test]
    fn cookies_are_found_among_others_and_in_any_line() {
        let lines: [&[&[u8]]; 9] = [
            &[b"sid=7"],
            &[b"a=1; sid=7; b=2"],
            &[b"a=1;sid=7"],
            &[b"a=1", b"sid=7"],
            &[b"sid=\"7\""],
            &[b" sid = 7 ;; "],
            &[b"SID=1; sid=7; xsid=2; sid2=3"],
            &[b"sid; sid=7"],
            &[b"a=\xff; sid=7"],
        ];
        for lines in lines {
            assert_eq!(cookie_in(lines), Ok(b"7".to_vec()), "{lines:?}");
        }
        assert_eq!(cookie_in(&[b"sid=a=b"]), Ok(b"a=b".to_vec()));
        assert_eq!(cookie_in(&[b"sid=%41"]), Ok(b"%41".to_vec()));
        assert_eq!(cookie_in(&[b"sid=\""]), Ok(b"\"".to_vec()));
    }

    #[test]
    fn absent_and_empty_cookies_are_missing() {
        let lines: [&[&[u8]]; 6] = [&[], &[b""], &[b"sid"], &[b"sid="], &[b"sid=\"\""], &[b"a=sid=7"]];
        for lines in lines {
            assert_eq!(cookie_in(lines), Err(KeyError::NotSent), "{lines:?}");
        }
    }

    #[test]
    fn repeated_cookies_are_ambiguous() {
        let lines: [&[&[u8]]; 5] =
            [&[b"sid=7; sid=8"], &[b"sid=7; sid=7"], &[b"sid=7", b"sid=8"], &[b"sid=; sid=7"], &[b"sid=7; sid =\"8\""]];
        for lines in lines {
            assert_eq!(cookie_in(lines), Err(KeyError::Ambiguous), "{lines:?}");
        }
    }

    #[test]
    fn names_that_no_cookie_has_are_rejected() {
        for name in ["", "a b", "a=b", "a;b", "ä", "\"a\""] {
            let panic = std::panic::catch_unwind(|| drop(cookie(name))).unwrap_err();
            let expected = format!("{name:?} is not a cookie's name: use letters, digits, dashes and underscores");
            assert_eq!(panic.downcast_ref(), Some(&expected));
        }
        let _ = cookie("__Host-session.id");
    }

    #[test]
    fn encodings_of_a_parameter_are_one_key() {
        for uri in ["/?a+b=x%2Fy", "/?a%20b=x/y", "/?c=1&%61+b=%78%2fy&d", "/?A+b=1&a+b=x/y"] {
            assert_eq!(parameter_in(uri), Ok(b"x/y".to_vec()), "{uri}");
        }
    }

    #[cfg(feature = "rules")]
    #[test]
    fn invented_methods_are_described_by_their_key() {
        let request = Request::builder().method("PURGE").body(()).unwrap();
        assert_eq!(any_method().describe(&RequestHead::of(&request)), [KeyPart::new("method", OTHER_METHODS)]);
    }

    #[test]
    fn absent_empty_and_repeated_parameters_have_no_key() {
        for uri in ["/", "/?", "/?a+b", "/?a+b=", "/?c=a+b"] {
            assert_eq!(parameter_in(uri), Err(KeyError::NotSent), "{uri}");
        }
        for uri in ["/?a+b=1&a+b=2", "/?a+b=1&a+b=1", "/?a+b=&a%20b=1"] {
            assert_eq!(parameter_in(uri), Err(KeyError::Ambiguous), "{uri}");
        }
    }
}
