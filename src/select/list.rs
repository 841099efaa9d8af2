//! Lists of addresses and keys that are checked before any limit, and can be replaced at runtime.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::StatusCode;

use super::Condition;
use crate::error::{ConfigError, or_panic};
use crate::key::cidrs::Cidrs;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::key::head::RequestHead;
use crate::key::{AddressError, ClientIp, Hashed, Key, KeyBuf, KeyError, KeyExtractor, Spelling};

/// A list of networks and addresses, for [`never_limit`](crate::Builder::never_limit) and
/// [`always_reject`](crate::Builder::always_reject): a [`Condition`] that holds for requests from one of them.
/// Clones share the list.
///
/// ```
/// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key};
///
/// let offices = AddressList::new(key::peer_ip(), ["192.0.2.0/24", "2001:db8::7"]);
/// let blocked = AddressList::new(key::peer_ip(), [] as [&str; 0]);
/// let limits = RateLimitLayer::builder([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
///     .never_limit(offices)
///     .always_reject(blocked.clone())
///     .build();
///
/// // Later, while requests are served:
/// blocked.replace(["198.51.100.0/24"])?;
/// # let _ = limits;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// The whole address is compared, regardless of the prefix that makes the key: an entry `2001:db8::7` matches only that
/// address, although [`peer_ip`](crate::key::peer_ip) charges its /64 network. Clients usually control such a network,
/// so list `2001:db8::/64` to match a client. Addresses and entries are canonical: `::ffff:192.0.2.1` is `192.0.2.1`.
///
/// A request without an address is on no list: over a Unix socket, if the server does not provide the peer's address,
/// or if [`TrustedProxies`](crate::key::TrustedProxies) report none. But `always_reject` rejects requests that
/// [repeat](crate::key#repeated-headers) a [`single_valued`](crate::key::TrustedProxies::single_valued) header.
///
/// A lookup takes logarithmic time: 17 comparisons for 100,000 entries. An entry takes 18 bytes. Overlapping and
/// adjacent networks are merged.
#[derive(Clone)]
pub struct AddressList {
    source: ClientIp,
    networks: Arc<ArcSwap<Cidrs>>,
}

impl AddressList {
    /// Creates a list of networks (`10.0.0.0/8`, `fd00::/8`) and single addresses, which are compared with the address
    /// that `source` finds. There may be none.
    ///
    /// # Panics
    ///
    /// Panics if an entry is invalid. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    #[must_use]
    pub fn new(source: ClientIp, cidrs: impl IntoIterator<Item: AsRef<str>>) -> Self {
        or_panic(Self::try_new(source, cidrs))
    }

    /// Fallible version of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if an entry is invalid.
    pub fn try_new(source: ClientIp, cidrs: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, ConfigError> {
        let networks = Arc::new(ArcSwap::from_pointee(Cidrs::parse(cidrs)?));
        Ok(Self { source, networks })
    }

    /// Replaces all entries, for all clones and from the next request on.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry is invalid; the list is then unchanged.
    pub fn replace(&self, cidrs: impl IntoIterator<Item: AsRef<str>>) -> Result<(), ConfigError> {
        self.networks.store(Arc::new(Cidrs::parse(cidrs)?));
        Ok(())
    }

    /// Returns whether the address of a request is in the list.
    fn find(&self, head: &RequestHead<'_>) -> Result<bool, AddressError> {
        Ok(self.networks.load().contains(self.source.resolve(head)?))
    }
}

impl Condition for AddressList {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.find(head) == Ok(true)
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        matches!(self.find(head), Ok(true) | Err(AddressError::Repeated))
    }

    fn describe(&self) -> String {
        format!("address is in a list of {} networks", self.networks.load().len())
    }

    fn covers_family(&self) -> bool {
        self.networks.load().covered_family().is_some()
    }
}

impl fmt::Debug for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressList").field("networks", &self.networks.load().len()).finish_non_exhaustive()
    }
}

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
/// staff.replace([7_u64])?;
/// # let _ = limits;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// An entry has the type that the extractor finds: text without whitespace around it for a header, the closure's result
/// for [`key::extension`](crate::key::extension), a tuple for a tuple of extractors. Instead of an extractor with
/// [`or`](KeyExtractor::or), use one list for each alternative, and combine them with [`or`](Condition::or). For
/// addresses, use an [`AddressList`]. A request without the key is on no list. Entries for [`host`](crate::key::host)
/// and for headers whose values have [several spellings](crate::key#spellings) may be written in any of them, except in
/// tuples.
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
    /// Panics if the extractor is [asynchronous](KeyExtractor::is_async), because lists are checked before anything
    /// that waits, or if no request can have one of the keys. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    #[must_use]
    pub fn new(extractor: impl KeyExtractor, keys: impl IntoIterator<Item: Key>) -> Self {
        or_panic(Self::try_new(extractor, keys))
    }

    /// Fallible version of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if the extractor is asynchronous, or if no request can have one of the keys: an invalid host, or a
    /// content type with parameters.
    pub fn try_new(extractor: impl KeyExtractor, keys: impl IntoIterator<Item: Key>) -> Result<Self, ConfigError> {
        if extractor.is_async() {
            return Err(ConfigError::new(
                "a list can't have an asynchronous extractor, because lists are checked before anything that waits: \
                 look the key up in an outer layer, and use `key::extension`",
            ));
        }
        let hasher = KeyHasher::random();
        let hashes = Arc::new(ArcSwap::from_pointee(hashes(&hasher, extractor.spelling(), keys)?));
        Ok(Self { extractor: Arc::new(extractor), hasher, hashes })
    }

    /// Replaces all entries, for all clones and from the next request on.
    ///
    /// # Errors
    ///
    /// Returns an error if no request can have one of the keys; the list is then unchanged.
    pub fn replace(&self, keys: impl IntoIterator<Item: Key>) -> Result<(), ConfigError> {
        self.hashes.store(Arc::new(hashes(&self.hasher, self.extractor.spelling(), keys)?));
        Ok(())
    }
}

fn hashes(
    hasher: &KeyHasher,
    spelling: Spelling,
    keys: impl IntoIterator<Item: Key>,
) -> Result<HashSet<KeyHash>, ConfigError> {
    let hash = |key: _| {
        let mut parts = KeyBuf::default();
        Key::write(&key, &mut parts);
        let Some(part) = parts.only_part() else { return Ok(parts.hash(hasher)) };
        Ok(hasher.hash(&spelling.parse(part)?))
    };
    keys.into_iter().map(hash).collect()
}

impl Condition for KeyList {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        matches!(self.extractor.hashed(head, &self.hasher), Hashed::Known(Ok(key)) if self.hashes.load().contains(&key))
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        let hashes = self.hashes.load();
        match (self.extractor.hashed(head, &self.hasher), self.extractor.header_name()) {
            (Hashed::Known(Ok(key)), _) => hashes.contains(&key),
            (Hashed::Known(Err(KeyError::Ambiguous)), Some(name)) => {
                let spelling = self.extractor.spelling();
                let mut lines = head.header_lines(name).map(|value| self.hasher.hash(&spelling.normalize(value)));
                lines.any(|hash| hashes.contains(&hash))
            }
            // The number of combinations of several headers' lines is the client's choice, so they are not tried.
            (Hashed::Known(Err(KeyError::Ambiguous)), None) => true,
            (Hashed::Known(Err(_)) | Hashed::Pending(_), _) => false,
        }
    }

    fn describe(&self) -> String {
        format!("key is in a list of {} keys", self.hashes.load().len())
    }
}

/// Shows the number of entries, but not the entries, which may be credentials.
impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList").field("keys", &self.hashes.load().len()).finish_non_exhaustive()
    }
}

/// The effect of a list on the requests that match it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ListKind {
    /// Rejects the requests. See [`always_reject`](crate::Builder::always_reject).
    Rejects(ListAction),
    /// Exempts the requests from all limits. See [`never_limit`](crate::Builder::never_limit).
    Exempts,
}

/// The action for requests that match a list: see
/// [`always_reject_with`](crate::Builder::always_reject_with).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ListAction {
    /// Rejects the request with 403, and gRPC requests with `PERMISSION_DENIED`.
    #[default]
    Forbidden,
    /// Rejects the request with 429, without `Retry-After`, and gRPC requests with `RESOURCE_EXHAUSTED`.
    TooManyRequests,
    /// Only reports [`Event::ListMatched`](crate::Event::ListMatched), to try a list out. The limits then apply as
    /// usual.
    Shadow,
}

impl ListAction {
    /// Returns the status of the rejection, or `None` for [`Shadow`](Self::Shadow).
    #[must_use]
    pub const fn status(self) -> Option<StatusCode> {
        match self {
            Self::Forbidden => Some(StatusCode::FORBIDDEN),
            Self::TooManyRequests => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Shadow => None,
        }
    }
}
