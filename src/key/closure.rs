//! Keys from closures.

use std::fmt;
use std::future::Future;

use super::bucket_key::Key;
use super::extractor::{Extracted, KeyError, KeyExtractor, write};
use super::key_buf::KeyBuf;
use crate::key::heads::RequestHead;

/// Makes an extractor of a closure that returns an owned key. The key is missing if the closure returns `None`, and
/// ambiguous if it reads a [repeated header](super#repeated-headers) by [`RequestHead::header`].
///
/// ```
/// use tower_ratelimit::key;
///
/// let by_region = key::from_fn(|head| head.header("x-region").map(str::to_owned));
/// # let _ = by_region;
/// ```
pub fn from_fn<K, F>(key: F) -> FromFn<F>
where
    K: Key,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
{
    FromFn(key)
}

/// An extractor that calls a closure. Returned by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

impl<K, F> KeyExtractor for FromFn<F>
where
    K: Key,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
{
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match head.read_with(&self.0) {
            (_, true) => Extracted::Missing(KeyError::Ambiguous),
            (Some(found), false) => write(&found, key),
            (None, false) => Extracted::Missing(KeyError::NotSent),
        }
    }
}

/// Makes an extractor of a closure that returns a future, for keys that need a lookup, for example in a database. The
/// closure copies what it needs from the request; the future resolves to the key, or to `None` if it is missing.
///
/// ```
/// use tower_ratelimit::key;
///
/// async fn tenant_of(token: String) -> Option<u64> {
///     // …
/// #   Some(token.len() as u64)
/// }
///
/// let by_tenant = key::from_async_fn(|head| {
///     let token = head.header("authorization").map(str::to_owned);
///     async move { tenant_of(token?).await }
/// });
/// # let _ = by_tenant;
/// ```
pub fn from_async_fn<K, R, F>(key: F) -> FromAsyncFn<F>
where
    K: Key,
    R: Future<Output = Option<K>> + Send + 'static,
    F: Fn(&RequestHead<'_>) -> R + Send + Sync + 'static,
{
    FromAsyncFn(key)
}

/// An extractor that awaits a future. Returned by [`from_async_fn`].
#[derive(Clone, Copy)]
pub struct FromAsyncFn<F>(F);

impl<F> fmt::Debug for FromAsyncFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromAsyncFn")
    }
}

impl<K, R, F> KeyExtractor for FromAsyncFn<F>
where
    K: Key,
    R: Future<Output = Option<K>> + Send + 'static,
    F: Fn(&RequestHead<'_>) -> R + Send + Sync + 'static,
{
    fn extract(&self, head: &RequestHead<'_>, _: &mut KeyBuf) -> Extracted {
        let (future, is_ambiguous) = head.read_with(&self.0);
        if is_ambiguous {
            return Extracted::Missing(KeyError::Ambiguous);
        }
        Extracted::Pending(Box::pin(async move {
            let mut key = KeyBuf::default();
            future.await.ok_or(KeyError::NotSent)?.write(&mut key);
            Ok(key)
        }))
    }

    fn is_async(&self) -> bool {
        true
    }
}
