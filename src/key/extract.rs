//! Taking keys from requests.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use http::{HeaderName, Method};

use super::combine::Or;
use super::part::{Key, KeyBuf};
use crate::request::RequestHead;

/// Takes a key from a request.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Adds the key's parts to `key`, or says why it can't.
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted;

    /// Takes `other` where this key is missing. The two never name the same bucket.
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
    Missing(Missing),
    /// Its parts have yet to come, behind those that were added.
    Later(Pin<Box<dyn Future<Output = Result<KeyBuf, Missing>> + Send>>),
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
pub enum Missing {
    /// The client has not sent it: answered with 400, if the limit denies such requests.
    FromRequest,
    /// The server does not provide it, for any request: answered with 500, and reported.
    FromServer,
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        (**self).extract(head, key)
    }
}

/// A request's header called `name`: its first, if there are several. Missing where it is not
/// there or empty.
///
/// # Panics
///
/// When `name` is not a header's name.
pub fn header(name: &str) -> Header {
    match name.parse() {
        Ok(name) => Header(name),
        Err(_) => panic!("{name:?} is not a header's name: use letters, digits and dashes"),
    }
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl KeyExtractor for Header {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match head.headers.get(&self.0) {
            Some(value) if !value.is_empty() => done(value, key),
            _ => Extracted::Missing(Missing::FromRequest),
        }
    }
}

/// A request's path as the client spelled it, without the query. Many spellings can lead to one
/// route: prefer [`matched_route`], unless the path is all there is, as for gRPC.
pub const fn path() -> Path {
    Path
}

/// See [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl KeyExtractor for Path {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        done(head.uri.path(), key)
    }
}

/// The route that a request has matched, as it was written (`/users/{id}`). All requests that
/// match none share one key, and so do all where no router has matched yet: in Axum, put the layer
/// on the `Router`, not around it.
pub const fn matched_route() -> MatchedRoute {
    MatchedRoute
}

/// See [`matched_route`].
#[derive(Clone, Copy, Debug)]
pub struct MatchedRoute;

impl KeyExtractor for MatchedRoute {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        done(head.matched_path().unwrap_or(""), key)
    }
}

/// A request's method. HEAD counts as GET, which answers it.
pub const fn method() -> MethodKey {
    MethodKey
}

/// See [`method`].
#[derive(Clone, Copy, Debug)]
pub struct MethodKey;

impl KeyExtractor for MethodKey {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let method = if *head.method == Method::HEAD { &Method::GET } else { head.method };
        done(method.as_str(), key)
    }
}

/// A key from a request's extension of type `T`: what a layer further out has put there, such as
/// the user that it has authenticated. Missing where there is none.
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
            None => Extracted::Missing(Missing::FromRequest),
        }
    }
}

/// A key that a closure takes from a request. Missing where it returns `None`.
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
        match (self.0)(head) {
            Some(taken) => done(&taken, key),
            None => Extracted::Missing(Missing::FromRequest),
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
        let found = (self.0)(head);
        Extracted::Later(Box::pin(async move {
            let mut key = KeyBuf::default();
            found.await.ok_or(Missing::FromRequest)?.write(&mut key);
            Ok(key)
        }))
    }
}

pub(super) fn done(parts: &(impl Key + ?Sized), key: &mut KeyBuf) -> Extracted {
    parts.write(key);
    Extracted::Done
}
