//! The address at the other end of the connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::extractor::{Extracted, KeyExtractor, Missing};
use super::part::{Key, KeyBuf};
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
/// [`MissingKey::Share`](crate::MissingKey::Share) was chosen, and nothing panics.
///
/// # Deployment
///
/// Behind a proxy, the peer is the proxy, and all clients share its bucket.
pub const fn peer_ip() -> PeerIp {
    PeerIp { ipv6_prefix: 64 }
}

/// See [`peer_ip`].
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: u8,
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
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        Self { ipv6_prefix: bits }
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let Some(peer) = peer(head) else { return Extracted::Missing(Missing::FromServer) };
        // First what it is, then what of it counts: the other way round, all of IPv4 mapped into
        // IPv6 would be one key.
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => address.write(key),
            IpAddr::V6(address) => cut(address, self.ipv6_prefix).write(key),
        }
        Extracted::Done
    }
}

fn cut(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX << (128 - u32::from(prefix));
    Ipv6Addr::from_bits(address.to_bits() & mask)
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

fn peer(head: &RequestHead<'_>) -> Option<SocketAddr> {
    if let Some(PeerAddr(peer)) = head.extensions.get() {
        return Some(*peer);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = head.extensions.get() {
        return Some(*peer);
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::connect_info::MockConnectInfo(peer)) = head.extensions.get() {
        return Some(*peer);
    }
    #[cfg(feature = "tonic")]
    if let Some(peer) = head.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return peer.remote_addr();
    }
    None
}
