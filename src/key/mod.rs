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
//! [`matched_route`] has one. Clients can also invent methods: [`method`] has one bucket for all that are not standard.
//!
//! # Repeated headers
//!
//! A header that identifies a client must occur once. Of several lines, the limiter might take one and the
//! service behind it another, so a client could be limited under one name and served under another. RFC 9110
//! (section 5.3) forbids senders to repeat such a header. Everything in this crate that reads a header goes by
//! one rule: a client gains nothing by adding a line.
//!
//! | reader | of a header with several lines |
//! |---|---|
//! | [`header`], [`client_ip`] by a [`single_valued`](TrustedProxies::single_valued) header, `header.NAME` in rules files, and [overrides](crate::Overrides) of these | [ambiguous](KeyError::Ambiguous): the request is rejected with 400, whatever [`OnMissingKey`](crate::OnMissingKey) or [`or`](KeyExtractor::or) say, even if all lines are equal |
//! | [`always_reject`](crate::RateLimitLayer::always_reject) and [`Limit::when`](crate::Limit::when) | the condition counts if it holds of any line: [`Condition::may_hold`](crate::when::Condition::may_hold) |
//! | [`never_limit`](crate::RateLimitLayer::never_limit) and [`Limit::instead`](crate::Limit::instead) | the condition counts if it holds of all lines ([`when::header`](crate::when::header)), or not at all ([`KeyList`](crate::KeyList), [`AddressList`](crate::AddressList)) |
//! | closures that use [`RequestHead::header`](crate::RequestHead::header) | as a key: ambiguous; as a condition: it counts for `always_reject` and `when`, and not for `never_limit` and `instead` |
//! | `X-Forwarded-For` and `Forwarded` | these are lists, whose lines are read as one, from the right |
//!
//! So don't key by a header that may be a list, such as `Accept`, or `Cookie`, which HTTP/2 splits: pick the part
//! that you mean with [`from_fn`].

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
pub use extractor::{Extracted, KeyError, KeyExtractor};
pub(crate) use extractor::{Hashed, Rest};
pub use head::{Header, MatchedRoute, MethodKey, Path, header, matched_route, method, path};
#[cfg(feature = "rules")]
pub(crate) use head::{OTHER_METHODS, get_for_head, is_standard};
pub(crate) use part::hash;
#[cfg(feature = "rules")]
pub(crate) use part::only_part;
pub use part::{Key, KeyBuf, Shared};
pub use peer::{PeerAddr, PeerIp, UnixPeer, peer_ip};
pub use source::AddressSource;
