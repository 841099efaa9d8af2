//! Keys made of keys.

use super::extractor::{Extracted, KeyError, KeyExtractor};
use super::part::{Key, KeyBuf};
use crate::request::RequestHead;

/// One key, or another where it is missing. See [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

/// The key of [`one.or(other)`](KeyExtractor::or) where the first has one: that key.
///
/// ```
/// use tower_ratelimit::key::{self, KeyExtractor};
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
///
/// let who = key::header("x-api-key").or(key::peer_ip());
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(100)).by(who).overridable()]);
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let daily = limits.overrides("daily").unwrap();
/// daily.set(key::first("secret"), FixedWindow::per_day(1_000), None).await.unwrap();
/// # });
/// ```
pub fn first<K: Key>(key: K) -> impl Key {
    (FIRST, key)
}

/// The key of [`one.or(other)`](KeyExtractor::or) where the first has none: that of the second. See [`first`].
pub fn second<K: Key>(key: K) -> impl Key {
    (SECOND, key)
}

// What says which of the two a key is: without it, a header that spells an address' bytes would
// share that address' bucket.
const FIRST: &[u8] = &[1];
const SECOND: &[u8] = &[2];

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let before = key.len();
        key.push(FIRST);
        match self.first.extract(head, key) {
            Extracted::Done => Extracted::Done,
            Extracted::Missing(KeyError::Ambiguous) => Extracted::Missing(KeyError::Ambiguous),
            Extracted::Missing(_) => {
                key.truncate(before);
                key.push(SECOND);
                self.second.extract(head, key)
            }
            Extracted::Later(first) => {
                let parts = key.split_off(before);
                let mut others = KeyBuf::default();
                others.push(SECOND);
                let second = self.second.extract(head, &mut others);
                Extracted::Later(Box::pin(async move {
                    match complete(parts, Extracted::Later(first)).await {
                        Ok(key) => Ok(key),
                        Err(KeyError::Ambiguous) => Err(KeyError::Ambiguous),
                        Err(_) => complete(others, second).await,
                    }
                }))
            }
        }
    }

    fn waits(&self) -> bool {
        self.first.waits() || self.second.waits()
    }
}

/// The parts so far, and those that have yet to come.
async fn complete(mut parts: KeyBuf, rest: Extracted) -> Result<KeyBuf, KeyError> {
    match rest {
        Extracted::Done => Ok(parts),
        Extracted::Missing(missing) => Err(missing),
        Extracted::Later(rest) => {
            parts.append(&rest.await?);
            Ok(parts)
        }
    }
}

/// Goes on with `next` behind what was extracted so far.
fn then(so_far: Extracted, head: &RequestHead<'_>, key: &mut KeyBuf, next: &impl KeyExtractor) -> Extracted {
    match so_far {
        Extracted::Done => next.extract(head, key),
        Extracted::Missing(missing) => Extracted::Missing(missing),
        Extracted::Later(first) => {
            let mut parts = KeyBuf::default();
            let second = next.extract(head, &mut parts);
            Extracted::Later(Box::pin(async move {
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
                $(let so_far = then(so_far, head, key, $rest);)*
                so_far
            }

            #[allow(non_snake_case)]
            fn waits(&self) -> bool {
                let ($first, $($rest,)*) = self;
                $first.waits() $(|| $rest.waits())*
            }
        }
    };
}
extractor_of_tuple!(A);
extractor_of_tuple!(A, B);
extractor_of_tuple!(A, B, C);
extractor_of_tuple!(A, B, C, D);
