//! Rate limiting for Tower services: microsecond-accurate, atomic across several limits, with a cost per endpoint and
//! bounded memory.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{CostTable, FixedWindow, Limit, RateLimitLayer, TokenBucket, key};
//!
//! let limits = RateLimitLayer::new([
//!     // 10 requests per second from each address, and 20 at once.
//!     Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip()),
//!     // 10,000 requests per day. A request that either limit denies is charged to neither.
//!     Limit::new("daily", FixedWindow::per_day(10_000)).by(key::peer_ip()),
//! ]);
//!
//! // This endpoint costs 10, and everything else 1.
//! let costs = CostTable::new().path("/report", 10);
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .route("/report", get(|| async { "…" }))
//!     .layer(limits.costs(costs));
//! ```
//!
//! The [`guide`] explains the concepts and has programs to copy. Start with [algorithms](guide::algorithms),
//! [keys](guide::keys) and [costs](guide::costs). Before you enforce a limit in production, read the
//! [checklist](guide::production). [Settings](guide::settings) lists all settings with their defaults,
//! [troubleshooting](guide::troubleshooting) helps by symptom.
//!
//! # Overview
//!
//! - [`RateLimitLayer`] limits an HTTP service, [`RequestLimiter`] the requests of another transport. [`Limiter`]
//!   limits anything else, and [`Limiter::layer`] the calls of any Tower service.
//! - [Algorithms](algorithm): [`TokenBucket`] for a rate with bursts, [`LeakyBucket`] for the same seen as a level,
//!   [`LeakyBucketQueue`] for delays instead of denials, [`FixedWindow`] for quotas per period, [`CalendarWindow`] for
//!   quotas per day, week, month or year, [`SlidingWindowCounter`] and [`SlidingWindow`] for smoother windows, and
//!   [`SlidingLog`] for small, exact limits.
//! - A [`key`] selects the bucket that a request is charged to. [`RateLimitLayer::cost`] and [`CostTable`] set the
//!   cost.
//! - A [`Builder`] configures a layer or a limiter: the store, headers, rejections, and what happens when the store
//!   fails.
//! - A [`LimitHandle`] inspects and resets single keys, and overrides the limit's size for them.
//! - [`Limit::soft`], [`Limit::elastic`] and [`Limit::shadow`] relax a limit, a [`Penalty`] locks out keys that
//!   are denied too often, and [`Limit::size_when`] applies another size to some requests.
//! - [`Builder::never_limit`] and [`Builder::always_reject`] take lists: [`AddressList`] and [`KeyList`].
//! - [`Limit::count_if`] and [`Limit::settle_by`] adjust the charge by the response, and [`Limit::settle_at_end`] by the
//!   end of its body. A handler's [`Permit`] charges more, settles, refunds or resets.
//! - [`LiveLimits`] are limits that can be replaced at runtime.
//! - [`HeaderStyle`] selects the response headers, [`Builder::on_reject`] customizes rejections.
//! - [`explain`] shows why a request is allowed or denied. [`dry_run`] shows what other limits would have denied.
//! - [`MemoryStore`] keeps the state in this process, `RedisStore` (feature `redis`) in Redis, and a
//!   [`CasStore`](store::CasStore) in another database.
//! - [`OnStoreError`] is the policy for requests that a slow or failing store does not decide. A [`CircuitBreaker`]
//!   stops calls to such a store for a while. [`Builder::observe`] reports both.
//! - `client` (feature `client`) has a retry policy and a layer for clients of services that limit them.
//! - A [`Recorder`] sees every decision. [`Stats`] counts decisions; `MetricsRecorder` and `TraceRecorder` export them.
//!
//! # Features
//!
//! | feature | | adds |
//! |---|---|---|
//! | `axum` | default | peer addresses and matched routes from Axum's request extensions |
//! | `tracing` | default | logs of misconfiguration and store outages |
//! | `tonic` | | peer addresses from Tonic's request extensions, and conversions of errors to a `tonic::Status` |
//! | `redis` | | `RedisStore`, which shares limits across a fleet |
//! | `redis-tls` | | `rediss://` URLs, through rustls |
//! | `time-zones` | | conditions by time of day and calendar quotas in any time zone |
//! | `cycle-clock` | | `CycleClock`, which is cheaper to read than the system clock |
//! | `rules` | | `rules`: limits from a file or from Redis, reloaded at runtime |
//! | `serde` | | serialization of explanations (`explain`), of reports of dry runs (`dry_run`), and of counts (`Stats`) |
//! | `metrics` | | `MetricsRecorder`, which counts decisions through the [`metrics`](https://docs.rs/metrics) facade |
//! | `client` | | `client`: a retry policy and a layer for clients of services that limit them |
//! | `conformance` | | `conformance`: a suite of tests for stores of your own |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc(test(attr(deny(unused_must_use))))]
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "constructors that run at compile time can't box their errors")]
#![warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod algorithm;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision;
mod engine;
mod error;
pub mod explain;
// Compiled for documentation only. Its doctests need these features. Without them, they are skipped, but the pages are
// still rendered.
#[cfg_attr(docsrs, doc(cfg(all())))]
#[cfg(all(
    doc,
    any(
        not(doctest),
        all(feature = "axum", feature = "client", feature = "redis", feature = "rules", feature = "time-zones")
    )
))]
#[cfg_attr(
    not(all(feature = "axum", feature = "client", feature = "redis", feature = "rules", feature = "time-zones")),
    allow(rustdoc::broken_intra_doc_links)
)]
pub mod guide;
mod http;
pub mod key;
mod limit;
mod limiter;
mod recorder;
mod request;
#[cfg(feature = "rules")]
pub mod rules;
mod select;
pub mod store;
mod text;
mod time;

pub use algorithm::{
    Algorithm, CalendarWindow, Concurrency, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Rounding, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};
pub use decision::{AllowedDecision, DecidedBy, Decision, Outcome, OutcomeKind, Receipt, Verdict};
pub use engine::{CircuitBreaker, SlotGuard};
pub use error::{ConfigError, StoreError, StoreErrorKind};
pub use http::{
    BodyPolicy, ChargeError, CountInFlight, HeaderStyle, HttpOptions, InFlight, InFlightFuture, InFlightGuard,
    IntoRejectionResponse, KeepBody, Permit, RateLimit, RateLimitLayer, ResetFormat, ResponseBody, ResponseFuture,
    Settled, WrapBody,
};
pub use key::head::{RequestHead, ResponseHead};
pub use limit::{BodyEnd, CostTable, Limit, LiveLimits, OnMissingKey, OnStoreError, Share, SpareCapacity};
pub use limiter::{AcquireError, Builder, CallError, CallLimit, CallLimitLayer, LimitHandle, Limiter};
#[cfg(feature = "metrics")]
pub use recorder::MetricsRecorder;
#[cfg(feature = "tracing")]
pub use recorder::TraceRecorder;
pub use recorder::{
    BreakerState, DecisionRecord, Event, Fallback, LimitRecord, LimitStats, Reason, Recorder, Rejection, Stats, TopKey,
};
#[doc(alias = "dry run")]
pub use request::dry_run;
pub use request::{RequestLimiter, RequestOptions};
pub use select::{AddressList, KeyList, ListAction, when};
pub use store::{MemoryStore, Override, Store};
#[cfg(feature = "redis")]
pub use store::{RedisConfig, RedisStore};
#[cfg(feature = "cycle-clock")]
pub use time::CycleClock;
pub use time::{Clock, ManualClock, SystemClock, Timestamp};

// Runs the programs of the README as doctests.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;

// Checks that doctests deny unused results, and that a decision that may be a denial is one: only its use differs.
/// ```
/// # async fn operation(limiter: tower_ratelimit::Limiter) -> Result<(), tower_ratelimit::StoreError> {
/// let _ = limiter.acquire("key", 1).await?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// # async fn operation(limiter: tower_ratelimit::Limiter) -> Result<(), tower_ratelimit::StoreError> {
/// limiter.acquire("key", 1).await?;
/// # Ok(())
/// # }
/// ```
#[cfg(doctest)]
struct IgnoredDecision;
