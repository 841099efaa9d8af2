//! Keys from cookies.

use http::header::COOKIE;

use super::extractor::{Extracted, KeyError, KeyExtractor, describe_as, write};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use crate::key::heads::RequestHead;

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
pub fn cookie(name: &str) -> Cookie {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    assert!(
        !name.is_empty() && name.bytes().all(is_token_byte),
        "{name:?} is not a cookie's name: use letters, digits, dashes and underscores"
    );
    Cookie(name.into())
}

/// An extractor that reads a cookie. Returned by [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie(Box<str>);

impl KeyExtractor for Cookie {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let lines = head.headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
        let mut values = pairs.filter_map(|pair| value_of(pair, self.0.as_bytes()));
        match (values.next(), values.next()) {
            (_, Some(_)) => Extracted::Missing(KeyError::Ambiguous),
            (None | Some([]), None) => Extracted::Missing(KeyError::NotSent),
            (Some(value), None) => write(value, key),
        }
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_as(format!("cookie {}", self.0).into(), self, head)
    }
}

/// Returns the value of the pair `name=value`, without whitespace and quotes around it.
fn value_of<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let equals = pair.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    (key == name).then_some(unquoted.unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn extract(lines: &[&[u8]]) -> Result<Vec<u8>, KeyError> {
        let mut request = Request::new(());
        for line in lines {
            request.headers_mut().append(COOKIE, line.to_vec().try_into().unwrap());
        }
        let mut key = KeyBuf::default();
        match cookie("sid").extract(&RequestHead::of(&request), &mut key) {
            Extracted::Done => Ok(key.as_bytes()[1..].to_vec()),
            Extracted::Missing(error) => Err(error),
            Extracted::Pending(_) => panic!("a cookie is never asynchronous"),
        }
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
            assert_eq!(extract(lines), Ok(b"7".to_vec()), "{lines:?}");
        }
        assert_eq!(extract(&[b"sid=a=b"]), Ok(b"a=b".to_vec()));
        assert_eq!(extract(&[b"sid=%41"]), Ok(b"%41".to_vec()));
        assert_eq!(extract(&[b"sid=\""]), Ok(b"\"".to_vec()));
    }

    #[test]
    fn absent_and_empty_cookies_are_missing() {
        let lines: [&[&[u8]]; 6] = [&[], &[b""], &[b"sid"], &[b"sid="], &[b"sid=\"\""], &[b"a=sid=7"]];
        for lines in lines {
            assert_eq!(extract(lines), Err(KeyError::NotSent), "{lines:?}");
        }
    }

    #[test]
    fn repeated_cookies_are_ambiguous() {
        let lines: [&[&[u8]]; 5] =
            [&[b"sid=7; sid=8"], &[b"sid=7; sid=7"], &[b"sid=7", b"sid=8"], &[b"sid=; sid=7"], &[b"sid=7; sid =\"8\""]];
        for lines in lines {
            assert_eq!(extract(lines), Err(KeyError::Ambiguous), "{lines:?}");
        }
    }

    #[test]
    fn names_that_no_cookie_has_are_rejected() {
        for name in ["", "a b", "a=b", "a;b", "ä", "\"a\""] {
            let panic = std::panic::catch_unwind(|| cookie(name)).unwrap_err();
            let expected = format!("{name:?} is not a cookie's name: use letters, digits, dashes and underscores");
            assert_eq!(panic.downcast_ref(), Some(&expected));
        }
        let _ = cookie("__Host-session.id");
    }
}
