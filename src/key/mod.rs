//! Keys: which bucket a request is charged to.
//!
//! An extractor takes a key from a request: [`peer_ip()`], [`TrustedProxies`], [`header()`], [`bearer()`],
//! [`cookie()`], [`query()`], [`host()`], [`path()`], [`matched_route`], [`method()`], [`extension()`], [`from_fn`] or
//! [`from_async_fn`]. A tuple of extractors makes one key of several, and [`or`](KeyExtractor::or) falls back to
//! another. A limit without an extractor has one bucket for all requests.
//!
//! ```
//! use tower_ratelimit::{Limit, TokenBucket, key};
//! use tower_ratelimit::key::KeyExtractor;
//!
//! // One bucket per API key, or per address for clients without one.
//! let api = Limit::new("api", TokenBucket::per_second(10)).by(key::header("x-api-key").or(key::peer_ip()));
//!
//! // One bucket per address and route.
//! let route = Limit::new("route", TokenBucket::per_second(5)).by((key::peer_ip(), key::matched_route()));
//! # let _ = (api, route);
//! ```
//!
//! # Trust
//!
//! Clients choose their headers, cookies, hosts, paths and queries: with such a key, a client can pick its own bucket,
//! or another client's. Place the limiter inside the layer that checks the value, or add the address to the key.
//!
//! The same holds for headers that name an address, unless trusted proxies wrote them: use [`TrustedProxies`]. A raw
//! [`path`] has many spellings, while [`matched_route`] has one. Invented methods share one bucket: see [`method()`].
//!
//! # Missing keys
//!
//! An absent or empty header, cookie or query parameter has no key. Whitespace around the value of a header, which
//! HTTP/2 transmits, is ignored. [`Limit::on_missing_key`] decides what happens if the key is missing; by default, the
//! request is rejected with 400.
//!
//! [`Limit::on_missing_key`]: crate::Limit::on_missing_key
//!
//! # Repeated headers
//!
//! A header that identifies a client must occur once. If it occurs in several lines, the limiter and the service behind
//! it might each take another one, so a client could be limited under one name and served under another. RFC 9110
//! (section 5.3) forbids senders to repeat such a header. All code of this crate that reads a header follows one rule:
//! a client gains nothing by adding a line. The same holds for repeated cookies and query parameters.
//!
//! | reader | if a header has several lines |
//! |---|---|
//! | [`header()`], [`TrustedProxies`] with a [`single_valued`](TrustedProxies::single_valued) header, `header.NAME` in rules files, and [overrides](crate::LimitHandle#overrides) of these | [ambiguous](KeyError::Ambiguous): an enforced limit rejects the request with 400, regardless of [`OnMissingKey`](crate::OnMissingKey) and [`or`](KeyExtractor::or), even if all lines are equal |
//! | [`host()`], [`when::host`](crate::when::host) | ambiguous, also if the header and the URI differ; the condition then counts for `always_reject` and `when`, but not for `never_limit` and `size_when` |
//! | [`cookie()`] and [`query()`] | ambiguous if the cookie or parameter occurs several times, in one line or in several |
//! | [`always_reject`](crate::Builder::always_reject) and [`Limit::when`](crate::Limit::when) | the condition counts if it holds for any line: [`Condition::may_hold`](crate::when::Condition::may_hold) |
//! | [`never_limit`](crate::Builder::never_limit), [`Limit::size_when`](crate::Limit::size_when), and limits of rules files that replace others | the condition counts if it holds for all lines ([`when::header`](crate::when::header)), or never ([`KeyList`](crate::KeyList), [`AddressList`](crate::AddressList)) |
//! | closures that use [`RequestHead::header`](crate::RequestHead::header) | as a key: ambiguous; as a condition: counts for `always_reject` and `when`, but not for `never_limit` and `size_when` |
//! | `X-Forwarded-For` and `Forwarded` | the lines are one list, which is read from the right |
//!
//! Don't use a list header such as `Accept` as a key. Pick the relevant part with [`from_fn`].
//!
//! # Spellings
//!
//! Where a standard allows several spellings of a value, a client must not evade a limit by another one. So
//! [`header()`], [`when::header`](crate::when::header), [`KeyList`](crate::KeyList) and rules files compare these
//! headers in one spelling. The values that you configure may have any:
//!
//! | header | compared |
//! |---|---|
//! | `Content-Type` | without regard to case, and without parameters; with them only by a `when::header` whose value has some |
//! | `Authorization`, `Proxy-Authorization` | with the scheme in any case, and the credentials exactly |
//! | `Accept`, `Accept-Charset`, `Accept-Encoding`, `Accept-Language`, `Access-Control-Request-Headers`, `Cache-Control`, `Connection`, `Content-Encoding`, `Content-Language`, `Expect`, `Origin`, `Pragma`, `TE`, `Trailer`, `Transfer-Encoding`, `Upgrade`, `X-Forwarded-Proto` | as a whole, without regard to case, whitespace and quotes |
//! | others | exactly, but for the whitespace around the value |
//!
//! HTTP/2 has no `Host` header, so that key, condition and rule are rejected: use [`host()`] and
//! [`when::host`](crate::when::host). For WebSockets, use [`when::websocket`](crate::when::websocket).

pub(crate) mod cidrs;
mod client_ip;
mod combine;
mod encoding;
mod extractor;
pub(crate) mod hash;
pub(crate) mod head;
mod hops;
mod part;
pub(crate) mod prefixes;
mod proxies;
mod request;
pub(crate) mod spelling;

pub use self::client_ip::{ClientIp, peer_ip};
#[doc(alias = "jwt")]
pub use self::combine::extension;
pub use self::combine::{first, from_async_fn, from_fn, second};
pub use self::encoding::{Key, KeyBuf, Shared};
pub use self::extractor::{Extracted, KeyError, KeyExtractor, Or};
pub(crate) use self::extractor::{Hashed, PendingKey};
pub use self::head::{PeerAddr, RoutePattern, UnixPeer};
pub use self::part::KeyPart;
pub(crate) use self::part::text;
pub use self::proxies::AddressError;
#[doc(alias = "cloudflare")]
#[doc(alias = "nginx")]
#[doc(alias = "proxy")]
#[doc(alias = "x-forwarded-for")]
pub use self::proxies::TrustedProxies;
#[doc(alias = "authorization")]
pub use self::request::bearer;
#[doc(alias = "api key")]
pub use self::request::header;
#[doc(alias = "authority")]
pub use self::request::host;
#[cfg(feature = "rules")]
pub(crate) use self::request::{OTHER_METHODS, any_method, is_standard};
pub use self::request::{cookie, matched_route, method, path, query};
pub(crate) use self::spelling::Spelling;
