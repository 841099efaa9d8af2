//! Extractors made of extractors, alternatives and tuples, and the keys that alternatives find.

use super::encoding::{Key, KeyBuf};
use super::extractor::{Extracted, KeyError, KeyExtractor, Or};
use super::part::KeyPart;
use crate::key::heads::RequestHead;

// These parts keep the alternatives apart: otherwise a header with the bytes of an address would share the address's
// bucket.
const FIRST: &[u8] = &[1];
const SECOND: &[u8] = &[2];

/// Returns the key of requests for which the first extractor of [`one.or(other)`](super::KeyExtractor::or) found `key`.
/// Use it where you name a key yourself, as for [`LimitHandle::set_override`](crate::LimitHandle::set_override).
///
/// ```
/// use tower_ratelimit::key::{self, KeyExtractor};
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
///
/// let client = key::header("x-api-key").or(key::peer_ip());
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(client).overridable()]);
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let daily = limits.limit("daily").unwrap();
/// daily.set_override(key::first("secret"), FixedWindow::per_day(1_000), None).await.unwrap();
/// # });
/// ```
pub fn first<K: Key>(key: K) -> impl Key {
    (FIRST, key)
}

/// Returns the key of requests for which the second extractor of [`one.or(other)`](super::KeyExtractor::or) found `key`.
/// See [`first`].
pub fn second<K: Key>(key: K) -> impl Key {
    (SECOND, key)
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let before = key.len();
        key.push(FIRST);
        match self.first.extract(head, key) {
            Extracted::Missing(error) if error != KeyError::Ambiguous => {
                key.truncate(before);
                key.push(SECOND);
                self.second.extract(head, key)
            }
            Extracted::Pending(first) => {
                let parts = key.split_off(before);
                let mut others = KeyBuf::default();
                others.push(SECOND);
                let second = self.second.extract(head, &mut others);
                Extracted::Pending(Box::pin(async move {
                    match complete(parts, Extracted::Pending(first)).await {
                        Err(error) if error != KeyError::Ambiguous => complete(others, second).await,
                        found => found,
                    }
                }))
            }
            extracted => extracted,
        }
    }

    fn is_async(&self) -> bool {
        self.first.is_async() || self.second.is_async()
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        if self.first.is_async() {
            return vec![KeyPart::looked_up("key")];
        }
        match self.first.extract(head, &mut KeyBuf::default()) {
            Extracted::Missing(error) if error != KeyError::Ambiguous => self.second.describe(head),
            _ => self.first.describe(head),
        }
    }
}

/// Appends the parts that are still pending.
async fn complete(mut parts: KeyBuf, rest: Extracted) -> Result<KeyBuf, KeyError> {
    match rest {
        Extracted::Done => Ok(parts),
        Extracted::Missing(error) => Err(error),
        Extracted::Pending(rest) => {
            parts.append(&rest.await?);
            Ok(parts)
        }
    }
}

/// Appends the key that `next` extracts to the parts that were extracted so far.
fn append_next(so_far: Extracted, head: &RequestHead<'_>, key: &mut KeyBuf, next: &impl KeyExtractor) -> Extracted {
    match so_far {
        Extracted::Done => next.extract(head, key),
        Extracted::Missing(error) => Extracted::Missing(error),
        Extracted::Pending(first) => {
            // The head is not available when the first key is found.
            let mut parts = KeyBuf::default();
            let second = next.extract(head, &mut parts);
            Extracted::Pending(Box::pin(async move {
                let mut key = first.await?;
                key.append(&complete(parts, second).await?);
                Ok(key)
            }))
        }
    }
}

macro_rules! extractor_of_tuple {
    ($first:ident $(, $rest:ident)*) => {
        impl<$first: KeyExtractor $(, $rest: KeyExtractor)*> KeyExtractor for ($first, $($rest,)*) {
            #[allow(non_snake_case)]
            fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
                let ($first, $($rest,)*) = self;
                let so_far = $first.extract(head, key);
                $(let so_far = append_next(so_far, head, key, $rest);)*
                so_far
            }

            #[allow(non_snake_case)]
            fn is_async(&self) -> bool {
                let ($first, $($rest,)*) = self;
                $first.is_async() $(|| $rest.is_async())*
            }

            #[allow(non_snake_case)]
            fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
                let ($first, $($rest,)*) = self;
                let parts = $first.describe(head).into_iter();
                $(let parts = parts.chain($rest.describe(head));)*
                parts.collect()
            }
        }
    };
}
extractor_of_tuple!(A);
extractor_of_tuple!(A, B);
extractor_of_tuple!(A, B, C);
extractor_of_tuple!(A, B, C, D);
