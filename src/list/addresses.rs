//! Lists of networks and addresses.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::cidrs::Cidrs;
use crate::error::{ConfigError, or_panic};
use crate::key::AddressSource;
use crate::key::heads::RequestHead;
use crate::when::Condition;

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
/// or if [`ClientAddress`](crate::key::ClientAddress) finds none. But `always_reject` rejects requests that
/// [repeat](crate::key#repeated-headers) a [`single_valued`](crate::key::TrustedProxies::single_valued) header.
///
/// A lookup takes logarithmic time: 17 comparisons for 100,000 entries. An entry takes 18 bytes. Overlapping and
/// adjacent networks are merged.
#[derive(Clone)]
pub struct AddressList {
    source: Arc<dyn AddressSource>,
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
    pub fn new<I>(source: impl AddressSource, cidrs: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        or_panic(Self::try_new(source, cidrs))
    }

    /// Fallible version of [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Returns an error if an entry is invalid.
    pub fn try_new<I>(source: impl AddressSource, cidrs: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let networks = Arc::new(ArcSwap::from_pointee(Cidrs::parse(cidrs)?));
        Ok(Self { source: Arc::new(source), networks })
    }

    /// Replaces all entries, for all clones and from the next request on.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry is invalid; the list is then unchanged.
    pub fn replace<I>(&self, cidrs: I) -> Result<(), ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        self.networks.store(Arc::new(Cidrs::parse(cidrs)?));
        Ok(())
    }
}

impl Condition for AddressList {
    fn holds(&self, head: &RequestHead<'_>) -> bool {
        self.source.address(head).is_some_and(|address| self.networks.load().contains(address.to_canonical()))
    }

    fn may_hold(&self, head: &RequestHead<'_>) -> bool {
        self.holds(head) || self.source.is_ambiguous(head)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address is in a list of {} networks", self.networks.load().len())
    }
}

impl fmt::Debug for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressList").field("networks", &self.networks.load().len()).finish_non_exhaustive()
    }
}
