//! One key in place of another: the alternatives of an extractor, and how to name them.

use super::bucket_key::Key;

/// An extractor that falls back to another one if the first finds no key. Returned by
/// [`KeyExtractor::or`](super::KeyExtractor::or).
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

// These parts keep the alternatives apart: otherwise a header with the bytes of an address would share the address's
// bucket.
pub(super) const FIRST: &[u8] = &[1];
pub(super) const SECOND: &[u8] = &[2];

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
