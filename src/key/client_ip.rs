//! Keys from the address of the peer or of the client.

use std::net::IpAddr;

use super::encoding::{Key, KeyBuf};
use super::extractor::{Extracted, Hashed, KeyError, KeyExtractor};
use super::hash::KeyHasher;
use super::head::RequestHead;
use super::part::KeyPart;
use super::prefixes::Prefixes;
use super::proxies::{AddressError, ProxyHeader, TrustedProxies};
use crate::error::or_panic;
use crate::error::validation::{self, checked};

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
/// Behind a proxy, the peer is the proxy, so all clients share its bucket. Use [`TrustedProxies`] there.
pub const fn peer_ip() -> ClientIp {
    ClientIp::of(None)
}

/// The choice of a header.
impl TrustedProxies {
    /// Reads the client's address from `X-Forwarded-For`, to which each proxy appends its peer. Several lines are one
    /// list.
    pub fn x_forwarded_for(self) -> ClientIp {
        ClientIp::of(Some((self, ProxyHeader::XForwardedFor)))
    }

    /// Reads the client's address from `Forwarded` (RFC 7239), to which each proxy appends its peer. Several lines are
    /// one list.
    pub fn forwarded(self) -> ClientIp {
        ClientIp::of(Some((self, ProxyHeader::Forwarded)))
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
    pub fn single_valued(self, name: &str) -> ClientIp {
        let name = or_panic(validation::header_name(name));
        ClientIp::of(Some((self, ProxyHeader::SingleValued(name))))
    }
}

/// An extractor of the address of the peer or of the client. IPv6 addresses are masked to their first 64 bits: the same
/// address is the same key, whether it is that of the peer or reported by proxies. Returned by [`peer_ip`], and by the
/// methods of [`TrustedProxies`] that choose a header.
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
#[must_use]
pub struct ClientIp {
    /// The proxies that report the client's address, and the header. If there are none, the client is the peer.
    proxies: Option<(TrustedProxies, ProxyHeader)>,
    prefixes: Prefixes,
}

impl ClientIp {
    const fn of(proxies: Option<(TrustedProxies, ProxyHeader)>) -> Self {
        Self { proxies, prefixes: Prefixes::DEFAULT }
    }

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

    /// Returns the whole address in canonical form. Takes time linear in the length of the header, and does not
    /// allocate.
    ///
    /// # Errors
    ///
    /// Returns an error if the request does not name the client, or the server does not provide the peer's address.
    pub fn resolve(&self, head: &RequestHead<'_>) -> Result<IpAddr, AddressError> {
        match &self.proxies {
            Some((proxies, header)) => proxies.client(head, header),
            None => head.peer_address().map(|peer| peer.to_canonical()).ok_or(AddressError::NoPeer),
        }
    }

    // Inlined for the peer's address, which saves about 40 instructions of a request.
    #[inline(always)]
    fn find(&self, head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        let address = if self.proxies.is_none() {
            head.peer_address().ok_or(KeyError::NotProvided)
        } else {
            self.find_client(head)
        };
        address.map(|address| self.prefixes.network(address))
    }

    #[inline(never)]
    fn find_client(&self, head: &RequestHead<'_>) -> Result<IpAddr, KeyError> {
        match self.resolve(head) {
            Ok(address) => Ok(address),
            Err(AddressError::NoPeer) => Err(KeyError::NotProvided),
            Err(AddressError::Repeated) => Err(KeyError::Ambiguous),
            Err(error) => Err(KeyError::NoAddress(error)),
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
        let name = if self.proxies.is_none() { "peer address" } else { "client address" };
        vec![match self.find(head) {
            Ok(network) => KeyPart::new(name, self.prefixes.text(network)),
            Err(_) => KeyPart::missing(name),
        }]
    }

    fn prefixes(&self) -> Option<Prefixes> {
        Some(self.prefixes)
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
