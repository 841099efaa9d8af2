//! Forward authentication: a proxy sends a check for each client request, and forwards the request only if the answer
//! is a success.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{HOST, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri};
use serde::Deserialize;
use tower::ServiceExt;
use tower_ratelimit::key::{PeerAddr, RoutePattern};

use crate::App;

/// The options of a check.
#[derive(Deserialize)]
pub(crate) struct Options {
    /// The status of denials in place of 429: nginx passes on 401 and 403 only.
    denied: Option<u16>,
}

/// Answers Traefik, Caddy and nginx, which describe the original request in headers.
pub(crate) async fn of_headers(
    State(app): State<App>,
    Path(domain): Path<String>,
    Query(options): Query<Options>,
    mut request: Request,
) -> Response {
    let denied = match options.denied {
        None => StatusCode::TOO_MANY_REQUESTS,
        Some(403) => StatusCode::FORBIDDEN,
        Some(status) => return rejection(format_args!("denied={status} is not possible: write denied=403")),
    };
    if let Err(message) = restore(&mut request) {
        return rejection(message);
    }
    let mut response = answer(&app, &domain, request).await;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        *response.status_mut() = denied;
    }
    response
}

/// Answers Envoy's `ext_authz`, which sends the method and the headers of the original request, and its path behind a
/// prefix.
pub(crate) async fn of_request(
    State(app): State<App>,
    Path(domain): Path<Vec<(String, String)>>,
    mut request: Request,
) -> Response {
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    // Behind `/ext_authz` and the domain, as the client has spelled it.
    let behind = path.match_indices(['/', '?']).nth(2).map_or("", |(at, _)| &path[at..]);
    let slash = if behind.starts_with('/') { "" } else { "/" };
    match format!("{slash}{behind}").parse() {
        Ok(uri) => set_uri(&mut request, uri),
        Err(error) => return rejection(format_args!("the path {behind:?} is not valid: {error}")),
    }
    match domain.first() {
        Some((_, domain)) => answer(&app, domain, request).await,
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Answers for an original request.
async fn answer(app: &App, domain: &str, request: Request) -> Response {
    let Some(domain) = app.domains.get(domain) else {
        let message =
            format!("there are no rules for the domain {domain:?}: add a file to --rules, or correct the path\n");
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    // Of the extensions, only the proxy's address is of the original request: the others describe the check.
    let (mut parts, _) = request.into_parts();
    let peer = parts.extensions.remove::<ConnectInfo<SocketAddr>>();
    parts.extensions.clear();
    peer.and_then(|ConnectInfo(peer)| parts.extensions.insert(PeerAddr(peer)));
    parts.extensions.insert(RoutePattern(normalized(parts.uri.path())));
    domain.answers.clone().oneshot(Request::from_parts(parts, Body::empty())).await.into_response()
}

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Gives a request the method, the URI and the host that a proxy names in headers.
///
/// # Errors
///
/// Returns a message if the method or the URI is missing, or if one of the three is repeated or invalid. Without them,
/// the rules for a path would not apply.
fn restore(request: &mut Request) -> Result<(), String> {
    let method = take(request, METHOD)?.ok_or_else(|| missing(&METHOD))?;
    let uri = take(request, URI)?.ok_or_else(|| missing(&URI))?;
    *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|error| format!("{METHOD}: {error}"))?;
    let uri = Uri::try_from(uri.as_bytes()).map_err(|error| format!("{URI}: {error}"))?;
    set_uri(request, uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")).into());
    if let Some(host) = take(request, FORWARDED_HOST)? {
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// Replaces the URI. Keeps the host, which HTTP/2 has in the URI.
fn set_uri(request: &mut Request, uri: Uri) {
    let host = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host.filter(|_| !request.headers().contains_key(HOST)) {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = uri;
}

fn missing(name: &HeaderName) -> String {
    format!("the header {name} is missing: let the proxy set it")
}

/// Removes a header, and returns its value.
fn take(request: &mut Request, name: HeaderName) -> Result<Option<HeaderValue>, String> {
    if request.headers().get_all(&name).iter().nth(1).is_some() {
        return Err(format!("the header {name} occurs several times: let the proxy replace that of the client"));
    }
    Ok(request.headers_mut().remove(&name))
}

fn rejection(message: impl ToString) -> Response {
    (StatusCode::BAD_REQUEST, message.to_string() + "\n").into_response()
}

/// Returns a path in one spelling, so that clients can't evade a limit by another: without needless percent encoding,
/// dot segments and repeated slashes.
pub(crate) fn normalized(path: &str) -> String {
    let mut segments: Vec<String> = Vec::new();
    let mut rest = path.split('/').peekable();
    while let Some(segment) = rest.next() {
        let segment = decoded(segment);
        let is_last = rest.peek().is_none();
        match segment.as_str() {
            ".." => drop(segments.pop()),
            "." => {}
            "" if !is_last => {}
            _ => {
                segments.push(segment);
                continue;
            }
        }
        // A folder ends in a slash.
        if is_last && segments.last().is_some_and(|last| !last.is_empty()) {
            segments.push(String::new());
        }
    }
    if path.starts_with('/') { format!("/{}", segments.join("/")) } else { path.to_owned() }
}

/// Decodes the characters that need no percent encoding, and writes others in upper case, as RFC 3986 recommends.
fn decoded(segment: &str) -> String {
    let mut parts = segment.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => text.push(byte.into()),
            Some(byte) => text += &format!("%{byte:02X}"),
            None => text += "%",
        }
        text += if code.is_some() { &part[2..] } else { part };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::normalized;

    #[test]
    fn spellings_of_a_path_are_one() {
        for (path, expected) in [
            ("/", "/"),
            ("//", "/"),
            ("/login", "/login"),
            ("//login", "/login"),
            ("/%6cogin", "/login"),
            ("/./a/../login", "/login"),
            ("/a/%2e%2e/login", "/login"),
            ("/../login", "/login"),
            ("/login/", "/login/"),
            ("/login//", "/login/"),
            ("/a/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/a%2fb%zz", "/a%2Fb%zz"),
            ("/é%c3", "/é%C3"),
            ("*", "*"),
        ] {
            assert_eq!(normalized(path), expected, "{path}");
        }
    }
}
