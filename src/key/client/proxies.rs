//! Whose word is taken for where a request comes from.

use std::net::IpAddr;

use http::HeaderName;

use super::address::{AddressError, ClientAddress, Header};
use crate::cidrs::Cidrs;
use crate::error::{ConfigError, ConfigErrorKind, or_panic};
use crate::key::peer::Peer;
use crate::request::RequestHead;

/// The proxies whose word is taken for where a request comes from. The header that they say it in
/// makes it a [`ClientAddress`].
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
///
/// // Whoever has an address in these networks,
/// let by_network = TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"]).x_forwarded_for();
/// // or the two that are always in front.
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

/// The way from the client to here, before any header is read.
enum Nearest {
    /// The peer is nobody's proxy.
    Client(IpAddr),
    /// The peer is trusted, and may have an address.
    Proxy(Option<IpAddr>),
}

impl TrustedProxies {
    /// Trusts whoever has an address in one of these networks: `10.0.0.0/8`, `fd00::/8`, or a
    /// single address. They may overlap; IPv4 mapped into IPv6 is IPv4.
    ///
    /// The client is found on the way back: the peer, unless it is trusted; then whom the header
    /// names, from the right, up to the first that is not trusted. Where the header ends before
    /// that, or names somebody by anything but an address, it is the last trusted one so far.
    ///
    /// Clients that are inside these networks can choose their address: trust the proxies rather
    /// than all of your network.
    ///
    /// # Panics
    ///
    /// When there is no network, one is not written as it should be, or they hold all of IPv4 or
    /// all that is in use of IPv6, with which every client could choose its address.
    /// [`try_cidrs`](Self::try_cidrs) returns an error instead.
    #[track_caller]
    pub fn cidrs<I>(cidrs: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        or_panic(Self::try_cidrs(cidrs))
    }

    /// Like [`cidrs`](Self::cidrs), for networks that are not known to be right.
    ///
    /// # Errors
    ///
    /// When there is no network, one is not written as it should be, or they hold everyone.
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
            return Err(ConfigErrorKind::NoProxies.into());
        }
        if let Some(family) = cidrs.everyone() {
            return Err(ConfigErrorKind::CidrsOfEveryone { family }.into());
        }
        Ok(Self { trust: Trust::Cidrs(cidrs), unix_peers: false })
    }

    /// Trusts this many proxies, whatever their addresses: the last `count` to be passed, of which
    /// the peer is one. The client is the `count`-th that the header names, from the right.
    ///
    /// For where *every* request comes through all of them. Whoever can connect past one of them
    /// chooses its address, and so does everyone where `count` is higher than there are proxies. A
    /// request whose header names fewer hops has no address: that shows a `count` that is too high
    /// at the first request. Where some come another way, such as health checks, say whose bucket
    /// that is: `client_ip(…).or(peer_ip())`.
    ///
    /// # Panics
    ///
    /// When `count` is 0. [`try_hops`](Self::try_hops) returns an error instead.
    #[track_caller]
    pub fn hops(count: usize) -> Self {
        or_panic(Self::try_hops(count))
    }

    /// Like [`hops`](Self::hops), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `count` is 0.
    pub fn try_hops(count: usize) -> Result<Self, ConfigError> {
        match count {
            0 => Err(ConfigErrorKind::NoProxies.into()),
            _ => Ok(Self { trust: Trust::Hops(count), unix_peers: false }),
        }
    }

    /// Trusts whoever connects over a Unix socket, too, which the server has to say: see
    /// [`UnixPeer`](crate::key::UnixPeer). Unless this is chosen, requests from there have no
    /// address. [`hops`](Self::hops) need no peer, and not this either.
    pub fn trust_unix_peers(self) -> Self {
        Self { unix_peers: true, ..self }
    }

    /// The client's address by `X-Forwarded-For`, to which each proxy adds its peer. All lines
    /// count, as one list.
    pub fn x_forwarded_for(self) -> ClientAddress {
        ClientAddress::new(self, Header::XForwardedFor)
    }

    /// The client's address by `Forwarded` (RFC 7239), to which each proxy adds its peer. All lines
    /// count, as one list.
    pub fn forwarded(self) -> ClientAddress {
        ClientAddress::new(self, Header::Forwarded)
    }

    /// The client's address by a header that holds nothing else, such as `CF-Connecting-IP`, and
    /// that the proxies set on every request, whatever the client sends. It is believed if the peer
    /// is trusted; with [`hops`](Self::hops), whatever their number, always.
    ///
    /// A request with two such headers, or one that is no address, has no address. Neither has one
    /// without it, unless it is from the address of a trusted peer, which is then the client. Two such
    /// headers are [ambiguous](crate::key#repeated-headers).
    ///
    /// # Panics
    ///
    /// When `name` is not a header's name. [`try_single_valued`](Self::try_single_valued) returns
    /// an error instead.
    #[track_caller]
    pub fn single_valued(self, name: &str) -> ClientAddress {
        or_panic(self.try_single_valued(name))
    }

    /// Like [`single_valued`](Self::single_valued), for a name that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `name` is not a header's name.
    pub fn try_single_valued(self, name: &str) -> Result<ClientAddress, ConfigError> {
        let name: HeaderName = name.parse().map_err(|_| ConfigErrorKind::HeaderName { name: name.to_owned() })?;
        Ok(ClientAddress::new(self, Header::Single(name)))
    }

    /// Who is behind them, if these are the addresses that a list names, from the right.
    pub(super) fn client_of_list(
        &self,
        head: &RequestHead<'_>,
        mut hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Result<IpAddr, AddressError> {
        let cidrs = match &self.trust {
            Trust::Cidrs(cidrs) => cidrs,
            Trust::Hops(count) => return nth(hops, *count),
        };
        let mut nearest = match self.nearest(cidrs, head)? {
            Nearest::Client(peer) => return Ok(peer),
            Nearest::Proxy(peer) => peer,
        };
        loop {
            match hops.next() {
                Some(Some(address)) if cidrs.contain(address) => nearest = Some(address),
                Some(Some(client)) => return Ok(client),
                // Never further left: what is there was not added by who is trusted.
                Some(None) => return nearest.ok_or(AddressError::Unreadable),
                None => return nearest.ok_or(AddressError::TooFewHops { expected: 1, found: 0 }),
            }
        }
    }

    /// Who is behind them, if they say so in one word.
    pub(super) fn client_of_single(
        &self,
        head: &RequestHead<'_>,
        said: impl FnOnce() -> Option<Result<IpAddr, AddressError>>,
    ) -> Result<IpAddr, AddressError> {
        let nearest = match &self.trust {
            Trust::Cidrs(cidrs) => self.nearest(cidrs, head)?,
            Trust::Hops(_) => Nearest::Proxy(None),
        };
        match nearest {
            Nearest::Client(peer) => Ok(peer),
            Nearest::Proxy(peer) => {
                said().unwrap_or_else(|| peer.ok_or(AddressError::TooFewHops { expected: 1, found: 0 }))
            }
        }
    }

    fn nearest(&self, cidrs: &Cidrs, head: &RequestHead<'_>) -> Result<Nearest, AddressError> {
        match Peer::of(head) {
            Some(Peer::Address(peer)) if cidrs.contain(peer) => Ok(Nearest::Proxy(Some(peer))),
            Some(Peer::Address(peer)) => Ok(Nearest::Client(peer)),
            Some(Peer::Unix) if self.unix_peers => Ok(Nearest::Proxy(None)),
            Some(Peer::Unix) | None => Err(AddressError::NoPeer),
        }
    }
}

/// The `count`-th of them, if all up to it are addresses.
fn nth(hops: impl Iterator<Item = Option<IpAddr>>, count: usize) -> Result<IpAddr, AddressError> {
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
