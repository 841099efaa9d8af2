//! Where a request comes from.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::proxies::TrustedProxies;
use super::{forwarded, node};
use crate::request::{Repeated, RequestHead};

/// Finds the client's address behind [`TrustedProxies`], by the one header that was chosen.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
/// use tower_ratelimit::key::{PeerAddr, TrustedProxies};
///
/// let address = TrustedProxies::cidrs(["10.0.0.0/8"]).x_forwarded_for();
///
/// // What the client made up, what the first proxy has added, and what the second.
/// let mut request = Request::new(());
/// request.headers_mut().insert("x-forwarded-for", "192.0.2.66, 198.51.100.7:50123, 10.0.0.2".parse().unwrap());
/// request.extensions_mut().insert(PeerAddr(([10, 0, 0, 1], 40_000).into()));
///
/// let client = address.resolve(&RequestHead::of(&request)).unwrap();
/// assert_eq!(client.to_string(), "198.51.100.7");
/// ```
///
/// In lists, each hop may have a port, brackets and a zone (`fe80::1%eth0`), which don't count; in
/// `Forwarded`, quotes and escapes. `unknown`, hidden names (`_proxy`), empty elements and all else
/// that is no address end the way back, and are never skipped: to skip one would be to count from
/// where the client has written.
///
/// Addresses are canonical: `::ffff:192.0.2.1` is `192.0.2.1`. IPv4 addresses that are translated
/// to IPv6 (`64:ff9b::/96`, `2002::/16`) stay what they are.
#[derive(Clone, Debug)]
pub struct ClientAddress {
    proxies: TrustedProxies,
    header: Header,
}

/// What the proxies say it in.
#[derive(Clone, Debug)]
pub(super) enum Header {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

impl ClientAddress {
    pub(super) fn new(proxies: TrustedProxies, header: Header) -> Self {
        Self { proxies, header }
    }

    /// The client's address, canonical. It takes time linear in the header at most, and allocates
    /// nothing.
    ///
    /// # Errors
    ///
    /// When the request does not show it, or the server does not say who the peer is.
    pub fn resolve(&self, head: &RequestHead<'_>) -> Result<IpAddr, AddressError> {
        match &self.header {
            Header::XForwardedFor => self.proxies.client_of_list(head, x_forwarded_for(head.headers)),
            Header::Forwarded => self.proxies.client_of_list(head, forwarded::hops(head.headers)),
            Header::Single(name) => self.proxies.client_of_single(head, || single(head, name)),
        }
    }
}

/// The addresses that the hops name, from the right.
fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let hops = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
    hops.map(|hop| node::address(hop.trim_ascii()))
}

/// The one address in the one header of this name, if there is any.
fn single(head: &RequestHead<'_>, name: &HeaderName) -> Option<Result<IpAddr, AddressError>> {
    Some(match head.single_header(name) {
        Ok(value) => node::address(value?.as_bytes().trim_ascii()).ok_or(AddressError::Unreadable),
        Err(Repeated) => Err(AddressError::NotSingle),
    })
}

/// Why a request has no client's address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum AddressError {
    /// The server does not say who the peer is, or the peer is on a Unix socket and not trusted.
    NoPeer,
    /// The header names fewer hops than trusted proxies add: the request has not come through all
    /// of them.
    TooFewHops {
        /// How many they add.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// The header does not say the client's address where it should.
    Unreadable,
    /// The header should be there once, and is there several times.
    NotSingle,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeer => f.write_str("the server does not say who the peer is"),
            Self::TooFewHops { expected, found } => {
                write!(f, "the header names {found} of the {expected} hops that trusted proxies add")
            }
            Self::Unreadable => f.write_str("the header does not say the client's address where it should"),
            Self::NotSingle => f.write_str("the header is there several times"),
        }
    }
}

impl Error for AddressError {}
