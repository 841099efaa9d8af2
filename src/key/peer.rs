//! The address at the other end of the connection.

use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "axum")]
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
#[cfg(feature = "tonic")]
use tonic::transport::server::TcpConnectInfo;

use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor};
use super::part::KeyBuf;
use super::prefix::Prefixes;
use crate::hash::KeyHasher;
use crate::request::RequestHead;

/// The address of the peer: who opened the connection. IPv6 addresses are cut to their first 64
/// bits, of which a client usually has all the rest at its disposal.
///
/// The server has to say who the peer is, in the request's extensions:
///
/// - **Axum**: serve `app.into_make_service_with_connect_info::<SocketAddr>()`.
/// - **Tonic**: with feature `tonic`, its server does so by itself.
/// - **Hyper**, and any other: insert a [`PeerAddr`].
///
/// Without it no request has a key: each is refused with 500, and the first is reported through
/// `tracing`, so that a first `curl` shows it. They don't share a bucket unless
/// [`OnMissingKey::Share`](crate::OnMissingKey::Share) was chosen, and nothing panics.
///
/// # Deployment
///
/// Behind a proxy, the peer is the proxy, and all clients share its bucket: there, use
/// [`client_ip`](super::client_ip).
pub const fn peer_ip() -> PeerIp {
    PeerIp { prefixes: Prefixes::DEFAULT }
}

/// See [`peer_ip`].
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    prefixes: Prefixes,
}

impl PeerIp {
    /// How many leading bits of an IPv6 address make the key: 64 at first.
    ///
    /// # Panics
    ///
    /// When `bits` is 0, which would put all of IPv6 in one bucket, or over 128.
    #[must_use]
    #[track_caller]
    pub const fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv6(bits) }
    }

    /// How many leading bits of an IPv4 address make the key: all 32 at first.
    ///
    /// # Panics
    ///
    /// When `bits` is 0, which would put all of IPv4 in one bucket, or over 32.
    #[must_use]
    #[track_caller]
    pub const fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv4(bits) }
    }

    /// The key of requests from `address`: itself, or the first one of the network that counts. An IPv4 address
    /// that is mapped into IPv6 is that address.
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
            None => Extracted::Missing(KeyError::FromServer),
        }
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        match address(head) {
            Some(address) => Hashed::Now(self.prefixes.hash(address, hasher)),
            None => Hashed::Missing(KeyError::FromServer),
        }
    }
}

/// The peer's address, as a request's extension, for servers that don't say it otherwise.
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

/// Says, as a request's extension, that the peer has connected over a Unix socket and so has no
/// address. Tonic's server says it by itself. Where the server says an address too, that counts.
///
/// ```
/// use axum::{Extension, Router};
/// use tower_ratelimit::key::UnixPeer;
///
/// # let limits = tower_ratelimit::RateLimitLayer::new([
/// #     tower_ratelimit::Limit::new("one", tower_ratelimit::FixedWindow::per_day(1)),
/// # ]);
/// // Outside the limits, for an app that is served on a Unix socket and nowhere else.
/// let app: Router = Router::new().layer(limits).layer(Extension(UnixPeer));
/// ```
///
/// It means something where
/// [`TrustedProxies::trust_unix_peers`](super::TrustedProxies::trust_unix_peers) was chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnixPeer;

/// Who opened the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// Canonical: an IPv4 address is never one mapped into IPv6.
    Address(IpAddr),
    Unix,
}

impl Peer {
    /// The peer, if the server says who that is.
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
    address_otherwise(head)
}

#[inline(never)]
fn address_otherwise(head: &RequestHead<'_>) -> Option<IpAddr> {
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
