//! The proxies that are trusted to report client addresses.

use std::net::IpAddr;

use super::error::AddressError;
use crate::cidrs::Cidrs;
use crate::error::{ConfigError, or_panic};
use crate::key::heads::RequestHead;
use crate::key::peer::Peer;

/// The proxies that are trusted to report client addresses. [`x_forwarded_for`](Self::x_forwarded_for),
/// [`forwarded`](Self::forwarded) and [`single_valued`](Self::single_valued) choose the header that they write, and
/// return a [`ClientAddress`](super::ClientAddress).
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
///
/// // By their networks,
/// let by_network = TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"]).x_forwarded_for();
/// // or by their number.
/// let by_number = TrustedProxies::hops(2).forwarded();
/// # let _ = (by_network, by_number);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TrustedProxies {
    trust: Trust,
    unix_peers: bool,
}

#[derive(Clone, Debug)]
enum Trust {
    Cidrs(Cidrs),
    Hops(usize),
}

/// The role of the peer, which is determined before any header is read.
enum PeerRole {
    Client(IpAddr),
    /// A trusted proxy, and its address unless it is on a Unix socket.
    Proxy(Option<IpAddr>),
}

const NO_PROXIES: &str = "no proxy is trusted: name at least one network or hop, or use `key::peer_ip`";

impl TrustedProxies {
    /// Trusts peers and hops in these networks: `10.0.0.0/8`, `fd00::/8`, or a single address. Networks may overlap.
    /// IPv4-mapped networks count as IPv4.
    ///
    /// A peer that is not trusted is the client. Otherwise, the client is the first hop from the right that is not
    /// trusted. If the header ends before that, or a hop has no valid address, the client is the last trusted hop.
    ///
    /// Clients inside these networks can choose their address, so list the proxies rather than your whole network.
    ///
    /// # Panics
    ///
    /// Panics if there is no network, if one is invalid, or if they cover all of IPv4 or all unicast IPv6 addresses
    /// (`2000::/3`), which would let every client choose its address. [`try_cidrs`](Self::try_cidrs) returns an error
    /// instead.
    #[track_caller]
    pub fn cidrs<I>(cidrs: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        or_panic(Self::try_cidrs(cidrs))
    }

    /// Fallible version of [`cidrs`](Self::cidrs).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no network, if one is invalid, or if they cover all of IPv4 or IPv6.
    ///
    /// ```
    /// use tower_ratelimit::key::TrustedProxies;
    ///
    /// let error = TrustedProxies::try_cidrs(["10.0.0.1/8"]).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "the network \"10.0.0.1/8\" has bits beyond its prefix: write \"10.0.0.0/8\", or the address \
    ///      without a prefix if that alone is meant",
    /// );
    /// ```
    pub fn try_cidrs<I>(cidrs: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let cidrs = Cidrs::parse(cidrs)?;
        if cidrs.is_empty() {
            return Err(ConfigError::new(NO_PROXIES));
        }
        if let Some(family) = cidrs.covered_family() {
            return Err(ConfigError::new(format!(
                "the trusted networks cover all of {family}, so that every client could choose its address: name the \
                 proxies' networks, or count the proxies with `TrustedProxies::hops` if nobody else can connect"
            )));
        }
        Ok(Self { trust: Trust::Cidrs(cidrs), unix_peers: false })
    }

    /// Trusts the last `count` proxies, including the peer, regardless of their addresses. The client is the `count`-th
    /// hop from the right.
    ///
    /// Use it only if *every* request passes all of the proxies: clients that can bypass one choose their address, and
    /// so does every client if `count` is too high. A request with fewer hops in the header has no address, so that a
    /// `count` that is too high shows at the first request. If some requests take another path, such as health checks,
    /// choose their key with `client_ip(…).or(peer_ip())`.
    ///
    /// # Panics
    ///
    /// Panics if `count` is 0.
    #[track_caller]
    pub fn hops(count: usize) -> Self {
        assert!(count > 0, "{NO_PROXIES}");
        Self { trust: Trust::Hops(count), unix_peers: false }
    }

    /// Also trusts peers on Unix sockets, which the server marks by [`UnixPeer`](crate::key::UnixPeer). By default,
    /// their requests have no address. [`hops`](Self::hops) needs no peer, so this has no effect there.
    pub fn trust_unix_peers(self) -> Self {
        Self { unix_peers: true, ..self }
    }

    /// Returns the client, given the addresses in a list from right to left.
    pub(super) fn client_of_list(
        &self,
        head: &RequestHead<'_>,
        mut hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Result<IpAddr, AddressError> {
        let cidrs = match &self.trust {
            Trust::Cidrs(cidrs) => cidrs,
            Trust::Hops(count) => return nth_hop(hops, *count),
        };
        let mut leftmost_proxy = match self.role_of_peer(cidrs, head)? {
            PeerRole::Client(peer) => return Ok(peer),
            PeerRole::Proxy(peer) => peer,
        };
        loop {
            match hops.next() {
                Some(Some(address)) if cidrs.contains(address) => leftmost_proxy = Some(address),
                Some(Some(client)) => return Ok(client),
                // Hops further left were not written by a trusted proxy.
                Some(None) => return leftmost_proxy.ok_or(AddressError::Unreadable),
                None => return leftmost_proxy.ok_or(AddressError::TooFewHops { expected: 1, found: 0 }),
            }
        }
    }

    /// Returns the client, given the address in a single-valued header. `header` returns `None` if it is absent.
    pub(super) fn client_of_single(
        &self,
        head: &RequestHead<'_>,
        header: impl FnOnce() -> Option<Result<IpAddr, AddressError>>,
    ) -> Result<IpAddr, AddressError> {
        let peer = match &self.trust {
            Trust::Cidrs(cidrs) => self.role_of_peer(cidrs, head)?,
            Trust::Hops(_) => PeerRole::Proxy(None),
        };
        match peer {
            PeerRole::Client(peer) => Ok(peer),
            PeerRole::Proxy(peer) => {
                header().unwrap_or_else(|| peer.ok_or(AddressError::TooFewHops { expected: 1, found: 0 }))
            }
        }
    }

    fn role_of_peer(&self, cidrs: &Cidrs, head: &RequestHead<'_>) -> Result<PeerRole, AddressError> {
        match Peer::of(head) {
            Some(Peer::Address(peer)) if cidrs.contains(peer) => Ok(PeerRole::Proxy(Some(peer))),
            Some(Peer::Address(peer)) => Ok(PeerRole::Client(peer)),
            Some(Peer::Unix) if self.unix_peers => Ok(PeerRole::Proxy(None)),
            Some(Peer::Unix) | None => Err(AddressError::NoPeer),
        }
    }
}

/// Returns the `count`-th hop, if all hops up to it have addresses.
fn nth_hop(hops: impl Iterator<Item = Option<IpAddr>>, count: usize) -> Result<IpAddr, AddressError> {
    let mut found = 0;
    for hop in hops {
        let address = hop.ok_or(AddressError::Unreadable)?;
        found += 1;
        if found == count {
            return Ok(address);
        }
    }
    Err(AddressError::TooFewHops { expected: count, found })
}
