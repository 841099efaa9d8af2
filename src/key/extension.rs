//! Keys from request extensions.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use super::bucket_key::Key;
use super::extractor::{Extracted, KeyError, KeyExtractor, describe_as, write};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use crate::key::heads::RequestHead;

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
pub fn extension<T, K, F>(key: F) -> Extension<T, F>
where
    T: Send + Sync + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    Extension { key, extension: PhantomData }
}

/// An extractor that reads a request extension. Returned by [`extension`].
#[derive(Clone, Copy)]
pub struct Extension<T, F> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", type_name::<T>())
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
            Some(extension) => write(&(self.key)(extension), key),
            None => Extracted::Missing(KeyError::MissingExtension(type_name::<T>())),
        }
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        let path = type_name::<T>();
        // Without the modules, unless the type has parameters.
        let name = path.rsplit("::").next().filter(|_| !path.contains('<')).unwrap_or(path);
        describe_as(format!("extension {name}").into(), self, head)
    }
}
