//! Keys that closures compute: from the head of a request, from an extension, or asynchronously.

use std::any::type_name;
use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use super::encoding::{Key, KeyBuf};
use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor, describe_as};
use super::hash::KeyHasher;
use super::part::KeyPart;
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
pub fn from_fn<K, F>(key: F) -> impl KeyExtractor + Clone
where
    K: Key,
    F: Fn(&RequestHead<'_>) -> Option<K> + Send + Sync + 'static,
{
    let key = Arc::new(key);
    computed("key".into(), move |head| match head.read_with(&*key) {
        (_, true) => Err(KeyError::Ambiguous),
        (key, false) => key.ok_or(KeyError::NotSent),
    })
}

/// Extracts a key from the request extension of type `T`, for example the user that an outer layer has authenticated.
///
/// The key is missing if the request has no such extension. The limiter must be inside the layer that inserts it: in
/// Axum, the last `.layer` is the outermost. In the wrong order, every request is rejected with 400.
///
/// The first rejected request without the extension is logged at `ERROR`, with the type's name. If some requests
/// legitimately have none, choose another key for them with [`or`](KeyExtractor::or), or a policy with
/// [`Limit::on_missing_key`](crate::Limit::on_missing_key): then nothing is logged.
///
/// ```
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by_user = tower_ratelimit::key::extension(|user: &User| user.id);
/// # let _ = by_user;
/// ```
pub fn extension<T, K, F>(key: F) -> impl KeyExtractor + Clone
where
    T: Send + Sync + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    let (key, path) = (Arc::new(key), type_name::<T>());
    // Without the modules, unless the type has parameters.
    let name = path.rsplit("::").next().filter(|_| !path.contains('<')).unwrap_or(path);
    computed(format!("extension {name}").into(), move |head| {
        head.extensions.get().map(&*key).ok_or(KeyError::MissingExtension(path))
    })
}

fn computed<K, F>(name: Cow<'static, str>, find: F) -> impl KeyExtractor + Clone
where
    K: Key,
    F: Fn(&RequestHead<'_>) -> Result<K, KeyError> + Clone + Send + Sync + 'static,
{
    Computed { name, find }
}

#[derive(Clone)]
struct Computed<F> {
    name: Cow<'static, str>,
    find: F,
}

impl<K, F> KeyExtractor for Computed<F>
where
    K: Key,
    F: Fn(&RequestHead<'_>) -> Result<K, KeyError> + Send + Sync + 'static,
{
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        (self.find)(head).map(|found| found.write(key)).into()
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        Ok((self.find)(head).map(|found| found.hash_with(hasher)))
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        describe_as(self.name.clone(), self, head)
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
pub fn from_async_fn<K, R, F>(key: F) -> impl KeyExtractor + Clone
where
    K: Key,
    R: Future<Output = Option<K>> + Send + 'static,
    F: Fn(&RequestHead<'_>) -> R + Send + Sync + 'static,
{
    LookedUp(Arc::new(move |head| {
        let (future, is_ambiguous) = head.read_with(&key);
        if is_ambiguous {
            return Extracted::Missing(KeyError::Ambiguous);
        }
        Extracted::Pending(Box::pin(async move {
            let mut key = KeyBuf::default();
            future.await.ok_or(KeyError::NotSent)?.write(&mut key);
            Ok(key)
        }))
    }))
}

#[derive(Clone)]
struct LookedUp(Arc<dyn Fn(&RequestHead<'_>) -> Extracted + Send + Sync>);

impl KeyExtractor for LookedUp {
    fn extract(&self, head: &RequestHead<'_>, _: &mut KeyBuf) -> Extracted {
        (self.0)(head)
    }

    fn is_async(&self) -> bool {
        true
    }
}
