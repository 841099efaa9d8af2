//! For clients of services that limit them: a retry policy, and a layer that paces calls.
//!
//! [`RetryPolicy`] repeats requests that a server has denied, no earlier than the server allows. [`PaceLayer`] keeps
//! calls below the limit of the server, which it learns, and holds all calls to a server that has denied one. Both know
//! each server by the host and port of its URL, or by [another key](PaceLayer::by).
//!
//! ```
//! use tower::{ServiceBuilder, service_fn};
//! use tower_ratelimit::client::{PaceLayer, RetryPolicy};
//!
//! let client = ServiceBuilder::new()
//!     .retry(RetryPolicy::new())
//!     .layer(PaceLayer::new())
//!     .service(service_fn(async |_request: http::Request<String>| {
//!         // Your HTTP client here.
//!         Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
//!     }));
//! # async fn send<S: tower::Service<http::Request<String>>>(_: S) {}
//! # let _ = send(client);
//! ```
//!
//! In this order, a denied request waits once: the pause of the layer is over when the policy repeats the request. The
//! policy does not repeat a call that the layer denies, because that is an error, [`CallError::Limited`].
//!
//! # Denials
//!
//! These responses are denials:
//!
//! | response | wait |
//! |---|---|
//! | 429, 503 | `Retry-After` in seconds, or a date in any of the three formats of HTTP, relative to the response's `Date` |
//! | | otherwise, `t` of the items of `RateLimit` with `r=0`, or `X-RateLimit-Reset` if `X-RateLimit-Remaining` is 0 |
//! | gRPC `RESOURCE_EXHAUSTED` in the headers of the response ("trailers-only") | `grpc-retry-pushback-ms`: if it is negative or invalid, the call is not repeated |
//!
//! `X-RateLimit-Reset` may be a number of seconds or a time in Unix seconds. Headers of more than 4,096 bytes are
//! ignored.
//!
//! [`CallError::Limited`]: crate::CallError::Limited

mod answer;
mod layer;
mod retry;
mod schedule;
mod upstreams;

pub use self::layer::Pace;
#[doc(alias = "adaptive")]
#[doc(alias = "throttle client")]
pub use self::layer::PaceLayer;
#[doc(alias = "exponential backoff")]
#[doc(alias = "retry")]
#[doc(alias = "retry budget")]
pub use self::retry::RetryPolicy;
