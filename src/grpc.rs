//! Detects gRPC requests.

use http::header::CONTENT_TYPE;
use http::{Method, Version};

use crate::request::RequestHead;

/// A protocol and the content types that a response in it can have.
struct Protocol {
    /// Whether it works over HTTP/1, as gRPC-Web does.
    is_web: bool,
    base: &'static str,
    proto: &'static str,
    json: &'static str,
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        is_web: false,
        base: "application/grpc",
        proto: "application/grpc+proto",
        json: "application/grpc+json",
    },
    Protocol {
        is_web: true,
        base: "application/grpc-web",
        proto: "application/grpc-web+proto",
        json: "application/grpc-web+json",
    },
    Protocol {
        is_web: true,
        base: "application/grpc-web-text",
        proto: "application/grpc-web-text+proto",
        json: "application/grpc-web-text+json",
    },
];

/// Returns the content type of the response to a genuine gRPC or gRPC-Web request, and `None` for any other request.
///
/// A header alone must not turn the rejection of another request into a 200. So a genuine request is a `POST`, has one
/// content type, and uses HTTP/2 or later unless it is gRPC-Web. The content type of the response is one of the
/// constants above rather than a copy of the client's text.
pub(crate) fn content_type(head: &RequestHead<'_>) -> Option<&'static str> {
    if *head.method != Method::POST {
        return None;
    }
    let mut values = head.headers.get_all(CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let media_type = value.to_str().ok()?.split(';').next()?.trim();
    let (base, format) = match media_type.split_once('+') {
        Some((base, format)) => (base, Some(format)),
        None => (media_type, None),
    };
    let protocol = PROTOCOLS.iter().find(|protocol| protocol.base.eq_ignore_ascii_case(base))?;
    if !protocol.is_web && head.version < Version::HTTP_2 {
        return None;
    }
    match format {
        None => Some(protocol.base),
        Some(format) if format.eq_ignore_ascii_case("proto") => Some(protocol.proto),
        Some(format) if format.eq_ignore_ascii_case("json") => Some(protocol.json),
        Some(format) => is_token(format).then_some(protocol.base),
    }
}

/// Returns whether a text is a token of RFC 9110, as the subtype of a media type is.
fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}
