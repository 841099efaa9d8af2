//! Keys from the address of the peer or of the client.

use std::net::IpAddr;

use super::address::{AddressError, ClientAddress, peer_address};
use super::cidrs::Prefixes;
use super::encoding::{Key, KeyBuf};
use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor};
use super::hash::KeyHasher;
use super::part::KeyPart;
use crate::error::validation::checked;
use crate::key::heads::RequestHead;

/// Extracts the address of the peer, that is the other end of the connection. IPv6 addresses are masked to their first
/// 64 bits, because a client usually controls the rest; [`ClientIp::ipv6_prefix`] changes that.
///
/// The server provides the address in a request extension:
///
/// - **Axum**: serve `app.into_make_service_with_connect_info::<SocketAddr>()`.
/// - **Tonic**: with the feature `tonic`, its server does so by itself.
/// - **Hyper** and others: insert a [`PeerAddr`](super::PeerAddr).
///
/// Without it, no request has a key: each is rejected with 500, and the first one is logged. They share a bucket only
/// if the limit's policy is [`OnMissingKey::Share`](crate::OnMissingKey::Share).
///
/// # Deployment
///
/// Behind a proxy, the peer is the proxy, so all clients share its bucket. Use [`client_ip`] there.
pub const fn peer_ip() -> ClientIp {
    ClientIp { address: ClientAddress::PEER, prefixes: Prefixes::DEFAULT }
}

/// Extracts the client's address as reported by trusted proxies. IPv6 addresses are masked to their first 64 bits, as
/// with [`peer_ip`]: the same address is the same key with both.
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
/// use tower_ratelimit::{Limit, TokenBucket, key};
///
/// let address = TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"]).x_forwarded_for();
/// let limit = Limit::new("burst", TokenBucket::per_second(10)).by(key::client_ip(address));
/// # let _ = limit;
/// ```
///
/// A request without a valid client address has no key, and is rejected with 400 unless the limit has another
/// [policy](crate::OnMissingKey). If the peer is unknown and [`ClientAddress`] needs it, the status is 500, as with
/// [`peer_ip`]. A request that repeats a
/// [`single_valued`](crate::key::TrustedProxies::single_valued) header is always rejected with 400, as with any
/// [repeated header](crate::key#repeated-headers).
///
/// # Deployment
///
/// The right setting depends on the proxies in front of the server. A wrong one lets clients choose their bucket, or
/// makes many clients share one.
///
/// | in front | setting | caution |
/// |---|---|---|
/// | nothing | [`peer_ip`] | if any header is trusted, clients choose their bucket |
/// | nginx, with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for` | `cidrs(["127.0.0.1"])` or where it runs, `.x_forwarded_for()` | without that line, the client's header is passed on unchanged: clients choose their bucket |
/// | nginx on a Unix socket | the same with `.trust_unix_peers()` and a [`UnixPeer`](crate::key::UnixPeer) | without them, all requests get 500 |
/// | AWS ALB, which appends to the header | `cidrs` of its subnets, `.x_forwarded_for()` | with its attribute `preserve`, nothing is added: clients choose their bucket |
/// | CloudFront, then ALB | `hops(2).x_forwarded_for()`, and a firewall that lets only CloudFront to the ALB | without the firewall, clients that connect to the ALB directly choose their bucket; with `hops(1)`, all clients of an edge share a bucket |
/// | Cloudflare | `cidrs` of [its networks](https://www.cloudflare.com/ips/), `.single_valued("cf-connecting-ip")` | with `hops(1)` and no firewall, clients that find the origin choose their bucket |
/// | Cloudflare Tunnel | `cidrs` of the hosts of `cloudflared`, `.single_valued("cf-connecting-ip")` | with `peer_ip`, all clients share one bucket |
/// | Fly | `hops(1).single_valued("fly-client-ip")` | apps in your private network can bypass the proxy, and choose their bucket |
/// | Kubernetes, ingress-nginx | `cidrs` of the pods, `.x_forwarded_for()` | with `externalTrafficPolicy: Cluster` the ingress does not see client addresses: all clients of a node share a bucket |
/// | a CDN in front of any of these | also the CDN's networks, or one more hop | otherwise all clients of an edge share a bucket |
///
/// Only one header is ever read. Proxies pass on headers that they don't know, so a client could write a second one.
///
/// Behind a NAT64 translator, all of IPv4 is in one /96 network (`64:ff9b::/96`), and would be one key. Use
/// [`ipv6_prefix(128)`](ClientIp::ipv6_prefix) there.
#[doc(alias = "proxy")]
#[doc(alias = "x-forwarded-for")]
pub const fn client_ip(address: ClientAddress) -> ClientIp {
    ClientIp { address, prefixes: Prefixes::DEFAULT }
}

/// An extractor that reads the address of the peer or of the client. Returned by [`peer_ip`] and [`client_ip`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientIp {
    address: ClientAddress,
    prefixes: Prefixes,
}

impl ClientIp {
    /// Sets how many leading bits of an IPv6 address make the key, from 1 to 128. Defaults to 64.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0, which would put all of IPv6 into one bucket, or greater than 128.
    #[track_caller]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.prefixes = checked!(self.prefixes.ipv6(bits));
        self
    }

    /// Sets how many leading bits of an IPv4 address make the key, from 1 to 32. Defaults to 32.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0, which would put all of IPv4 into one bucket, or greater than 32.
    #[track_caller]
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        self.prefixes = checked!(self.prefixes.ipv4(bits));
        self
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

    // Inlined for the peer's address, which saves about 40 instructions of a request.
    #[inline(always)]
    fn find(&self, head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        let address = if self.address.is_of_peer() {
            peer_address(head).ok_or(KeyError::NotProvided)
        } else {
            self.find_client(head)
        };
        address.map(|address| self.prefixes.network(address))
    }

    #[inline(never)]
    fn find_client(&self, head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        match self.address.resolve(head) {
            Ok(address) => Ok(address),
            Err(AddressError::NoPeer) => Err(KeyError::NotProvided),
            Err(AddressError::Repeated) => Err(KeyError::Ambiguous),
            Err(_) => Err(KeyError::NotSent),
        }
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Extracted, KeyError> {
        self.find(head)?.write(key);
        Ok(Extracted::Done)
    }

    fn hashed(&self, head: &RequestHead<'_>, hasher: &KeyHasher) -> Hashed {
        Hashed::Known(self.find(head).map(|network| network.hash_with(hasher)))
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        let name = if self.address.is_of_peer() { "peer address" } else { "client address" };
        vec![match self.find(head) {
            Ok(network) => KeyPart::new(name, self.prefixes.text(network)),
            Err(_) => KeyPart::missing(name),
        }]
    }

    fn prefixes(&self) -> Option<Prefixes> {
        Some(self.prefixes)
    }
}

/// The address itself, for an [`AddressList`](crate::AddressList), regardless of the prefix that makes the key.
impl From<ClientIp> for ClientAddress {
    fn from(key: ClientIp) -> Self {
        key.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2026-30827 (express-rate-limit): mapped addresses were masked as IPv6, so all of IPv4 was one key.
    #[test]
    fn mapped_addresses_are_canonicalized_before_masking() {
        let bytes = |address: &str| {
            let mut key = KeyBuf::default();
            peer_ip().ipv6_prefix(56).network(address.parse().unwrap()).write(&mut key);
            key.only_part().unwrap().to_vec()
        };
        assert_eq!(bytes("::ffff:192.0.2.1"), bytes("192.0.2.1"));
        assert_ne!(bytes("::ffff:192.0.2.1"), bytes("::ffff:192.0.2.2"));
        assert_eq!(bytes("2001:db8::1"), bytes("2001:db8:0:ff::2"));
        assert_ne!(bytes("2001:db8::1"), bytes("2001:db8:0:100::1"));
    }
}
