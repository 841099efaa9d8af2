//! Keys from the client's address.

use std::net::IpAddr;

use super::address::ClientAddress;
use super::error::AddressError;
use crate::key::extractor::{Extracted, KeyError, KeyExtractor};
use crate::key::heads::RequestHead;
use crate::key::key_buf::KeyBuf;
use crate::key::key_part::KeyPart;
use crate::key::prefix::Prefixes;

/// Extracts the client's address as reported by trusted proxies. IPv6 addresses are masked to their first 64 bits, as
/// with [`peer_ip`](crate::key::peer_ip): the same address is the same key with both.
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
/// [`peer_ip`](crate::key::peer_ip). A request that repeats a
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
/// | nothing | [`peer_ip`](crate::key::peer_ip) | if any header is trusted, clients choose their bucket |
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
#[must_use]
pub const fn client_ip(address: ClientAddress) -> ClientIp {
    ClientIp { address, prefixes: Prefixes::DEFAULT }
}

/// An extractor that reads the client's address. Returned by [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    address: ClientAddress,
    prefixes: Prefixes,
}

impl ClientIp {
    pub(in crate::key) fn client(&self) -> &ClientAddress {
        &self.address
    }

    /// Sets how many leading bits of an IPv6 address make the key, from 1 to 128. Defaults to 64.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0, which would put all of IPv6 into one bucket, or greater than 128.
    #[must_use]
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv6(bits), ..self }
    }

    /// Sets how many leading bits of an IPv4 address make the key, from 1 to 32. Defaults to 32.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0, which would put all of IPv4 into one bucket, or greater than 32.
    #[must_use]
    #[track_caller]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self { prefixes: self.prefixes.ipv4(bits), ..self }
    }

    /// Returns the address that names the bucket of `address`: the first address of its network. IPv4-mapped IPv6
    /// addresses count as IPv4.
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
            Err(AddressError::NoPeer) => Extracted::Missing(KeyError::NotProvided),
            Err(AddressError::Repeated) => Extracted::Missing(KeyError::Ambiguous),
            Err(_) => Extracted::Missing(KeyError::NotSent),
        }
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        vec![self.prefixes.describe("client address", self.address.resolve(head).ok())]
    }
}
