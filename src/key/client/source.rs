//! Sources of a request's IP address.

use std::fmt;
use std::net::IpAddr;

use super::address::ClientAddress;
use super::error::AddressError;
use super::ip::ClientIp;
use crate::key::heads::RequestHead;
use crate::key::peer::{Peer, PeerIp};

/// Finds the IP address of a request, for an [`AddressList`](crate::AddressList): [`peer_ip`](crate::key::peer_ip),
/// [`client_ip`](crate::key::client_ip), [`ClientAddress`], or a closure in [`address_from_fn`].
///
/// The whole address counts, regardless of the prefix that makes the key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the IP address of a request",
    label = "expected an `AddressSource`",
    note = "use `key::peer_ip()` or `key::client_ip(…)`, or wrap a closure in `key::address_from_fn`"
)]
pub trait AddressSource: Send + Sync + 'static {
    /// Returns the address, if the request has one.
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr>;

    /// Returns whether the request has several addresses, none of which takes precedence.
    #[doc(hidden)]
    fn is_ambiguous(&self, _head: &RequestHead<'_>) -> bool {
        false
    }
}

/// Makes an address source of a closure that returns the address of a request, if it has one.
///
/// ```
/// use std::net::IpAddr;
/// use tower_ratelimit::{AddressList, key};
///
/// /// The client's address, which an outer layer has found out.
/// #[derive(Clone)]
/// struct Client(IpAddr);
///
/// let client = key::address_from_fn(|head| head.extensions.get::<Client>().map(|client| client.0));
/// let blocked = AddressList::new(client, ["192.0.2.7"]);
/// # let _ = blocked;
/// ```
pub const fn address_from_fn<F>(address: F) -> AddressFromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static,
{
    AddressFromFn(address)
}

/// An address source that calls a closure. Returned by [`address_from_fn`].
#[derive(Clone, Copy)]
pub struct AddressFromFn<F>(F);

impl<F> fmt::Debug for AddressFromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressFromFn")
    }
}

impl<F> AddressSource for AddressFromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static,
{
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        (self.0)(head)
    }
}

impl AddressSource for PeerIp {
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        match Peer::of(head)? {
            Peer::Address(address) => Some(address),
            Peer::Unix => None,
        }
    }
}

impl AddressSource for ClientAddress {
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        self.resolve(head).ok()
    }

    fn is_ambiguous(&self, head: &RequestHead<'_>) -> bool {
        self.resolve(head) == Err(AddressError::Repeated)
    }
}

impl AddressSource for ClientIp {
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        self.client().address(head)
    }

    fn is_ambiguous(&self, head: &RequestHead<'_>) -> bool {
        self.client().is_ambiguous(head)
    }
}
