//! Lists of keys.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::error::{ConfigError, or_panic};
use crate::hash::{KeyHash, KeyHasher};
use crate::key::heads::RequestHead;
use crate::key::{Extracted, Key, KeyBuf, KeyError, KeyExtractor};
use crate::when::Condition;

/// A list of keys, for [`never_limit`](crate::Builder::never_limit) and
/// [`always_reject`](crate::Builder::always_reject): a [`Condition`] that holds for requests with one of them. Clones
/// share the list.
///
/// ```
/// use tower_ratelimit::{FixedWindow, KeyList, Limit, RateLimitLayer, key};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// // Authenticated by an outer layer, so clients can't choose it.
/// let staff = KeyList::new(key::extension(|user: &User| user.id), [7_u64, 12]);
/// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
///     .never_limit(staff.clone())
///     .build();
///
/// // Later, while requests are served:
/// staff.replace([7_u64]);
/// # let _ = limits;
/// ```
///
/// An entry has the type that the extractor finds: text without whitespace around it for a header, the closure's result
/// for [`key::extension`](crate::key::extension), a tuple for a tuple of extractors. Instead of an extractor with
/// [`or`](KeyExtractor::or), use one list for each alternative, and combine them with [`or`](Condition::or). For
/// addresses, use an [`AddressList`](crate::AddressList). A request without the key is on no list.
///
/// Clients can neither leave a list nor enter one by [repeating](crate::key#repeated-headers) a header. `always_reject`
/// rejects a request if any line of the header is an entry; with other ambiguous keys, such as a repeated cookie or a
/// repeated header in a tuple, it rejects all requests. `never_limit` exempts no request with an ambiguous key.
///
/// A client that can choose its key can put itself on a list, if it knows an entry. Entries are not kept: each is
/// hashed to 16 bytes with a random secret, so that the time of a comparison reveals nothing about them.
#[derive(Clone)]
pub struct KeyList {
    extractor: Arc<dyn KeyExtractor>,
    hasher: KeyHasher,
    hashes: Arc<ArcSwap<HashSet<KeyHash>>>,
}

impl KeyList {
    /// Creates a list of `keys`, which are compared with the key that `extractor` finds. There may be none.
    ///
    /// # Panics
    ///
    /// Panics if the extractor is [asynchronous](KeyExtractor::is_async), because lists are checked before anything that
    /// waits. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    #[must_use]
    pub fn new(extractor: impl KeyExtractor, keys: impl IntoIterator<Item: Key>) -> Self {
        or_panic(Self::try_new(extractor, keys))
    }

    /// Fallible version of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if the extractor is asynchronous.
    pub fn try_new(extractor: impl KeyExtractor, keys: impl IntoIterator<Item: Key>) -> Result<Self, ConfigError> {
        if extractor.is_async() {
            return Err(ConfigError::new(
                "a list can't have an asynchronous extractor, because lists are checked before anything that waits: look \
                 the key up in an outer layer, and use `key::extension`",
            ));
        }
        let hasher = KeyHasher::random();
        let hashes = Arc::new(ArcSwap::from_pointee(hashes(&hasher, keys)));
        Ok(Self { extractor: Arc::new(extractor), hasher, hashes })
    }

    /// Replaces all entries, for all clones and from the next request on.
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
        match self.extractor.header_name() {
            Some(name) => head.header_lines(name).any(|value| hashes.contains(&self.hasher.hash(value))),
            // The number of combinations of several headers' lines is the client's choice, so they are not tried.
            None => true,
        }
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key is in a list of {} keys", self.hashes.load().len())
    }
}

/// Shows the number of entries, but not the entries, which may be credentials.
impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList").field("keys", &self.hashes.load().len()).finish_non_exhaustive()
    }
}
