//! Whose bucket a request is charged to.
//!
//! An extractor takes a key from a request: [`peer_ip`], [`client_ip`], [`header`], [`path`], [`matched_route`],
//! [`method`], [`extension`], [`from_fn`], [`from_async_fn`]. Several make one key as a tuple, and
//! one stands in for another with [`or`](KeyExtractor::or). A limit without one has a single
//! bucket for all requests.
//!
//! ```
//! use tower_ratelimit::{Limit, TokenBucket, key};
//! use tower_ratelimit::key::KeyExtractor;
//!
//! // Who has an API key is counted by it, everyone else by address.
//! let api = Limit::new("api", TokenBucket::per_second(10)).by(key::header("x-api-key").or(key::peer_ip()));
//!
//! // One bucket for each address and route.
//! let route = Limit::new("route", TokenBucket::per_second(5)).by((key::peer_ip(), key::matched_route()));
//! # let _ = (api, route);
//! ```
//!
//! # Trust
//!
//! A header, a path or a query is the client's to choose: keyed by one that nobody has checked, a
//! client picks its own bucket, or another's. Put the limiter behind what checks it, or make the
//! address a part of the key. So are the headers that name an address, but for what proxies that
//! you trust have written there: that is what [`client_ip`] keeps to. A raw [`path`] has as many spellings as a client likes;
//! [`matched_route`] has one.

mod client;
mod closure;
mod combine;
mod extractor;
mod head;
mod part;
mod peer;
mod prefix;
mod source;

pub use client::{AddressError, ClientAddress, ClientIp, TrustedProxies, client_ip};
pub use closure::{Extension, FromAsyncFn, FromFn, extension, from_async_fn, from_fn};
pub use combine::{Or, first, second};
pub use extractor::{Extracted, KeyExtractor, Missing};
pub(crate) use extractor::{Hashed, Rest};
pub use head::{Header, MatchedRoute, MethodKey, Path, header, matched_route, method, path};
pub(crate) use part::hash;
#[cfg(feature = "rules")]
pub(crate) use part::only_part;
pub use part::{Key, KeyBuf, Shared};
pub use peer::{PeerAddr, PeerIp, UnixPeer, peer_ip};
pub use source::AddressSource;
#[cfg(feature = "rules")]
pub(crate) use head::{OTHER_METHODS, get_for_head, is_standard};
