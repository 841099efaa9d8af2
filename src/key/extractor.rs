//! Taking keys from requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::header::{GetAll, HeaderValue};

use super::combine::Or;
use super::part::{Key, KeyBuf};
use crate::hash::{KeyHash, KeyHasher};
use crate::request::RequestHead;

/// Takes a key from a request.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Adds the key's parts to `key`, or says why it can't.
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted;

    /// Whether it may find [`Later`](Extracted::Later) what its key is, for some request: not, unless it says
    /// so. Such an extractor can't be asked where nothing may wait: see [`KeyList`](crate::KeyList).
    fn waits(&self) -> bool {
        false
    }

    /// The hash of what [`extract`](Self::extract) writes, for whoever needs no more of the key: an extractor may spare
    /// itself the writing.
    #[doc(hidden)]
    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        let mut key = KeyBuf::default();
        match self.extract(head, &mut key) {
            Extracted::Done => Hashed::Now(key.hash(hasher)),
            Extracted::Missing(missing) => Hashed::Missing(missing),
            Extracted::Later(rest) => Hashed::Later(key, rest),
        }
    }

    /// Every line of the one header that makes the key, or `None` if the key is made otherwise.
    #[doc(hidden)]
    fn candidates<'a>(&self, _head: &RequestHead<'a>) -> Option<GetAll<'a, HeaderValue>> {
        None
    }

    /// Takes `other` where this key is missing. The two never name the same bucket.
    ///
    /// A key that is [ambiguous](KeyError::Ambiguous) is not replaced by `other`: the request is rejected.
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }
}

/// What became of taking a key from a request.
#[must_use]
pub enum Extracted {
    /// Its parts were added.
    Done,
    /// It is not there.
    Missing(KeyError),
    /// Its parts have yet to come, behind those that were added.
    Later(Pin<Box<dyn Future<Output = Result<KeyBuf, KeyError>> + Send>>),
}

/// What has yet to come of a key.
pub(crate) type Rest = Pin<Box<dyn Future<Output = Result<KeyBuf, KeyError>> + Send>>;

/// What became of taking a key from a request, for whoever needs no more than its hash.
#[allow(missing_debug_implementations, reason = "nobody else can name it")]
pub enum Hashed {
    Now(KeyHash),
    Missing(KeyError),
    /// The rest has yet to come.
    Later(KeyBuf, Rest),
}

impl fmt::Debug for Extracted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("Done"),
            Self::Missing(missing) => f.debug_tuple("Missing").field(missing).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// Whose fault it is that a key is missing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum KeyError {
    /// The client has not sent it: answered with 400, if the limit denies such requests.
    FromRequest,
    /// The server does not provide it, for any request: answered with 500, and reported.
    FromServer,
    /// The request has no extension of the type with this name: answered with 400. If the limit denies such requests,
    /// the first is logged, because a rate limit layer outside the layer that sets the extension denies them all.
    Extension(&'static str),
    /// The limit is not meant for this request: it does not apply, whatever it says of missing keys.
    NotApplicable,
    /// The client has sent several keys, for example in a header that is [repeated](super#repeated-headers).
    /// Always answered with 400: neither [`or`](KeyExtractor::or) nor
    /// [`OnMissingKey`](crate::OnMissingKey) applies, because the client would choose its bucket by them.
    Ambiguous,
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        (**self).extract(head, key)
    }

    fn waits(&self) -> bool {
        (**self).waits()
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        (**self).hashed(head, hasher)
    }

    fn candidates<'a>(&self, head: &RequestHead<'a>) -> Option<GetAll<'a, HeaderValue>> {
        (**self).candidates(head)
    }
}

/// The key that was there all along.
pub(super) fn done(parts: &(impl Key + ?Sized), key: &mut KeyBuf) -> Extracted {
    parts.write(key);
    Extracted::Done
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{self, PeerAddr};

    #[test]
    fn a_key_has_one_hash_whether_it_is_written_first_or_not() {
        let hasher = KeyHasher::with_secret([7; 16]);
        let written = |extractor: &dyn KeyExtractor, head: &RequestHead<'_>| {
            let mut key = KeyBuf::default();
            match extractor.extract(head, &mut key) {
                Extracted::Done => Ok(key.hash(&hasher)),
                Extracted::Missing(missing) => Err(missing),
                Extracted::Later(_) => panic!("nothing has to come"),
            }
        };
        let hashed = |extractor: &dyn KeyExtractor, head: &RequestHead<'_>| match extractor.hashed(head, &hasher) {
            Hashed::Now(hash) => Ok(hash),
            Hashed::Missing(missing) => Err(missing),
            Hashed::Later(..) => panic!("nothing has to come"),
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
        // Two addresses, two networks, a value, a path, two addresses that may be a path, and two with the value.
        assert_eq!(hashes.len(), 10);
        let request = Request::get("/path").body(()).unwrap();
        let head = RequestHead::of(&request);
        assert_eq!(hashed(&key::peer_ip(), &head), Err(KeyError::FromServer));
        for extractor in extractors {
            assert_eq!(hashed(extractor, &head), written(extractor, &head));
        }
    }
}
