//! The head of a request, which keys, costs and conditions are computed from, and the head of a response, which the
//! actual cost is computed from.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::header::{AsHeaderName, CONTENT_TYPE, HOST, TE};
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

use super::spelling::host;
use crate::error::printable;

/// The head of a request: everything except the body.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
///
/// let request = Request::get("/search").header("x-plan", "pro").body(()).unwrap();
/// let head = RequestHead::of(&request);
/// assert_eq!((head.path(), head.header("x-plan")), ("/search", Some("pro")));
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The HTTP version.
    pub version: Version,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The extensions that the server and the outer layers have set.
    pub extensions: &'a Extensions,
    /// Records that [`header`](Self::header) was called for a repeated header. [`read_with`](Self::read_with) sets it
    /// around closures of the user. It is atomic, so that a head can be shared between threads.
    ambiguity: Option<&'a AtomicBool>,
}

impl<'a> RequestHead<'a> {
    /// Returns the head of `request`.
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

    /// Calls `read` with this head. Also returns whether `read` called [`header`](Self::header) for a repeated header.
    pub(crate) fn read_with<T>(&self, read: impl FnOnce(&RequestHead<'_>) -> T) -> (T, bool) {
        let ambiguity = AtomicBool::new(false);
        let value = read(&RequestHead { ambiguity: Some(&ambiguity), ..*self });
        (value, ambiguity.into_inner())
    }

    /// Returns the value of the header `name` without the whitespace around it, if it occurs exactly once, and is
    /// visible ASCII and not blank.
    ///
    /// Returns `None` if the header is [repeated](crate::key#repeated-headers), because another reader of the request
    /// may take another line. A closure for a key or a condition then counts as ambiguous, regardless of its result, so
    /// that clients gain nothing by repeating a header. To handle repeated headers yourself, read all lines from
    /// [`headers`](Self::headers). For the host, use [`host`](Self::host), because HTTP/2 has no header for it.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let value = self.single_header(name).unwrap_or_else(|Repeated| self.mark_ambiguous())?;
        str::from_utf8(value).ok().filter(|value| !value.is_empty() && value.is_ascii())
    }

    /// Returns the host that the request is for, over any version of HTTP: that of the URI, which is the `:authority`
    /// of HTTP/2, or else that of the header `Host`. It is a name in lower case, without the port and the last dot of
    /// the header, or an IP address (`192.0.2.1`, `[2001:db8::1]`).
    ///
    /// Returns `None` if there is no host, or no single one: the two differ, the header is
    /// [repeated](crate::key#repeated-headers), or one of them is invalid. A closure for a key or a condition then
    /// counts as ambiguous, as with [`header`](Self::header). A host is invalid if it has a user, characters outside
    /// ASCII, or percent-encoded ones.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::RequestHead;
    ///
    /// let one = Request::get("/").header("host", "Example.org:80").body(()).unwrap();
    /// let other = Request::get("https://example.org/").body(()).unwrap();
    /// assert_eq!(RequestHead::of(&one).host().as_deref(), Some("example.org"));
    /// assert_eq!(RequestHead::of(&other).host().as_deref(), Some("example.org"));
    /// ```
    #[must_use]
    pub fn host(&self) -> Option<Cow<'a, str>> {
        match self.single_host().unwrap_or_else(|Repeated| self.mark_ambiguous())? {
            Cow::Borrowed(host) => str::from_utf8(host).ok().map(Cow::Borrowed),
            Cow::Owned(host) => String::from_utf8(host).ok().map(Cow::Owned),
        }
    }

    fn mark_ambiguous<T>(&self) -> Option<T> {
        if let Some(ambiguity) = self.ambiguity {
            ambiguity.store(true, Ordering::Relaxed);
        }
        None
    }

    /// Returns the [host](Self::host), or an error if there is no single one.
    pub(crate) fn single_host(&self) -> Result<Option<Cow<'a, [u8]>>, Repeated> {
        let header = self.single_header(HOST)?.filter(|host| !host.is_empty());
        let authority = self.uri.authority().map(|authority| authority.as_str().as_bytes());
        let mut hosts = authority.into_iter().chain(header).map(|text| host(text).ok_or(Repeated));
        let host = hosts.next().transpose()?;
        match hosts.next().transpose()? {
            Some(other) if host.as_ref() != Some(&other) => Err(Repeated),
            _ => Ok(host),
        }
    }

    /// Returns the values of all lines of a header. HTTP/2 transmits the whitespace around a value, which is not part
    /// of it (RFC 9110, section 5.5).
    pub(crate) fn header_lines(&self, name: impl AsHeaderName) -> impl Iterator<Item = &'a [u8]> {
        self.headers.get_all(name).iter().map(|value| value.as_bytes().trim_ascii())
    }

    /// Returns the value of a header that must not be repeated. See [`header_lines`](Self::header_lines).
    pub(crate) fn single_header(&self, name: impl AsHeaderName) -> Result<Option<&'a [u8]>, Repeated> {
        let mut values = self.header_lines(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(Repeated),
        }
    }

    /// Returns whether a list of tokens, which can have several lines, contains `token` in any case.
    pub(crate) fn has_token(&self, name: impl AsHeaderName, token: &str) -> bool {
        let mut tokens = self.header_lines(name).flat_map(|line| line.split(|&byte| byte == b','));
        tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }

    /// Returns the path that the client sent. In a nested router of Axum, this includes the router's prefix, which
    /// [`uri`](Self::uri) lacks.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.original_uri().unwrap_or(self.uri).path()
    }

    /// Returns the URI that the client sent, if a router of Axum has handled the request.
    pub(crate) fn original_uri(&self) -> Option<&'a Uri> {
        #[cfg(feature = "axum")]
        return self.extensions.get().map(|axum::extract::OriginalUri(uri)| uri);
        #[cfg(not(feature = "axum"))]
        None
    }

    /// Returns a copy without most extensions, for rejections after the request has been consumed.
    pub(crate) fn to_request(self) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = self.version;
        *request.headers_mut() = self.headers.clone();
        #[cfg(feature = "axum")]
        if let Some(uri) = self.original_uri() {
            request.extensions_mut().insert(axum::extract::OriginalUri(uri.clone()));
        }
        request
    }

    /// Returns the matched route as it is written in the router (`/users/{id}`), if there is one: that of a
    /// [`RoutePattern`] extension, or else Axum's.
    #[must_use]
    pub fn matched_path(&self) -> Option<&'a str> {
        if let Some(RoutePattern(route)) = self.extensions.get() {
            return Some(route);
        }
        #[cfg(feature = "axum")]
        if let Some(path) = self.extensions.get::<axum::extract::MatchedPath>() {
            return Some(path.as_str());
        }
        None
    }

    /// Returns the address of the peer, which may be an IPv4-mapped one.
    #[inline(always)]
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        if let Some(PeerAddr(peer)) = self.extensions.get() {
            return Some(peer.ip());
        }
        #[cfg(feature = "axum")]
        if let Some(ConnectInfo(peer)) = self.extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(peer.ip());
        }
        self.fallback_address()
    }

    #[inline(never)]
    fn fallback_address(&self) -> Option<IpAddr> {
        #[cfg(feature = "axum")]
        if let Some(MockConnectInfo(peer)) = self.extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(peer.ip());
        }
        #[cfg(feature = "tonic")]
        if let Some(peer) = self.extensions.get::<TcpConnectInfo>() {
            return peer.remote_addr().map(|peer| peer.ip());
        }
        None
    }

    /// Returns whether the server marks the peer as one on a Unix socket.
    pub(super) fn has_unix_peer(&self) -> bool {
        #[cfg(all(feature = "tonic", unix))]
        if self.extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
            return true;
        }
        self.extensions.get::<UnixPeer>().is_some()
    }

    /// Returns the content type of the response to a genuine gRPC or gRPC-Web request, and `None` for any other
    /// request.
    ///
    /// A header alone must not turn the rejection of another request into a 200. So a genuine request is a `POST`, has
    /// one content type, and uses HTTP/2 or later unless it is gRPC-Web. A layer that translates gRPC-Web leaves the
    /// version, and adds the `TE: trailers` of gRPC. The content type of the response is a constant rather than a copy
    /// of the client's text.
    pub(crate) fn grpc_content_type(&self) -> Option<&'static str> {
        const GRPC: &str = "application/grpc";
        const KNOWN: [&str; 9] = [
            GRPC,
            "application/grpc+proto",
            "application/grpc+json",
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpc-web+json",
            "application/grpc-web-text",
            "application/grpc-web-text+proto",
            "application/grpc-web-text+json",
        ];
        let known = |text: &str| KNOWN.into_iter().find(|known| known.eq_ignore_ascii_case(text));
        if *self.method != Method::POST {
            return None;
        }
        let media_type = str::from_utf8(self.single_header(CONTENT_TYPE).ok()??).ok()?.split(';').next()?.trim();
        let (base, format) = media_type.split_once('+').unwrap_or((media_type, "proto"));
        let base = known(base)
            .filter(|base| *base != GRPC || self.version >= Version::HTTP_2 || self.has_token(TE, "trailers"))?;
        // Requests in a format of their own are genuine, too, if its name is a token of RFC 9110.
        is_token(format.as_bytes()).then(|| known(media_type).unwrap_or(base))
    }
}

/// Shows the method and the path. The query and the headers may contain credentials.
impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHead({} {})", self.method, printable(self.path()))
    }
}

/// Returns whether `text` is a token of RFC 9110.
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// The pattern of the route that a router other than Axum's has matched, as an extension of the request.
///
/// A request that is built for an [explanation](crate::explain) or a [dry run](crate::dry_run) needs it, too, if limits
/// depend on the route. Take it from the router, never from the path: a client that chooses the route chooses its
/// bucket.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
/// use tower_ratelimit::key::RoutePattern;
///
/// let mut request = Request::get("/users/42").body(()).unwrap();
/// request.extensions_mut().insert(RoutePattern("/users/{id}".to_owned()));
/// assert_eq!(RequestHead::of(&request).matched_path(), Some("/users/{id}"));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RoutePattern(pub String);

/// A request extension with the peer's address, for servers that provide no other.
///
/// ```
/// use tower_ratelimit::key::PeerAddr;
///
/// # let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 5000));
/// # let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddr(peer));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddr(pub SocketAddr);

/// A request extension for connections over a Unix socket, whose peer has no address. Tonic's server sets its own. If
/// the server also provides an address, the address takes precedence.
///
/// Takes effect with [`TrustedProxies::trust_unix_peers`](super::TrustedProxies::trust_unix_peers).
///
/// ```
/// use axum::{Extension, Router};
/// use tower_ratelimit::key::UnixPeer;
///
/// # let limits = tower_ratelimit::RateLimitLayer::new([
/// #     tower_ratelimit::Limit::new("one", tower_ratelimit::FixedWindow::per_day(1)),
/// # ]);
/// // Outside the limits, for an app that is served only on a Unix socket.
/// let app: Router = Router::new().layer(limits).layer(Extension(UnixPeer));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnixPeer;

/// A header occurs several times that must occur at most once, or a request has no single host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeated;

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
#[derive(Clone, Copy)]
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

/// Shows the status. The headers may contain credentials.
impl fmt::Debug for ResponseHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponseHead({})", self.status)
    }
}
