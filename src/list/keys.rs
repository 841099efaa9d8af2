//! A list of keys.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderValue;

use crate::error::{ConfigError, ConfigErrorKind, or_panic};
use crate::hash::{KeyHash, KeyHasher};
use crate::key::{Extracted, Key, KeyBuf, KeyError, KeyExtractor};
use crate::request::RequestHead;
use crate::when::Condition;

/// Keys, for [`never_limit`](crate::RateLimitLayer::never_limit) and
/// [`always_reject`](crate::RateLimitLayer::always_reject): a [`Condition`], which holds of requests that
/// have one of them. Its clones are one list.
///
/// ```
/// use tower_ratelimit::{FixedWindow, KeyList, Limit, RateLimitLayer, key};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// // What an outer layer has found out, not what a client says.
/// let staff = KeyList::new(key::extension(|user: &User| user.id), [7_u64, 12]);
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
///     .never_limit(staff.clone());
///
/// // Later, while requests are served:
/// staff.replace([7_u64]);
/// # let _ = limits;
/// ```
///
/// An entry is what the extractor takes, of the same type: text for a header, the closure's for
/// [`key::extension`](crate::key::extension); a tuple for a tuple of extractors. In place of one `or`
/// another, take a list for each, and [`or`](Condition::or) those. For addresses there is
/// [`AddressList`](crate::AddressList). A request without the key is on no list.
///
/// A client can neither leave a list nor enter one by [repeating](crate::key#repeated-headers) a header:
/// `always_reject` refuses a request if any line of the header is an entry (for several extractors together, as soon
/// as one of their headers is repeated), and `never_limit` exempts no request that repeats the header.
///
/// A client that can choose its key can put itself on a list: by a header, only by one that the list was
/// told to look at, and only if it knows an entry. Entries are hashed with a random secret, 16 bytes each,
/// and compared by that, so that how long it takes tells nothing of them; they are not kept.
#[derive(Clone)]
pub struct KeyList {
    extractor: Arc<dyn KeyExtractor>,
    hasher: KeyHasher,
    hashes: Arc<ArcSwap<HashSet<KeyHash>>>,
}

impl KeyList {
    /// The `keys` that `extractor` may find. There may be none.
    ///
    /// # Panics
    ///
    /// When the extractor has to wait for what it finds, such as a
    /// [`from_async_fn`](crate::key::from_async_fn): lists are asked before anything that waits.
    /// [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    #[must_use]
    pub fn new(extractor: impl KeyExtractor, keys: impl IntoIterator<Item: Key>) -> Self {
        or_panic(Self::try_new(extractor, keys))
    }

    /// Like [`new`](Self::new), for an extractor that is not known to be right.
    ///
    /// # Errors
    ///
    /// When the extractor has to wait for what it finds.
    pub fn try_new(extractor: impl KeyExtractor, keys: impl IntoIterator<Item: Key>) -> Result<Self, ConfigError> {
        if extractor.is_async() {
            return Err(ConfigErrorKind::ListIsAsync.into());
        }
        let hasher = KeyHasher::random();
        let hashes = Arc::new(ArcSwap::from_pointee(hashes(&hasher, keys)));
        Ok(Self { extractor: Arc::new(extractor), hasher, hashes })
    }

    /// Other keys in place of those that are listed, for all clones and from the next request on.
    pub fn replace(&self, keys: impl IntoIterator<Item: Key>) {
        self.hashes.store(Arc::new(hashes(&self.hasher, keys)));
    }
}

fn hashes(hasher: &KeyHasher, keys: impl IntoIterator<Item: Key>) -> HashSet<KeyHash> {
    let hash = |key: &dyn Key| {
        let mut parts = KeyBuf::default();
        key.write(&mut parts);
        parts.hash(hasher)
    };
    keys.into_iter().map(|key| hash(&key)).collect()
}

impl Condition for KeyList {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        let mut key = KeyBuf::default();
        match self.extractor.extract(head, &mut key) {
            Extracted::Done => self.hashes.load().contains(&key.hash(&self.hasher)),
            Extracted::Missing(_) | Extracted::Pending(_) => false,
        }
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        let mut key = KeyBuf::default();
        if !matches!(self.extractor.extract(head, &mut key), Extracted::Missing(KeyError::Ambiguous)) {
            return self.holds(head);
        }
        let hashes = self.hashes.load();
        let is_listed = |value: &HeaderValue| hashes.contains(&self.hasher.hash(value.as_bytes()));
        match self.extractor.candidates(head) {
            Some(values) => values.iter().any(is_listed),
            // To try all combinations of several headers' lines, a client could make as many as it likes.
            None => true,
        }
    }
}

/// Not the entries, which may be credentials.
impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList").field("keys", &self.hashes.load().len()).finish_non_exhaustive()
    }
}
