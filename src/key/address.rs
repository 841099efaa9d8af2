//! The address of a request: that of its peer, or that of the client, as trusted proxies report it.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::HeaderName;
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

use super::cidrs::Cidrs;
use super::hops::{forwarded, node_address, x_forwarded_for};
use crate::error::{ConfigError, or_panic, validation};
use crate::key::heads::{Repeated, RequestHead};

/// A request extension with the peer's address, for servers that provide no other.
///
/// ```
/// use tower_ratelimit::key::PeerAddr;
///
/// # let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 5000));
/// # let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddr(peer));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerAddr(pub SocketAddr);

/// A request extension for connections over a Unix socket, whose peer has no address. Tonic's server sets its own. If
/// the server also provides an address, the address takes precedence.
///
/// Takes effect with [`TrustedProxies::trust_unix_peers`].
///
/// ```
/// use axum::{Extension, Router};
/// use tower_ratelimit::key::UnixPeer;
///
/// # let limits = tower_ratelimit::RateLimitLayer::new([
/// #     tower_ratelimit::Limit::new("one", tower_ratelimit::FixedWindow::per_day(1)),
/// # ]);
/// // Outside the limits, for an app that is served only on a Unix socket.
/// let app: Router = Router::new().layer(limits).layer(Extension(UnixPeer));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnixPeer;

/// Returns the address of the peer, which may be an IPv4-mapped one.
#[inline(always)]
pub(super) fn peer_address(head: &RequestHead<'_>) -> Option<IpAddr> {
    if let Some(PeerAddr(peer)) = head.extensions.get() {
        return Some(peer.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(ConnectInfo(peer)) = head.extensions.get::<ConnectInfo<SocketAddr>>() {
        return Some(peer.ip());
    }
    fallback_address(head)
}

/// Returns whether the server marks the peer as one on a Unix socket.
fn is_unix_peer(head: &RequestHead<'_>) -> bool {
    #[cfg(all(feature = "tonic", unix))]
    if head.extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    head.extensions.get::<UnixPeer>().is_some()
}

#[inline(never)]
fn fallback_address(head: &RequestHead<'_>) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(MockConnectInfo(peer)) = head.extensions.get::<MockConnectInfo<SocketAddr>>() {
        return Some(peer.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(peer) = head.extensions.get::<TcpConnectInfo>() {
        return peer.remote_addr().map(|peer| peer.ip());
    }
    let _ = head;
    None
}

/// The proxies that are trusted to report client addresses. [`x_forwarded_for`](Self::x_forwarded_for),
/// [`forwarded`](Self::forwarded) and [`single_valued`](Self::single_valued) choose the header that they write, and
/// return a [`ClientAddress`].
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
#[doc(alias = "proxy")]
#[doc(alias = "x-forwarded-for")]
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

    /// Trusts peers on Unix sockets, too, which the server marks by [`UnixPeer`]. By default, their requests have no
    /// address. [`hops`](Self::hops) needs no peer, so this has no effect there.
    pub fn trust_unix_peers(self) -> Self {
        Self { unix_peers: true, ..self }
    }

    /// Reads the client's address from `X-Forwarded-For`, to which each proxy appends its peer. Several lines are one
    /// list.
    pub fn x_forwarded_for(self) -> ClientAddress {
        ClientAddress(Source::XForwardedFor(self))
    }

    /// Reads the client's address from `Forwarded` (RFC 7239), to which each proxy appends its peer. Several lines are
    /// one list.
    pub fn forwarded(self) -> ClientAddress {
        ClientAddress(Source::Forwarded(self))
    }

    /// Reads the client's address from a header that holds nothing else, such as `CF-Connecting-IP`, and that the
    /// proxies overwrite on every request. The header counts if the peer is trusted; with [`hops`](Self::hops), it
    /// always counts, regardless of their number.
    ///
    /// A request without a valid address in the header has no client address. If the header is absent and the peer is
    /// trusted by its address, the client is the peer. Several lines are [ambiguous](crate::key#repeated-headers).
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a valid header name.
    #[track_caller]
    pub fn single_valued(self, name: &str) -> ClientAddress {
        ClientAddress(Source::SingleValued(self, or_panic(validation::header_name(name))))
    }

    /// Returns the client, given the addresses in a list from right to left.
    fn client_of_list(
        &self,
        head: &RequestHead<'_>,
        mut hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Result<IpAddr, AddressError> {
        let cidrs = match &self.trust {
            Trust::Cidrs(cidrs) => cidrs,
            Trust::Hops(count) => return nth_hop(hops, *count),
        };
        let mut leftmost_proxy = match self.peer(cidrs, head)? {
            Peer::Client(client) => return Ok(client),
            Peer::Proxy(proxy) => proxy,
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

    /// Returns the client, given the name of a single-valued header.
    fn client_of_single(&self, head: &RequestHead<'_>, name: &HeaderName) -> Result<IpAddr, AddressError> {
        let proxy = match &self.trust {
            Trust::Cidrs(cidrs) => match self.peer(cidrs, head)? {
                Peer::Client(client) => return Ok(client),
                Peer::Proxy(proxy) => proxy,
            },
            Trust::Hops(_) => None,
        };
        match head.single_header(name) {
            Ok(Some(value)) => node_address(value).ok_or(AddressError::Unreadable),
            Ok(None) => proxy.ok_or(AddressError::TooFewHops { expected: 1, found: 0 }),
            Err(Repeated) => Err(AddressError::Repeated),
        }
    }

    /// Returns who the peer is, before any header is read.
    fn peer(&self, cidrs: &Cidrs, head: &RequestHead<'_>) -> Result<Peer, AddressError> {
        match peer_address(head).map(|peer| peer.to_canonical()) {
            Some(peer) if cidrs.contains(peer) => Ok(Peer::Proxy(Some(peer))),
            Some(peer) => Ok(Peer::Client(peer)),
            None if self.unix_peers && is_unix_peer(head) => Ok(Peer::Proxy(None)),
            None => Err(AddressError::NoPeer),
        }
    }
}

/// The other end of the connection.
enum Peer {
    Client(IpAddr),
    /// A trusted proxy, with its address unless it is on a Unix socket.
    Proxy(Option<IpAddr>),
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

/// Finds the client's address: by one header that [`TrustedProxies`] write, or the peer's.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
/// use tower_ratelimit::key::{PeerAddr, TrustedProxies};
///
/// let address = TrustedProxies::cidrs(["10.0.0.0/8"]).x_forwarded_for();
///
/// // The client forged the first hop; the proxies appended the others.
/// let mut request = Request::new(());
/// request.headers_mut().insert("x-forwarded-for", "192.0.2.66, 198.51.100.7:50123, 10.0.0.2".parse().unwrap());
/// request.extensions_mut().insert(PeerAddr(([10, 0, 0, 1], 40_000).into()));
///
/// let client = address.resolve(&RequestHead::of(&request)).unwrap();
/// assert_eq!(client.to_string(), "198.51.100.7");
/// ```
///
/// Hops in `X-Forwarded-For` and `Forwarded` may have a port, brackets and a zone (`fe80::1%eth0`), which are ignored;
/// `Forwarded` may have quotes and escapes. Anything that is not an address ends the search: `unknown`, obfuscated
/// names (`_proxy`) and empty elements. It is never skipped, because the hops behind it may be the client's.
///
/// Addresses are canonical: `::ffff:192.0.2.1` is `192.0.2.1`. Addresses translated from IPv4 to IPv6 (`64:ff9b::/96`,
/// `2002::/16`) are kept as they are.
#[derive(Clone, Debug)]
pub struct ClientAddress(Source);

#[derive(Clone, Debug)]
enum Source {
    Peer,
    XForwardedFor(TrustedProxies),
    Forwarded(TrustedProxies),
    SingleValued(TrustedProxies, HeaderName),
}

impl ClientAddress {
    /// The address of the peer.
    pub(super) const PEER: Self = Self(Source::Peer);

    #[inline]
    pub(super) fn is_of_peer(&self) -> bool {
        matches!(self.0, Source::Peer)
    }

    /// Returns the client's address in canonical form. Takes time linear in the length of the header, and does not
    /// allocate.
    ///
    /// # Errors
    ///
    /// Returns an error if the request does not name the client, or the server does not provide the peer's address.
    pub fn resolve(&self, head: &RequestHead<'_>) -> Result<IpAddr, AddressError> {
        match &self.0 {
            Source::Peer => peer_address(head).map(|peer| peer.to_canonical()).ok_or(AddressError::NoPeer),
            Source::XForwardedFor(proxies) => proxies.client_of_list(head, x_forwarded_for(head.headers)),
            Source::Forwarded(proxies) => proxies.client_of_list(head, forwarded(head.headers)),
            Source::SingleValued(proxies, name) => proxies.client_of_single(head, name),
        }
    }
}

/// Why a request has no client address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum AddressError {
    /// The server does not provide the peer's address, or the peer is on a Unix socket and not trusted.
    NoPeer,
    /// The header names fewer hops than the trusted proxies append, so the request did not pass all of them.
    TooFewHops {
        /// The number of hops that the trusted proxies append.
        expected: usize,
        /// The number of hops in the header.
        found: usize,
    },
    /// The header has no valid address in the client's place.
    Unreadable,
    /// A single-valued header occurs several times.
    Repeated,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeer => f.write_str(
                "the server does not provide the peer's address, or the peer is on a Unix socket that is not trusted",
            ),
            Self::TooFewHops { expected, found } => {
                write!(f, "the header names {found} of the {expected} hops that trusted proxies append")
            }
            Self::Unreadable => f.write_str("the header has no valid address in the client's place"),
            Self::Repeated => f.write_str("the header occurs several times"),
        }
    }
}

impl Error for AddressError {}
