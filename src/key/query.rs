//! Keys from query parameters.

use std::borrow::Cow;

use super::extractor::{Extracted, KeyError, KeyExtractor, describe_as, write};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use crate::key::heads::RequestHead;

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
pub fn query(name: impl Into<String>) -> Query {
    Query(name.into().into())
}

/// An extractor that reads a query parameter. Returned by [`query`].
#[derive(Clone, Debug)]
pub struct Query(Box<str>);

impl KeyExtractor for Query {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let parameters = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
        let mut values = parameters.filter(|(name, _)| **name == *self.0).map(|(_, value): (_, Cow<'_, str>)| value);
        match (values.next(), values.next()) {
            (_, Some(_)) => Extracted::Missing(KeyError::Ambiguous),
            (Some(value), None) if !value.is_empty() => write(&value, key),
            _ => Extracted::Missing(KeyError::NotSent),
        }
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_as(format!("query {}", self.0).into(), self, head)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn extract(uri: &str) -> Result<Vec<u8>, KeyError> {
        let request = Request::get(uri).body(()).unwrap();
        let mut key = KeyBuf::default();
        match query("a b").extract(&RequestHead::of(&request), &mut key) {
            Extracted::Done => Ok(key.as_bytes()[1..].to_vec()),
            Extracted::Missing(error) => Err(error),
            Extracted::Pending(_) => panic!("a query is never asynchronous"),
        }
    }

    #[test]
    fn encodings_of_a_parameter_are_one_key() {
        for uri in ["/?a+b=x%2Fy", "/?a%20b=x/y", "/?c=1&%61+b=%78%2fy&d", "/?A+b=1&a+b=x/y"] {
            assert_eq!(extract(uri), Ok(b"x/y".to_vec()), "{uri}");
        }
    }

    #[test]
    fn absent_empty_and_repeated_parameters_have_no_key() {
        for uri in ["/", "/?", "/?a+b", "/?a+b=", "/?c=a+b"] {
            assert_eq!(extract(uri), Err(KeyError::NotSent), "{uri}");
        }
        for uri in ["/?a+b=1&a+b=2", "/?a+b=1&a+b=1", "/?a+b=&a%20b=1"] {
            assert_eq!(extract(uri), Err(KeyError::Ambiguous), "{uri}");
        }
    }
}
