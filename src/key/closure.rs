//! Keys that closures find.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;

use super::extractor::{Extracted, KeyError, KeyExtractor, done};
use super::part::{Key, KeyBuf};
use crate::request::RequestHead;

/// A key from a request's extension of type `T`: what a layer further out has put there, such as
/// the user that it has authenticated. Missing where there is none: mind that Axum's last `.layer`
/// is the outermost, and that the limiter has to be further in than what inserts the extension. The other
/// way round, every request is refused with 400.
///
/// The first request without the extension that a limiter rejects is logged at `ERROR`, with the type's name. If some
/// requests are meant to have none, choose another key for them with [`or`](KeyExtractor::or), or a policy with
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
pub fn extension<T, K, F>(key: F) -> Extension<T, F>
where
    T: Send + Sync + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    Extension { key, of: PhantomData }
}

/// See [`extension`].
#[derive(Clone, Copy)]
pub struct Extension<T, F> {
    key: F,
    of: PhantomData<fn(&T)>,
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", std::any::type_name::<T>())
    }
}

impl<T, K, F> KeyExtractor for Extension<T, F>
where
    T: Send + Sync + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match head.extensions.get() {
            Some(extension) => done(&(self.key)(extension), key),
            None => Extracted::Missing(KeyError::Extension(std::any::type_name::<T>())),
        }
    }
}

/// A key that a closure takes from a request, and owns. Missing where it returns `None`.
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

/// See [`from_fn`].
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
            (Some(taken), false) => done(&taken, key),
            (None, false) => Extracted::Missing(KeyError::FromRequest),
        }
    }
}

/// A key that has yet to be found out: looked up in a database, for example. The closure takes
/// what it needs from the request at once; the future that it returns finds the key. Missing where
/// that is `None`.
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
pub fn from_async_fn<K, T, F>(key: F) -> FromAsyncFn<F>
where
    K: Key,
    T: Future<Output = Option<K>> + Send + 'static,
    F: Fn(&RequestHead<'_>) -> T + Send + Sync + 'static,
{
    FromAsyncFn(key)
}

/// See [`from_async_fn`].
#[derive(Clone, Copy)]
pub struct FromAsyncFn<F>(F);

impl<F> fmt::Debug for FromAsyncFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromAsyncFn")
    }
}

impl<K, T, F> KeyExtractor for FromAsyncFn<F>
where
    K: Key,
    T: Future<Output = Option<K>> + Send + 'static,
    F: Fn(&RequestHead<'_>) -> T + Send + Sync + 'static,
{
    fn extract(&self, head: &RequestHead<'_>, _: &mut KeyBuf) -> Extracted {
        let (found, is_ambiguous) = head.read_with(&self.0);
        if is_ambiguous {
            return Extracted::Missing(KeyError::Ambiguous);
        }
        Extracted::Later(Box::pin(async move {
            let mut key = KeyBuf::default();
            found.await.ok_or(KeyError::FromRequest)?.write(&mut key);
            Ok(key)
        }))
    }

    fn waits(&self) -> bool {
        true
    }
}
