//! Where the address of a request is found.

use std::net::IpAddr;

use super::client::{AddressError, ClientAddress, ClientIp};
use super::peer::{Peer, PeerIp};
use crate::request::RequestHead;

/// Finds the address that a request comes from: [`peer_ip`](super::peer_ip),
/// [`client_ip`](super::client_ip), [`ClientAddress`], or a closure over the request's head. All of it,
/// whatever part of it makes a key.
pub trait AddressSource: Send + Sync + 'static {
    /// The address, if the request shows one.
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr>;

    /// Whether the request shows several addresses, of which none can be preferred.
    #[doc(hidden)]
    fn is_ambiguous(&self, _head: &RequestHead<'_>) -> bool {
        false
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
        self.resolve(head) == Err(AddressError::NotSingle)
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

impl<F: Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static> AddressSource for F {
    fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        self(head)
    }
}
