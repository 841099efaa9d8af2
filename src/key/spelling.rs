//! Values that clients can spell in several ways, and the spelling that is compared and hashed.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use http::HeaderName;

use crate::error::ConfigError;

/// The spellings of a value that have the same meaning.
#[allow(missing_docs, reason = "cannot be named outside this crate")]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spelling {
    /// Each spelling is another value.
    Exact,
    /// Tokens, without regard to case and to whitespace and quotes between them.
    Tokens,
    /// A media type, without regard to case and parameters.
    MediaType,
    /// Credentials (RFC 9110, section 11.4). The case of their scheme has no meaning.
    Credentials,
    /// A host, without regard to case, the port and the last dot.
    Host,
}

impl Spelling {
    /// Returns the spelling of the values of a header, by the standard of the header.
    pub(crate) fn of(name: &HeaderName) -> Self {
        match name.as_str() {
            "content-type" => Self::MediaType,
            "authorization" | "proxy-authorization" => Self::Credentials,
            "accept"
            | "accept-charset"
            | "accept-encoding"
            | "accept-language"
            | "access-control-request-headers"
            | "cache-control"
            | "connection"
            | "content-encoding"
            | "content-language"
            | "expect"
            | "origin"
            | "pragma"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "x-forwarded-proto" => Self::Tokens,
            _ => Self::Exact,
        }
    }

    /// Returns the one spelling that stands for all with the same meaning. A value that is not a host is left as it is.
    #[inline]
    pub(crate) fn normalize(self, value: &[u8]) -> Cow<'_, [u8]> {
        if self == Self::Exact { Cow::Borrowed(value) } else { self.normalize_other(value) }
    }

    /// Normalizes a value of a configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if no request has the value.
    pub(crate) fn parse(self, value: &[u8]) -> Result<Cow<'_, [u8]>, ConfigError> {
        let text = String::from_utf8_lossy(value);
        if self == Self::Host && host(value).is_none() {
            return Err(ConfigError::new(format!(
                "{text:?} is not a host: write a name such as \"example.org\", without a port, or an IP address, such \
                 as \"[2001:db8::1]\""
            )));
        }
        if self == Self::MediaType && value.contains(&b';') {
            let message = format!("{text:?} is compared without parameters: leave out the semicolon and what follows");
            return Err(ConfigError::new(message));
        }
        Ok(self.normalize(value))
    }

    #[inline(never)]
    fn normalize_other(self, value: &[u8]) -> Cow<'_, [u8]> {
        let until = |is_end: fn(&u8) -> bool| value.iter().position(is_end).unwrap_or(value.len());
        match self {
            Self::Exact => value.into(),
            Self::Tokens => {
                let has_meaning = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'"');
                match value.iter().all(has_meaning) {
                    true => lowercase(value),
                    false => value.iter().filter(|byte| has_meaning(byte)).map(u8::to_ascii_lowercase).collect(),
                }
            }
            Self::MediaType => lowercase(value[..until(|byte| *byte == b';')].trim_ascii()),
            Self::Credentials => {
                // In patterns of rules files, also the text before a `*` is one of the scheme.
                let (scheme, rest) = value.split_at(until(|byte| matches!(byte, b' ' | b'\t' | b'*')));
                let credentials = rest.trim_ascii_start();
                let space: &[u8] = if credentials.len() < rest.len() { b" " } else { b"" };
                [&*lowercase(scheme), space, credentials].concat().into()
            }
            Self::Host => host(value).unwrap_or(value.into()),
        }
    }
}

fn lowercase(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().any(u8::is_ascii_uppercase) {
        true => text.to_ascii_lowercase().into(),
        false => text.into(),
    }
}

/// Returns the host of an authority. There is none if a name has other characters than letters, digits, dashes and
/// underscores: programs disagree on percent-encoded names, those outside ASCII, and users in front of an `@`.
///
/// The port is left out, also if it is not that of the scheme. A service is found by the address that a client connects
/// to, so that a client can write any port.
pub(crate) fn host(authority: &[u8]) -> Option<Cow<'_, [u8]>> {
    let colon = authority.iter().rposition(|&byte| byte == b':');
    // The colons of an IPv6 address are in brackets.
    let end = colon.filter(|_| !authority.ends_with(b"]")).unwrap_or(authority.len());
    let (host, port) = authority.split_at(end);
    if !port.iter().skip(1).all(u8::is_ascii_digit) {
        return None;
    }
    if let Some(address) = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")) {
        let address: Ipv6Addr = str::from_utf8(address).ok()?.parse().ok()?;
        let text = match address.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        return Some(text.into_bytes().into());
    }
    let name = host.strip_suffix(b".").unwrap_or(host);
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &[u8]| !label.is_empty() && label.iter().all(is_of_name);
    name.split(|&byte| byte == b'.').all(is_label).then(|| lowercase(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(spelling: Spelling, value: &str) -> String {
        String::from_utf8(spelling.normalize(value.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn spellings_with_the_same_meaning_are_one() {
        for (name, values, expected) in [
            ("upgrade", &["websocket", "WebSocket", "WEBSOCKET"] as &[&str], "websocket"),
            (
                "connection",
                &["keep-alive, Upgrade", "Keep-Alive,upgrade", "keep-alive \t, upgrade"],
                "keep-alive,upgrade",
            ),
            ("content-encoding", &["gzip", "GZip"], "gzip"),
            ("accept", &["text/html;q=\"0.5\"", "Text/HTML; q=0.5"], "text/html;q=0.5"),
            (
                "content-type",
                &["text/html", "TEXT/html ;a=b", "text/html; charset=\"UTF-8\"", "text/html;"],
                "text/html",
            ),
            ("authorization", &["Bearer aB=", "bearer  aB=", "BEARER\taB="], "bearer aB="),
            ("proxy-authorization", &["Basic eA==", "basic eA=="], "basic eA=="),
            ("x-forwarded-proto", &["https", "HTTPS"], "https"),
            ("x-plan", &["Pro"], "Pro"),
        ] {
            let spelling = Spelling::of(&name.parse().unwrap());
            for value in values {
                assert_eq!(normal(spelling, value), expected, "{name}: {value}");
            }
        }
    }

    #[test]
    fn tokens_and_schemes_stay_apart() {
        for (name, one, other) in [
            ("upgrade", "websocket", "websockets"),
            ("authorization", "Bearer a", "Bearer A"),
            ("authorization", "Bearer a", "Basic a"),
            ("content-type", "text/html", "text/htm"),
            ("x-plan", "pro", "Pro"),
        ] {
            let spelling = Spelling::of(&name.parse().unwrap());
            assert_ne!(normal(spelling, one), normal(spelling, other), "{name}");
        }
    }

    #[test]
    fn hosts_have_neither_case_nor_port_nor_last_dot() {
        for (authority, expected) in [
            ("example.org", "example.org"),
            ("EXAMPLE.org", "example.org"),
            ("example.org.", "example.org"),
            ("example.org:", "example.org"),
            ("example.org:80", "example.org"),
            ("example.org.:443", "example.org"),
            ("example.org:8443", "example.org"),
            ("a_b.xn--bcher-kva.example", "a_b.xn--bcher-kva.example"),
            ("localhost", "localhost"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("[2001:db8:0:0:0:0:0:1]:443", "[2001:db8::1]"),
            ("[::ffff:192.0.2.1]:443", "192.0.2.1"),
        ] {
            assert_eq!(normal(Spelling::Host, authority), expected, "{authority}");
        }
    }

    #[test]
    fn what_programs_read_differently_is_not_a_host() {
        for authority in [
            "",
            ".",
            "..",
            "example..org",
            "example.org..",
            ".example.org",
            ":80",
            "example.org:x",
            "example.org:80:80",
            "example.org:+80",
            "user@example.org",
            "user:password@example.org",
            "ex%61mple.org",
            "bücher.example",
            "example.org,example.com",
            "example.org/",
            "example .org",
            "2001:db8::1",
            "[2001:db8::1",
            "2001:db8::1]",
            "[fe80::1%25eth0]",
            "[192.0.2.1]",
            "[]",
            "*",
        ] {
            assert_eq!(host(authority.as_bytes()), None, "{authority}");
        }
    }
}
