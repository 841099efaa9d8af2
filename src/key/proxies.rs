//! The address of the client, as trusted proxies report it.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use http::HeaderName;

use super::cidrs::Cidrs;
use super::head::{Repeated, RequestHead};
use super::hops::{forwarded, node_address, x_forwarded_for};
use crate::error::{ConfigError, or_panic};

/// The proxies that are trusted to report client addresses. [`x_forwarded_for`](Self::x_forwarded_for),
/// [`forwarded`](Self::forwarded) and [`single_valued`](Self::single_valued) choose the header that they write, and
/// return an extractor of the client's address.
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
///
/// A request without a valid client address has no key, and is rejected with 400 unless the limit has another
/// [policy](crate::OnMissingKey). If the peer must be known and is not, the status is 500, as with
/// [`peer_ip`](super::peer_ip). A request that repeats a [`single_valued`](Self::single_valued) header is always
/// rejected with 400, as with any [repeated header](crate::key#repeated-headers).
///
/// # Deployment
///
/// The right setting depends on the proxies in front of the server. A wrong one lets clients choose their bucket, or
/// makes many clients share one.
///
/// | in front | setting | caution |
/// |---|---|---|
/// | nothing | [`peer_ip`](super::peer_ip) | if any header is trusted, clients choose their bucket |
/// | nginx, with `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for` | `cidrs(["127.0.0.1"])` or where it runs, `.x_forwarded_for()` | without that line, the client's header is passed on unchanged: clients choose their bucket |
/// | nginx on a Unix socket | the same with `.trust_unix_peers()` and a [`UnixPeer`](super::UnixPeer) | without them, all requests get 500 |
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
/// [`ipv6_prefix(128)`](super::ClientIp::ipv6_prefix) there.
#[derive(Clone, Debug)]
#[must_use]
pub struct TrustedProxies {
    /// Their networks. If there are none, the last hops are trusted.
    networks: Option<Cidrs>,
    /// The number of hops that are needed to find the client.
    hops: usize,
    unix_peers: bool,
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
    pub fn cidrs(cidrs: impl IntoIterator<Item: AsRef<str>>) -> Self {
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
    pub fn try_cidrs(cidrs: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, ConfigError> {
        let cidrs = Cidrs::parse(cidrs)?;
        if cidrs.len() == 0 {
            return Err(ConfigError::new(NO_PROXIES));
        }
        if let Some(family) = cidrs.covered_family() {
            return Err(ConfigError::new(format!(
                "the trusted networks cover all of {family}, so that every client could choose its address: name the \
                 proxies' networks, or count the proxies with `TrustedProxies::hops` if nobody else can connect"
            )));
        }
        Ok(Self { networks: Some(cidrs), hops: 1, unix_peers: false })
    }

    /// Trusts the last `count` proxies, including the peer, regardless of their addresses. The client is the `count`-th
    /// hop from the right.
    ///
    /// Use it only if *every* request passes all of the proxies: clients that can bypass one choose their address, and
    /// so does every client if `count` is too high. A request with fewer hops in the header has no address, so that a
    /// `count` that is too high shows at the first request. If some requests take another path, such as health checks,
    /// choose their key with `.or(peer_ip())`.
    ///
    /// # Panics
    ///
    /// Panics if `count` is 0.
    #[track_caller]
    pub fn hops(count: usize) -> Self {
        assert!(count > 0, "{NO_PROXIES}");
        Self { networks: None, hops: count, unix_peers: false }
    }

    /// Trusts peers on Unix sockets, too, which the server marks by [`UnixPeer`](super::UnixPeer). By default, their
    /// requests have no address. [`hops`](Self::hops) needs no peer, so this has no effect there.
    pub fn trust_unix_peers(self) -> Self {
        Self { unix_peers: true, ..self }
    }

    /// Returns the client, as the proxies report it in a header.
    pub(super) fn client(&self, head: &RequestHead<'_>, header: &ProxyHeader) -> Result<IpAddr, AddressError> {
        // The peer's address, if that is a trusted proxy with an address.
        let proxy = match &self.networks {
            Some(networks) => match head.peer_address().map(|peer| peer.to_canonical()) {
                Some(peer) if !networks.contains(peer) => return Ok(peer),
                None if !self.unix_peers || !head.has_unix_peer() => return Err(AddressError::NoPeer),
                proxy => proxy,
            },
            None => None,
        };
        match header {
            ProxyHeader::XForwardedFor => self.client_of_list(x_forwarded_for(head.headers), proxy),
            ProxyHeader::Forwarded => self.client_of_list(forwarded(head.headers), proxy),
            ProxyHeader::SingleValued(name) => match head.single_header(name) {
                Ok(Some(value)) => node_address(value).ok_or(AddressError::Unreadable),
                Ok(None) => proxy.ok_or(AddressError::TooFewHops { expected: 1, found: 0 }),
                Err(Repeated) => Err(AddressError::Repeated),
            },
        }
    }

    /// Returns the client, given the addresses in a list from right to left.
    fn client_of_list(
        &self,
        hops: impl Iterator<Item = Option<IpAddr>>,
        mut leftmost_proxy: Option<IpAddr>,
    ) -> Result<IpAddr, AddressError> {
        let mut found = 0;
        for hop in hops {
            // Hops further left were not written by a trusted proxy.
            let Some(address) = hop else { return leftmost_proxy.ok_or(AddressError::Unreadable) };
            found += 1;
            match &self.networks {
                Some(networks) if networks.contains(address) => leftmost_proxy = Some(address),
                None if found < self.hops => {}
                _ => return Ok(address),
            }
        }
        leftmost_proxy.ok_or(AddressError::TooFewHops { expected: self.hops, found })
    }
}

/// The header in which proxies report addresses.
#[derive(Clone, Debug)]
pub(super) enum ProxyHeader {
    XForwardedFor,
    Forwarded,
    SingleValued(HeaderName),
}

/// The reason why a request has no client address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
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
                write!(
                    f,
                    "the header names {found} of the {expected} hops that trusted proxies append: the request bypassed \
                     one of them, or fewer append to this header"
                )
            }
            Self::Unreadable => f.write_str(
                "the header has no valid address in the client's place: let the proxies write addresses, not names",
            ),
            Self::Repeated => f.write_str("the header occurs several times: let the proxy replace that of the client"),
        }
    }
}

impl Error for AddressError {}
