//! The client's address, from the header that trusted proxies write.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::error::AddressError;
use super::proxies::TrustedProxies;
use super::{forwarded, node};
use crate::error::or_panic;
use crate::key::heads::{Repeated, RequestHead};
use crate::validation;

/// Finds the client's address by one header that [`TrustedProxies`] write.
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
/// `Forwarded` may have quotes and escapes. Anything that is not an address ends the search: `unknown`, obfuscated names
/// (`_proxy`) and empty elements. It is never skipped, because the hops behind it may be the client's.
///
/// Addresses are canonical: `::ffff:192.0.2.1` is `192.0.2.1`. Addresses translated from IPv4 to IPv6 (`64:ff9b::/96`,
/// `2002::/16`) are kept as they are.
#[derive(Clone, Debug)]
pub struct ClientAddress {
    proxies: TrustedProxies,
    header: Header,
}

/// The header that names the client.
#[derive(Clone, Debug)]
enum Header {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

impl TrustedProxies {
    /// Reads the client's address from `X-Forwarded-For`, to which each proxy appends its peer. Several lines are one
    /// list.
    pub fn x_forwarded_for(self) -> ClientAddress {
        ClientAddress { proxies: self, header: Header::XForwardedFor }
    }

    /// Reads the client's address from `Forwarded` (RFC 7239), to which each proxy appends its peer. Several lines are
    /// one list.
    pub fn forwarded(self) -> ClientAddress {
        ClientAddress { proxies: self, header: Header::Forwarded }
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
        ClientAddress { proxies: self, header: Header::Single(or_panic(validation::header_name(name))) }
    }
}

impl ClientAddress {
    /// Returns the client's address in canonical form. Takes time linear in the length of the header, and does not
    /// allocate.
    ///
    /// # Errors
    ///
    /// Returns an error if the request does not name the client, or the server does not provide the peer's address.
    pub fn resolve(&self, head: &RequestHead<'_>) -> Result<IpAddr, AddressError> {
        match &self.header {
            Header::XForwardedFor => self.proxies.client_of_list(head, x_forwarded_for(head.headers)),
            Header::Forwarded => self.proxies.client_of_list(head, forwarded::hops(head.headers)),
            Header::Single(name) => self.proxies.client_of_single(head, || single(head, name)),
        }
    }
}

/// Returns the addresses of the hops from right to left, and `None` for hops without an address.
fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let hops = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
    hops.map(|hop| node::address(hop.trim_ascii()))
}

/// Returns the address in a single-valued header, or `None` if the header is absent.
fn single(head: &RequestHead<'_>, name: &HeaderName) -> Option<Result<IpAddr, AddressError>> {
    Some(match head.single_header(name) {
        Ok(value) => node::address(value?).ok_or(AddressError::Unreadable),
        Err(Repeated) => Err(AddressError::Repeated),
    })
}
