//! The algorithms: pure functions of a key's state, the instant and the cost.
//!
//! | algorithm | admits at most | bytes per key | choose it for |
//! |---|---|---|---|
//! | [`TokenBucket`] | its capacity at once, its rate on average | 24 | APIs: bursts are welcome, the average counts |
//! | [`FixedWindow`] | its limit per aligned window, twice that across a boundary | 24 | quotas: "10,000 a day" |
//! | [`CalendarWindow`] | the same, per day, week, month or year of a time zone | 24 | quotas: "10,000 a month" |
//! | [`SlidingWindowCounter`] | its limit in any period, if requests are evenly spread | 24 | smoother windows |
//! | [`SlidingWindow`] | its limit in any period less one bucket | 48 and more | windows as fine as you like |
//! | [`SlidingLog`] | its limit in any period, exactly | 48 and more | small, exact limits: logins, payments |
//! | [`LeakyBucket`] | its capacity at once, its rate on average | 24 | a token bucket, seen as a level |
//! | [`LeakyBucketQueue`] | one at a time, at a constant rate, after a burst | 24 | shaping: delays rather than denials |
//! | [`Concurrency`] | its limit in flight | 24, in a database 15 to 135 | streams, uploads, slow requests |
//!
//! Sliding windows and logs take 12 to 24 bytes for each further bucket in use, or request in the period.
//!
//! All of them decide exactly, to the microsecond and to the token, with integers.
//!
//! # Constants and configuration
//!
//! Constructors and setters panic on an invalid value, with a message that names it. On algorithms, they are `const`:
//! an invalid constant does not compile. For values that are read at runtime, each type has a constructor `try_new`,
//! which returns a [`ConfigError`](crate::ConfigError) with the same message.
//!
//! ```
//! use std::time::Duration;
//! use tower_ratelimit::{ConfigError, TokenBucket};
//!
//! const DEFAULT: TokenBucket = TokenBucket::per_second(10).burst(20);
//!
//! fn from_config(rate: u32, burst: u32) -> Result<TokenBucket, ConfigError> {
//!     TokenBucket::try_new(burst, rate, Duration::from_secs(1))
//! }
//!
//! assert_eq!(from_config(10, 20)?, DEFAULT);
//! assert_eq!(
//!     from_config(10, 0).unwrap_err().to_string(),
//!     "capacity is 0: allow at least 1 token, or leave the limit out",
//! );
//! # Ok::<_, ConfigError>(())
//! ```
//!
//! Invalid values are rejected, never rounded or clamped.

mod bucket;
mod builders;
mod calendar;
mod concurrency;
mod counter;
mod interval_bucket;
mod key_state;
mod lease;
mod leased_bucket;
mod log;
mod penalty;
mod settings;
pub(crate) mod state;
mod window;

#[doc(alias = "quota")]
pub use self::builders::CalendarWindow;
#[doc(alias = "fixed window")]
pub use self::builders::FixedWindow;
#[doc(alias = "leaky bucket")]
pub use self::builders::LeakyBucket;
#[doc(alias = "slow down")]
pub use self::builders::LeakyBucketQueue;
#[doc(alias = "sliding window")]
pub use self::builders::SlidingWindow;
#[doc(alias = "gcra")]
#[doc(alias = "token bucket")]
pub use self::builders::TokenBucket;
pub use self::builders::{SlidingLog, SlidingWindowCounter};
pub use self::calendar::Weekday;
pub(crate) use self::calendar::date_and_time;
pub use self::concurrency::Concurrency;
pub(crate) use self::key_state::{DecodeError, KeyState, NEVER};
pub(crate) use self::log::Log;
pub(crate) use self::penalty::Lockout;
pub use self::penalty::Penalty;
#[cfg(feature = "redis")]
pub(crate) use self::settings::ScriptTag;
pub use self::settings::{Algorithm, Rounding};
pub(crate) use self::settings::{Kind, NO_END, Size};
pub(crate) use self::state::CompactState;
