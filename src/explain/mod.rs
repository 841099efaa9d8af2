//! Explanations of what limits would do with a request, and why, without charging it.
//!
//! [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) explains a request, and
//! [`Limiter::explain`](crate::Limiter::explain) a key. An [`Explanation`] lists all limits: which apply and which do not,
//! under which key, at what cost, and how many tokens each would have left. It agrees with a decision at the same
//! instant. An explanation charges nothing, counts no strike of a penalty, does not affect circuit breakers, and logs
//! nothing about the store.
//!
//! ```
//! use http::{Method, Request};
//! use tower_ratelimit::explain::Conclusion;
//! use tower_ratelimit::key::PeerAddr;
//! use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, RequestHead, TokenBucket, key, when};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let limits = RateLimitLayer::new([
//!     Limit::new("burst", TokenBucket::per_second(10)).by(key::peer_ip()),
//!     Limit::new("logins", FixedWindow::per_hour(5)).when(when::method(Method::POST)),
//! ]);
//!
//! let mut request = Request::get("/").body(()).unwrap();
//! request.extensions_mut().insert(PeerAddr(([192, 0, 2, 7], 50_000).into()));
//! let explanation = limits.explain(&RequestHead::of(&request)).await;
//! assert!(explanation.is_allowed());
//! let fingerprint = &explanation.limit("burst").unwrap().applied().unwrap().fingerprint;
//! assert_eq!(
//!     explanation.to_string(),
//!     format!(
//!         "\
//! allowed, decided by the store (memory)
//!   burst: allowed, 9 of 10 left, cost 1, reset after 100ms, by peer address 192.0.2.7, fingerprint {fingerprint}
//!   logins: does not apply: requires method is POST"
//!     )
//! );
//! # });
//! ```
//!
//! # Exactness
//!
//! A layer explains a request with the same functions that handle requests, and with a [preview](crate::Store::preview)
//! of the store's decision. Stores that do not implement `preview` report the tokens that are left *before* the request
//! instead of after it. So does a Redis Cluster for limits whose keys are in different slots.
//!
//! Asynchronous extractors run as they would for a request. An explanation does not foresee that a full memory store may
//! lose strikes of a penalty.
//!
//! # Security
//!
//! An explanation reveals the usage of a key, and how clients are identified. Place a route that serves explanations
//! behind authentication.
//!
//! Values of headers, cookies and query parameters, and those that closures return, may be credentials, so they are
//! shown as fingerprints. [`Explanation::reveal_keys`] shows them. See [`KeyPart`](crate::key::KeyPart).
//!
//! # Serialization
//!
//! With the feature `serde`, explanations implement `Serialize`. Durations and instants are numbers of seconds, and the
//! names of their fields end in `_seconds`; instants count from the Unix epoch.

mod applied;
mod decider;
mod display;
mod explanation;
mod limit;
mod list;
#[cfg(feature = "serde")]
mod seconds;

pub use applied::{AppliedLimit, ExpectedOutcome};
pub use decider::Decider;
pub(crate) use display::KeyParts;
pub use explanation::{Conclusion, Explanation};
pub use limit::{LimitExplanation, LimitStatus};
pub use list::{ListExplanation, ListKind};
