//! Keys from the peer's address.

use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use super::prefix::Prefixes;
use crate::hash::KeyHasher;
use crate::key::heads::RequestHead;

/// Extracts the address of the peer, that is the other end of the connection. IPv6 addresses are masked to their first
/// 64 bits, because a client usually controls the rest; [`PeerIp::ipv6_prefix`] changes that.
///
/// The server provides the address in a request extension:
///
/// - **Axum**: serve `app.into_make_service_with_connect_info::<SocketAddr>()`.
/// - **Tonic**: with the feature `tonic`, its server does so by itself.
/// - **Hyper** and others: insert a [`PeerAddr`].
///
/// Without it, no request has a key: each is rejected with 500, and the first one is logged. They share a bucket only if
/// the limit's policy is [`OnMissingKey::Share`](crate::OnMissingKey::Share).
///
/// # Deployment
///
/// Behind a proxy, the peer is the proxy, so all clients share its bucket. Use [`client_ip`](super::client_ip) there.
pub const fn peer_ip() -> PeerIp {
    PeerIp { prefixes: Prefixes::DEFAULT }
}

/// An extractor that reads the peer's address. Returned by [`peer_ip`].
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    prefixes: Prefixes,
}

impl PeerIp {
    /// Sets how many leading bits of an IPv6 address make the key, from 1 to 128. Defaults to 64.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0, which would put all of IPv6 into one bucket, or greater than 128.
    #[must_use]
    #[track_caller]
    pub const fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv6(bits) }
    }

    /// Sets how many leading bits of an IPv4 address make the key, from 1 to 32. Defaults to 32.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0, which would put all of IPv4 into one bucket, or greater than 32.
    #[must_use]
    #[track_caller]
    pub const fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv4(bits) }
    }

    /// Returns the address that names the bucket of `address`: the first address of its network. IPv4-mapped IPv6
    /// addresses count as IPv4.
    ///
    /// ```
    /// use tower_ratelimit::key;
    ///
    /// let network = key::peer_ip().network("2001:db8:1:2:3:4:5:6".parse().unwrap());
    /// assert_eq!(network.to_string(), "2001:db8:1:2::");
    /// ```
    #[must_use]
    pub fn network(&self, address: IpAddr) -> IpAddr {
        self.prefixes.network(address)
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match address(head) {
            Some(address) => {
                self.prefixes.write(address, key);
                Extracted::Done
            }
            None => Extracted::Missing(KeyError::NotProvided),
        }
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        vec![self.prefixes.describe("peer address", address(head))]
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        match address(head) {
            Some(address) => Hashed::Now(self.prefixes.hash(address, hasher)),
            None => Hashed::Missing(KeyError::NotProvided),
        }
    }
}

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
/// Takes effect with [`TrustedProxies::trust_unix_peers`](super::TrustedProxies::trust_unix_peers).
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

/// The other end of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// A canonical address, never an IPv4-mapped one.
    Address(IpAddr),
    Unix,
}

impl Peer {
    /// Returns the peer, if the server provides it.
    pub(super) fn of(head: &RequestHead<'_>) -> Option<Self> {
        if let Some(address) = address(head) {
            return Some(Self::Address(address.to_canonical()));
        }
        #[cfg(all(feature = "tonic", unix))]
        if head.extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
            return Some(Self::Unix);
        }
        head.extensions.get::<UnixPeer>().map(|_| Self::Unix)
    }
}

#[inline(always)]
fn address(head: &RequestHead<'_>) -> Option<IpAddr> {
    if let Some(PeerAddr(peer)) = head.extensions.get() {
        return Some(peer.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(ConnectInfo(peer)) = head.extensions.get::<ConnectInfo<SocketAddr>>() {
        return Some(peer.ip());
    }
    fallback_address(head)
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
