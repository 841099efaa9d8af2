//! For clients of services that limit them: a retry policy, and a layer that paces calls.
//!
//! [`RetryPolicy`] repeats requests that an upstream has rejected, no earlier than it allows. [`PaceLayer`] keeps calls
//! below the limit of an upstream, which it learns, and holds all calls to an upstream that has rejected one. An
//! upstream is the host and port of a URL, or has [another key](PaceLayer::by). Requires the feature `client`.
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
//! In this order, a rejected request waits once: the pause of the layer is over when the policy repeats the request.
//! The policy does not repeat a call that the layer denies, because that is an error, [`CallError::Limited`].
//!
//! # Rejections
//!
//! | response | wait | policy | layer |
//! |---|---|---|---|
//! | 429 with a time | see below | repeats | pauses |
//! | 429 without one | | repeats after a back-off | pauses for a second |
//! | 503 with a time | see below | repeats | pauses |
//! | 503 without one | | repeats after a back-off | changes nothing |
//! | gRPC `RESOURCE_EXHAUSTED` in the headers of the response ("trailers-only") | `grpc-retry-pushback-ms`, or as 429 | repeats, unless the push-back is negative or invalid | pauses |
//!
//! The time is that of `Retry-After`: seconds, or a date in any of the three formats of HTTP, relative to the `Date` of
//! the response. Otherwise, it is `t` of the items of `RateLimit` with `r=0`, or `X-RateLimit-Reset` if
//! `X-RateLimit-Remaining` is 0: seconds, or a Unix time in seconds or milliseconds. `RateLimit-Reset` and
//! `X-Rate-Limit-Reset` are read likewise. Decimals are rounded up. Headers of more than 4,096 bytes, and resets after
//! more than a year, are ignored.
//!
//! [`CallError::Limited`]: crate::CallError::Limited

mod answer;
mod pace;
mod retry;
mod schedule;
mod upstream;
mod upstreams;

use std::time::Duration;

pub use self::pace::Pace;
#[doc(alias = "adaptive")]
#[doc(alias = "outgoing")]
#[doc(alias = "throttle client")]
pub use self::pace::PaceLayer;
#[doc(alias = "exponential backoff")]
#[doc(alias = "retry")]
#[doc(alias = "retry budget")]
pub use self::retry::RetryPolicy;

/// The longest time of a setting and of a pause.
const LONGEST_TIME: Duration = Duration::from_secs(86_400);

/// Returns `time` if it is positive and at most a day.
#[track_caller]
fn checked_time(name: &str, time: Duration) -> Duration {
    assert!(!time.is_zero() && time <= LONGEST_TIME, "{name} is {time:?}: use more than 0, and at most a day");
    time
}
