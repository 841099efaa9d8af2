//! The extraction of keys from requests.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderName;

use super::encoding::KeyBuf;
use super::hash::{KeyHash, KeyHasher};
use super::part::KeyPart;
use super::prefixes::Prefixes;
use super::proxies::AddressError;
use super::spelling::Spelling;
use crate::key::head::RequestHead;

/// Extracts a key from a request.
///
/// The functions of [`key`](crate::key) return extractors; [`key::from_fn`](super::from_fn) makes one of a closure.
/// Tuples of up to four extractors are extractors.
///
/// ```
/// use tower_ratelimit::RequestHead;
/// use tower_ratelimit::key::{Extracted, Key, KeyBuf, KeyError, KeyExtractor};
///
/// /// The program of the client.
/// struct UserAgent;
///
/// impl KeyExtractor for UserAgent {
///     fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
///         head.header("user-agent").ok_or(KeyError::NotSent)?.write(key);
///         Ok(Extracted::Done)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract keys from requests",
    label = "expected a `KeyExtractor`",
    note = "use an extractor of `tower_ratelimit::key`: `key::peer_ip()`, `key::header(\"x-api-key\")`, or a tuple",
    note = "choose the header of `TrustedProxies`: `TrustedProxies::hops(1).x_forwarded_for()`",
    note = "wrap a closure in `key::from_fn` or `key::from_async_fn`: `key::from_fn(|head| Some(head.path().len()))`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Appends the key's parts to `key`.
    ///
    /// # Errors
    ///
    /// Returns why the request has no usable key.
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError>;

    /// Returns whether [`extract`](Self::extract) may return [`Extracted::Pending`]. Defaults to `false`. Asynchronous
    /// extractors cannot be used in a [`KeyList`](crate::KeyList).
    fn is_async(&self) -> bool {
        false
    }

    /// Describes the parts of a request's key for [explanations](crate::explain), also if it is missing. Defaults to
    /// what [`extract`](Self::extract) writes, hidden and called `key`. Never called to decide a request.
    ///
    /// Values by which clients prove who they are should be [secret](KeyPart::secret).
    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_as("key".into(), self, head)
    }

    /// Hashes the key that [`extract`](Self::extract) writes, without a buffer if possible.
    #[doc(hidden)]
    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        let mut key = KeyBuf::default();
        match self.extract(head, &mut key) {
            Ok(Extracted::Done) => Hashed::Known(Ok(key.hash(hasher))),
            Ok(pending) => Hashed::Pending(Box::pin(pending.complete(key))),
            Err(error) => Hashed::Known(Err(error)),
        }
    }

    /// Returns the name of the header whose value is the key, or `None` for other keys.
    #[doc(hidden)]
    fn header_name(&self) -> Option<&HeaderName> {
        None
    }

    /// Returns the spelling of the keys, for comparison with those of a list or a rules file.
    #[doc(hidden)]
    fn spelling(&self) -> Spelling {
        Spelling::Exact
    }

    /// Returns the prefixes to which the extractor masks addresses, or `None` for other keys.
    #[doc(hidden)]
    fn prefixes(&self) -> Option<Prefixes> {
        None
    }

    /// Falls back to `other` if this extractor finds no key. The two never name the same bucket.
    ///
    /// An [ambiguous](KeyError::Ambiguous) key is not replaced: the request is rejected.
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }
}

/// An extractor that falls back to another one if the first finds no key. Returned by [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

/// The result of [`KeyExtractor::extract`].
#[must_use]
pub enum Extracted {
    /// The key's parts were appended to the buffer.
    Done,
    /// The future resolves to parts that follow those already in the buffer.
    Pending(PendingKey),
}

impl Extracted {
    /// Waits for the parts that follow those in `key`, and appends them.
    pub(crate) async fn complete(self, mut key: KeyBuf) -> Result<KeyBuf, KeyError> {
        if let Self::Pending(rest) = self {
            key.append(&rest.await?);
        }
        Ok(key)
    }
}

/// A key, or its last parts, which are not known yet.
pub(crate) type PendingKey = Pin<Box<dyn Future<Output = Result<KeyBuf, KeyError>> + Send>>;

/// The result of extracting a key, as a hash.
#[allow(missing_debug_implementations, reason = "cannot be named outside this crate")]
pub enum Hashed {
    Known(Result<KeyHash, KeyError>),
    Pending(PendingKey),
}

impl fmt::Debug for Extracted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if let Self::Done = self { "Done" } else { "Pending" })
    }
}

/// The reason why a request has no usable key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum KeyError {
    /// The client did not send the key. If the limit rejects such requests, the status is 400.
    NotSent,
    /// The server provides the key for no request: a mistake in its setup. If the limit rejects such requests, the
    /// status is 500, and the first one is logged.
    NotProvided,
    /// The request has no extension of the type with this name. If the limit rejects such requests, the status is 400,
    /// and the first one is logged: a rate limit layer outside the layer that sets the extension rejects all requests.
    MissingExtension(&'static str),
    /// The header that trusted proxies write does not name the client. If the limit rejects such requests, the status
    /// is 400, and the first one is logged: the number of proxies may be wrong.
    NoAddress(AddressError),
    /// The client sent several keys, for example in a [repeated header](super#repeated-headers). An enforced limit
    /// always rejects such requests with 400: [`or`](KeyExtractor::or) and [`OnMissingKey`](crate::OnMissingKey) do not
    /// apply, because the client could choose its bucket by them.
    Ambiguous,
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
        (**self).extract(head, key)
    }

    fn is_async(&self) -> bool {
        (**self).is_async()
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        (**self).describe(head)
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        (**self).hashed(head, hasher)
    }

    fn header_name(&self) -> Option<&HeaderName> {
        (**self).header_name()
    }

    fn spelling(&self) -> Spelling {
        (**self).spelling()
    }

    fn prefixes(&self) -> Option<Prefixes> {
        (**self).prefixes()
    }
}

/// Describes the key that an extractor finds as hidden parts called `name`.
pub(super) fn describe_as(
    name: Cow<'static, str>,
    extractor: &(impl KeyExtractor + ?Sized),
    head: &RequestHead<'_>,
) -> Vec<KeyPart> {
    let mut key = KeyBuf::default();
    match (!extractor.is_async()).then(|| extractor.extract(head, &mut key)) {
        Some(Ok(Extracted::Done)) => KeyPart::hidden(&name, &key),
        Some(Err(_)) => vec![KeyPart::missing(name)],
        Some(Ok(Extracted::Pending(_))) | None => vec![KeyPart::looked_up(name)],
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{self, PeerAddr};

    #[test]
    fn hashing_directly_equals_hashing_the_buffer() {
        let hasher = KeyHasher::with_secret([7; 16]);
        let written = |extractor: &dyn KeyExtractor, head: &RequestHead<'_>| {
            let mut key = KeyBuf::default();
            match extractor.extract(head, &mut key)? {
                Extracted::Done => Ok(key.hash(&hasher)),
                Extracted::Pending(_) => panic!("no extractor is asynchronous"),
            }
        };
        let hashed = |extractor: &dyn KeyExtractor, head: &RequestHead<'_>| match extractor.hashed(head, &hasher) {
            Hashed::Known(hash) => hash,
            Hashed::Pending(..) => panic!("no extractor is asynchronous"),
        };
        let network = key::peer_ip().ipv4_prefix(24).ipv6_prefix(48);
        let both: Arc<dyn KeyExtractor> = Arc::new((key::peer_ip(), key::header("x-api-key")));
        let extractors: [&dyn KeyExtractor; 6] = [
            &key::peer_ip(),
            &network,
            &key::header("x-api-key"),
            &key::path(),
            &key::peer_ip().or(key::path()),
            &both,
        ];
        let mut hashes = Vec::new();
        for address in ["192.0.2.7:1", "[2001:db8:1:2:3::4]:1", "[::ffff:192.0.2.7]:1"] {
            for value in ["a-key", ""] {
                let mut request = Request::get("/path").header("x-api-key", value).body(()).unwrap();
                request.extensions_mut().insert(PeerAddr(address.parse().unwrap()));
                let head = RequestHead::of(&request);
                for extractor in extractors {
                    let hash = hashed(extractor, &head);
                    assert_eq!(hash, written(extractor, &head));
                    hashes.extend(hash);
                }
            }
        }
        hashes.sort_unstable();
        hashes.dedup();
        // 2 addresses, 2 networks, 1 header value, 1 path, 2 addresses with an alternative, 2 tuples.
        assert_eq!(hashes.len(), 10);
        let request = Request::get("/path").body(()).unwrap();
        let head = RequestHead::of(&request);
        assert_eq!(hashed(&key::peer_ip(), &head), Err(KeyError::NotProvided));
        for extractor in extractors {
            assert_eq!(hashed(extractor, &head), written(extractor, &head));
        }
    }
}
