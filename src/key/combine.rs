//! Extractors that closures make, alternatives and tuples of extractors, and the keys that alternatives find.

use std::any::type_name;
use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use super::encoding::{Key, KeyBuf};
use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor, Or, describe_as};
use super::hash::KeyHasher;
use super::part::KeyPart;
use crate::key::head::RequestHead;

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

/// Returns the key of requests for which the second extractor of [`one.or(other)`](super::KeyExtractor::or) found
/// `key`. See [`first`].
pub fn second<K: Key>(key: K) -> impl Key {
    (SECOND, key)
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
        let mut parts = KeyBuf::default();
        parts.push(FIRST);
        match self.first.extract(head, &mut parts) {
            Err(error) if error != KeyError::Ambiguous => {
                key.push(SECOND);
                self.second.extract(head, key)
            }
            Ok(first @ Extracted::Pending(_)) => {
                let mut others = KeyBuf::default();
                others.push(SECOND);
                let second = self.second.extract(head, &mut others);
                Ok(Extracted::Pending(Box::pin(async move {
                    match first.complete(parts).await {
                        Err(error) if error != KeyError::Ambiguous => second?.complete(others).await,
                        found => found,
                    }
                })))
            }
            extracted => {
                key.append(&parts);
                extracted
            }
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
            Err(error) if error != KeyError::Ambiguous => self.second.describe(head),
            _ => self.first.describe(head),
        }
    }
}

/// Appends the key that `next` extracts to the parts that were extracted so far.
fn append_next(
    so_far: Extracted,
    head: &RequestHead<'_>,
    key: &mut KeyBuf,
    next: &impl KeyExtractor,
) -> Result<Extracted, KeyError> {
    let Extracted::Pending(first) = so_far else { return next.extract(head, key) };
    // The head is not available when the first key is found.
    let mut parts = KeyBuf::default();
    let second = next.extract(head, &mut parts);
    Ok(Extracted::Pending(Box::pin(async move {
        let mut key = first.await?;
        key.append(&second?.complete(parts).await?);
        Ok(key)
    })))
}

macro_rules! extractor_of_tuple {
    ($first:ident $(, $rest:ident)*) => {
        #[allow(non_snake_case)]
        impl<$first: KeyExtractor $(, $rest: KeyExtractor)*> KeyExtractor for ($first, $($rest,)*) {
            fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
                let ($first, $($rest,)*) = self;
                let so_far = $first.extract(head, key)?;
                $(let so_far = append_next(so_far, head, key, $rest)?;)*
                Ok(so_far)
            }

            fn is_async(&self) -> bool {
                let ($first, $($rest,)*) = self;
                $first.is_async() $(|| $rest.is_async())*
            }

            fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
                let ($first, $($rest,)*) = self;
                [$first.describe(head) $(, $rest.describe(head))*].concat()
            }
        }
    };
}
extractor_of_tuple!(A);
extractor_of_tuple!(A, B);
extractor_of_tuple!(A, B, C);
extractor_of_tuple!(A, B, C, D);

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
    let find = move |head: &RequestHead<'_>| match head.read_with(&*key) {
        (_, true) => Err(KeyError::Ambiguous),
        (key, false) => key.ok_or(KeyError::NotSent),
    };
    Computed { name: "key".into(), find }
}

/// Extracts a key from the request extension of type `T`, for example the user that an outer layer has authenticated by
/// a JWT.
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
    let find = move |head: &RequestHead<'_>| head.extensions.get().map(&*key).ok_or(KeyError::MissingExtension(path));
    Computed { name: format!("extension {name}").into(), find }
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
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
        (self.find)(head)?.write(key);
        Ok(Extracted::Done)
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        Hashed::Known((self.find)(head).map(|found| found.hash_with(hasher)))
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
            return Err(KeyError::Ambiguous);
        }
        Ok(Extracted::Pending(Box::pin(async move {
            let mut key = KeyBuf::default();
            future.await.ok_or(KeyError::NotSent)?.write(&mut key);
            Ok(key)
        })))
    }))
}

/// Returns the future of a key.
type ExtractFn = dyn Fn(&RequestHead<'_>) -> Result<Extracted, KeyError> + Send + Sync;

#[derive(Clone)]
struct LookedUp(Arc<ExtractFn>);

impl KeyExtractor for LookedUp {
    fn extract(&self, head: &RequestHead<'_>, _: &mut KeyBuf) -> Result<Extracted, KeyError> {
        (self.0)(head)
    }

    fn is_async(&self) -> bool {
        true
    }
}
