//! A list of networks.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::cidrs::Cidrs;
use crate::error::{ConfigError, or_panic};
use crate::key::AddressSource;
use crate::request::RequestHead;
use crate::when::Condition;

/// Networks and addresses, for [`never_limit`](crate::RateLimitLayer::never_limit) and
/// [`always_reject`](crate::RateLimitLayer::always_reject): a [`Condition`], which holds of requests that
/// come from one of them. Its clones are one list.
///
/// ```
/// use tower_ratelimit::{AddressList, FixedWindow, Limit, RateLimitLayer, key};
///
/// let offices = AddressList::new(key::peer_ip(), ["192.0.2.0/24", "2001:db8::7"]);
/// let blocked = AddressList::new(key::peer_ip(), [] as [&str; 0]);
/// let limits = RateLimitLayer::new([Limit::new("daily", FixedWindow::per_day(1_000)).by(key::peer_ip())])
///     .never_limit(offices)
///     .always_reject(blocked.clone());
///
/// // Later, while requests are served:
/// blocked.replace(["198.51.100.0/24"]);
/// # let _ = limits;
/// ```
///
/// What is compared is the address itself, whatever part of it makes a key: an entry `2001:db8::7` means
/// that address alone, though [`peer_ip`](crate::key::peer_ip) charges its network of 64 bits. Clients
/// usually have all of such a network at their disposal: list `2001:db8::/64` to mean one. Addresses are
/// canonical: `::ffff:192.0.2.1` is `192.0.2.1`, in entries too.
///
/// A request that shows no address is on no list: over a Unix socket, where the server does not say who
/// the peer is, or where [`ClientAddress`](crate::key::ClientAddress) finds none. But `always_reject` refuses
/// a request that [repeats](crate::key#repeated-headers) a
/// [`single_valued`](crate::key::TrustedProxies::single_valued) header.
///
/// A look-up takes as long as the logarithm of the entries: 17 comparisons for 100,000. An entry takes 18
/// bytes; those that others hold or that are next to each other are one.
#[derive(Clone)]
pub struct AddressList {
    source: Arc<dyn AddressSource>,
    networks: Arc<ArcSwap<Cidrs>>,
}

impl AddressList {
    /// The networks `cidrs` (`10.0.0.0/8`, `fd00::/8`, or a single address) of the address that
    /// [`key::peer_ip`](crate::key::peer_ip) or [`key::client_ip`](crate::key::client_ip) finds. They may
    /// overlap; there may be none.
    ///
    /// # Panics
    ///
    /// When one is not written as it should be. [`try_new`](Self::try_new) returns an error instead.
    #[track_caller]
    #[must_use]
    pub fn new<I>(source: impl AddressSource, cidrs: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        or_panic(Self::try_new(source, cidrs))
    }

    /// Like [`new`](Self::new), for networks that are not known to be right.
    ///
    /// # Errors
    ///
    /// When one is not written as it should be.
    pub fn try_new<I>(source: impl AddressSource, cidrs: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let networks = Arc::new(ArcSwap::from_pointee(Cidrs::parse(cidrs)?));
        Ok(Self { source: Arc::new(source), networks })
    }

    /// Other networks in place of those that are listed, for all clones and from the next request on.
    ///
    /// # Panics
    ///
    /// When one is not written as it should be: nothing is replaced then.
    /// [`try_replace`](Self::try_replace) returns an error instead.
    #[track_caller]
    pub fn replace<I>(&self, cidrs: I)
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        or_panic(self.try_replace(cidrs));
    }

    /// Like [`replace`](Self::replace), for networks that are not known to be right.
    ///
    /// # Errors
    ///
    /// When one is not written as it should be: nothing is replaced then.
    pub fn try_replace<I>(&self, cidrs: I) -> Result<(), ConfigError>
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
}

impl fmt::Debug for AddressList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressList").field("networks", &self.networks.load().len()).finish_non_exhaustive()
    }
}
