//! Rate limiting for every Tower service: exact, several limits decided all or nothing, a cost for
//! each endpoint, memory that stays bounded.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, TokenBucket, key};
//!
//! let limits = RateLimitLayer::new([
//!     // 10 a second from each address, 20 at once,
//!     Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip()),
//!     // and 10,000 a day. Both, or the request is refused, and neither is charged.
//!     Limit::new("daily", FixedWindow::per_day(10_000)).by(key::peer_ip()),
//! ]);
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .route("/report", get(|| async { "…" }).route_layer(limits.cost(10)))
//!     .layer(limits);
//! ```
//!
//! - [`RateLimitLayer`] limits a service, [`Limiter`] anything else.
//! - [`algorithm`] has a table of the limits to choose from.
//! - [`key`] says whose bucket is charged, [`RateLimitLayer::cost`] and [`CostTable`] how much.
//! - [`Limit::soft`], [`Limit::elastic`] and [`Limit::shadow`] say what a limit does where it has no room,
//!   [`Limit::penalty`] what becomes of those whom it denies too often, [`Limit::instead`] for whom it is
//!   another.
//! - [`Overrides`] give single keys another size of a limit, at run time.
//! - [`RateLimitLayer::never_limit`] and [`RateLimitLayer::always_refuse`] take lists: [`AddressList`],
//!   [`KeyList`].
//! - [`Limit::count_if`] and [`Limit::settle_by`] look at the response, and a handler's [`Permit`] charges
//!   more, settles, gives back or forgets.
//! - [`LiveRules`] are limits that are replaced while requests go by them.
//! - [`HeaderStyle`] is what clients are told, [`RateLimitLayer::on_reject`] what the refused ones
//!   are.
//! - [`MemoryStore`] remembers what keys have used.
//! - [`OnStoreError`] says what happens when a store is slow or fails, [`CircuitBreaker`] when it is left
//!   alone; [`RateLimitLayer::observe`] tells you.
//!
//! # Features
//!
//! | feature | | what it adds |
//! |---|---|---|
//! | `axum` | default | peer addresses and matched routes from where Axum puts them |
//! | `tracing` | default | reports of what an operator must mend |
//! | `tonic` | | peer addresses from where Tonic's server puts them |
//! | `redis` | | `RedisStore`, by which a fleet shares its limits |
//! | `redis-tls` | | `rediss://` URLs, by rustls |
//! | `time-zones` | | limits by the time of day, and quotas by the calendar, anywhere |
//! | `cycle-clock` | | `CycleClock`, which is cheaper to read than the system's clock |
//! | `rules` | | `rules::Rules`, by which a file (or Redis) says which limits apply, and changes them |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod algorithm;
mod cidrs;
mod cost;
mod decision;
mod error;
mod hash;
mod http;
pub mod key;
mod limit;
mod limiter;
mod list;
mod node;
mod observe;
mod overrides;
mod quota;
mod request;
mod resilience;
mod response;
#[cfg(feature = "rules")]
pub mod rules;
mod signal;
pub mod store;
mod terms;
mod time;
pub mod when;

pub use algorithm::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Refill, Rounding, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};
pub use cost::CostTable;
pub use decision::{DecidedBy, Decision, Outcome, Receipt, Verdict};
pub use error::{ConfigError, StoreError, StoreErrorKind};
pub use http::{
    CountInFlight, HeaderStyle, InFlightFuture, KeepBody, KeepBodyFuture, KeepBodyLayer, MissingPermit, Permit,
    RateLimit, RateLimitLayer, Reason, Rejection, Reset, ResponseBody, ResponseFuture, Settled,
};
pub use limit::{Limit, LiveRules, MissingKey};
pub use limiter::{Limiter, WaitError};
pub use list::{AddressList, KeyList, Refusal};
pub use observe::{BreakerState, Event, Fallback};
pub use overrides::{OverrideError, Overrides};
pub use request::RequestHead;
pub use resilience::{CircuitBreaker, OnStoreError, Share};
pub use response::ResponseHead;
pub use signal::{Flight, InFlight, Signal};
pub use store::{MemoryStore, Override, Store};
#[cfg(feature = "redis")]
pub use store::{RedisConfig, RedisStore};
#[cfg(feature = "cycle-clock")]
pub use time::CycleClock;
pub use time::{Clock, ManualClock, SystemClock, Timestamp};

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "axum", feature = "redis", feature = "time-zones"))]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

#[cfg(all(doctest, feature = "redis", feature = "rules"))]
#[doc = include_str!("../docs/rules.md")]
struct RulesInAFile;
