//! The client's address, behind proxies.

mod address;
mod forwarded;
mod node;
mod proxies;

pub use address::{AddressError, ClientAddress};
pub use proxies::TrustedProxies;

use std::net::IpAddr;

use super::extractor::{Extracted, KeyError, KeyExtractor};
use super::part::KeyBuf;
use super::prefix::Prefixes;
use crate::request::RequestHead;

/// The client's address, as proxies that you trust tell it. IPv6 addresses are cut to their first
/// 64 bits, as with [`peer_ip`](super::peer_ip): for the same address, the two are the same key.
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
/// A request that does not show its address has no key, and is refused with 400, unless the limit
/// says otherwise. If the server does not say who the peer is, and [`ClientAddress`] has to know,
/// that is 500 as with [`peer_ip`](super::peer_ip). If it repeats a
/// [`single_valued`](TrustedProxies::single_valued) header, that is 400 whatever the limit says, as for any
/// [repeated header](super#repeated-headers).
///
/// # Deployment
///
/// Which setting is right depends on what stands in front:
///
/// | in front | setting | otherwise |
/// |---|---|---|
/// | nothing | [`peer_ip`](super::peer_ip) | with any header believed, clients choose their bucket |
/// | nginx, with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for` | `cidrs(["127.0.0.1"])` or where it runs, `.x_forwarded_for()` | without that line, what the client sends is passed on as it is: clients choose |
/// | nginx on a Unix socket | the same with `.trust_unix_peers()` and a [`UnixPeer`](super::UnixPeer) | all requests get 500 |
/// | AWS ALB, which adds to the header | `cidrs` of its subnets, `.x_forwarded_for()` | with its attribute `preserve`, nothing is added: clients choose |
/// | CloudFront, then ALB | `hops(2).x_forwarded_for()`, and a firewall that lets only CloudFront to the ALB | without the firewall, whoever connects to the ALB chooses; with `hops(1)`, all of an edge share a bucket |
/// | Cloudflare | `cidrs` of [its networks](https://www.cloudflare.com/ips/), `.single_valued("cf-connecting-ip")` | with `hops(1)` and no firewall, whoever finds the origin chooses |
/// | Cloudflare Tunnel | `cidrs` of where `cloudflared` runs, `.single_valued("cf-connecting-ip")` | with `peer_ip`, all share one bucket |
/// | Fly | `hops(1).single_valued("fly-client-ip")` | apps in your private network can connect past the proxy, and choose |
/// | Kubernetes, ingress-nginx | `cidrs` of the pods, `.x_forwarded_for()` | with `externalTrafficPolicy: Cluster` it does not see the clients itself: all of a node share a bucket |
/// | a CDN before any of these | the CDN's networks too, or one hop more | all of an edge share a bucket |
///
/// Only one header is ever read. Proxies pass on those that they don't know, so that a second one,
/// as an alternative, would be the client's to write.
///
/// Behind a translator from IPv4 to a server with nothing but IPv6, all of IPv4 is in one network
/// of 96 bits (`64:ff9b::/96`), and would be one key: there, choose
/// [`ipv6_prefix(128)`](ClientIp::ipv6_prefix).
#[must_use]
pub const fn client_ip(address: ClientAddress) -> ClientIp {
    ClientIp { address, prefixes: Prefixes::DEFAULT }
}

/// See [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    address: ClientAddress,
    prefixes: Prefixes,
}

impl ClientIp {
    pub(super) fn client(&self) -> &ClientAddress {
        &self.address
    }

    /// How many leading bits of an IPv6 address make the key: 64 at first.
    ///
    /// # Panics
    ///
    /// When `bits` is 0, which would put all of IPv6 in one bucket, or over 128.
    #[must_use]
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv6(bits), ..self }
    }

    /// How many leading bits of an IPv4 address make the key: all 32 at first.
    ///
    /// # Panics
    ///
    /// When `bits` is 0, which would put all of IPv4 in one bucket, or over 32.
    #[must_use]
    #[track_caller]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv4(bits), ..self }
    }

    /// The key of requests from `address`: itself, or the first one of the network that counts. An IPv4 address
    /// that is mapped into IPv6 is that address.
    ///
    /// ```
    /// use tower_ratelimit::key::{self, TrustedProxies};
    ///
    /// let address = TrustedProxies::hops(1).x_forwarded_for();
    /// let network = key::client_ip(address).network("2001:db8:1:2:3:4:5:6".parse().unwrap());
    /// assert_eq!(network.to_string(), "2001:db8:1:2::");
    /// ```
    #[must_use]
    pub fn network(&self, address: IpAddr) -> IpAddr {
        self.prefixes.network(address)
    }
}

impl KeyExtractor for ClientIp {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        match self.address.resolve(head) {
            Ok(address) => {
                self.prefixes.write(address, key);
                Extracted::Done
            }
            Err(AddressError::NoPeer) => Extracted::Missing(KeyError::FromServer),
            Err(AddressError::NotSingle) => Extracted::Missing(KeyError::Ambiguous),
            Err(_) => Extracted::Missing(KeyError::FromRequest),
        }
    }
}
