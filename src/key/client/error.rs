//! The reasons why a request has no client address.

use std::error::Error;
use std::fmt;

/// Why a request has no client address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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
                write!(f, "the header names {found} of the {expected} hops that trusted proxies append")
            }
            Self::Unreadable => f.write_str("the header has no valid address in the client's place"),
            Self::Repeated => f.write_str("the header occurs several times"),
        }
    }
}

impl Error for AddressError {}
