//! Explanations: what limits would do with a request, and why, without charging it.
//!
//! [`RateLimitLayer::explain`](crate::RateLimitLayer::explain) explains a request, and
//! [`Limiter::explain`](crate::Limiter::explain) a key. An [`Explanation`] lists all limits: which apply and which do not,
//! under which key, at what cost, and what each would have left. It agrees with the decision that follows at the same
//! instant. Nothing changes: no charge, no strike of a penalty, no breaker, no log line about the store.
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
//! assert_eq!(
//!     explanation.to_string(),
//!     "\
//! allowed, decided by the store (memory)
//!   burst: allowed, 9 of 10 left, cost 1, reset after 100ms, by peer address 192.0.2.7
//!   logins: does not apply: requires method is POST"
//! );
//! # });
//! ```
//!
//! # Exactness
//!
//! The layer explains a request by the functions that decide about it, and the store by a
//! [preview](crate::Store::preview) of the decision. Two kinds of stores report what is left *before* the request instead
//! of after it: those that do not implement `preview`, and a Redis Cluster for limits whose keys are in different slots.
//!
//! An asynchronous extractor runs, as for a request. In a memory store that is full, strikes of a penalty may be lost,
//! which an explanation does not foresee.
//!
//! # Security
//!
//! An explanation tells who uses how much, and how clients are told apart. Only show it to people who may know that:
//! place a route that serves explanations behind authentication.
//!
//! Values of headers, cookies and query parameters, and those that closures return, may be credentials, so they are
//! shown as fingerprints. [`Explanation::reveal_keys`] shows them. See [`KeyPart`](crate::key::KeyPart).
//!
//! # Serialization
//!
//! With the feature `serde`, explanations implement `Serialize`. Spans are numbers of seconds.

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
pub use explanation::{Conclusion, Explanation};
pub use limit::{LimitExplanation, LimitStatus};
pub use list::{ListExplanation, ListKind};
