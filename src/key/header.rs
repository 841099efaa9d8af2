//! Keys from headers.

use http::HeaderName;

use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor, describe_as, write};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use crate::error::or_panic;
use crate::hash::KeyHasher;
use crate::key::heads::{Repeated, RequestHead};
use crate::validation;

/// Extracts the value of the header `name`, as bytes, without the whitespace around it.
///
/// The key is missing if the header is absent or blank. A request that repeats the header is
/// [ambiguous](super#repeated-headers), and is rejected with 400. Clients choose their headers: see
/// [trust](super#trust).
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
/// Panics if `name` is not a valid header name.
#[track_caller]
pub fn header(name: &str) -> Header {
    Header(or_panic(validation::header_name(name)))
}

/// An extractor that reads a header. Returned by [`header`].
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    fn value<'a>(&self, head: &RequestHead<'a>) -> Result<&'a [u8], KeyError> {
        match head.single_header(&self.0) {
            Ok(Some(value)) if !value.is_empty() => Ok(value),
            Ok(_) => Err(KeyError::NotSent),
            Err(Repeated) => Err(KeyError::Ambiguous),
        }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match self.value(head) {
            Ok(value) => write(value, key),
            Err(error) => Extracted::Missing(error),
        }
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        match self.value(head) {
            Ok(value) => Hashed::Now(hasher.hash(value)),
            Err(error) => Hashed::Missing(error),
        }
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_as(format!("header {}", self.0).into(), self, head)
    }

    fn header_name(&self) -> Option<&HeaderName> {
        Some(&self.0)
    }
}
