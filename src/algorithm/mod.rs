//! The algorithms: pure functions of a key's state, the instant and the cost.
//!
//! | algorithm | admits at most | bytes per key | choose it for |
//! |---|---|---|---|
//! | [`TokenBucket`] | its capacity at once, its rate on average | 16 | APIs: bursts are welcome, the average counts |
//! | [`FixedWindow`] | its limit per aligned window, twice that across a boundary | 16 | quotas: "10,000 a day" |
//! | [`CalendarWindow`] | the same, per day, week, month or year of a time zone | 16 | billed quotas: "10,000 a month" |
//! | [`SlidingWindowCounter`] | its limit in any period, if requests are evenly spread | 16 | a smoother window at the same price |
//! | [`SlidingWindow`] | its limit in any period less one bucket | 48, and 12 to 24 for each further bucket in use | windows without boundaries, as fine as you like |
//! | [`SlidingLog`] | its limit in any period, exactly | 48, and 12 to 24 for each further request in the period | small limits that must be exact: logins, payments |
//! | [`LeakyBucket`] | its capacity at once, its rate on average | 16 | a token bucket, seen as a level |
//! | [`LeakyBucketQueue`] | one at a time, at a constant rate | 16 | shaping: delays rather than denials |
//!
//! All of them decide exactly, to the microsecond and to the token, with integers.
//!
//! # Constants and configuration
//!
//! Constructors and setters that check their arguments come in pairs, throughout the crate:
//!
//! - `new`, `per_second`, `burst` and so on are for values that are written in the code. They panic on an invalid value,
//!   with a message that names it. On algorithms, they are `const`: an invalid constant does not compile.
//! - `try_new`, `try_per_second`, `try_burst` and so on are for values that are read at runtime. They return a
//!   [`ConfigError`](crate::ConfigError) with the same message.
//!
//! ```
//! use tower_ratelimit::{ConfigError, TokenBucket};
//!
//! const DEFAULT: TokenBucket = TokenBucket::per_second(10).burst(20);
//!
//! fn from_config(rate: u32, burst: u32) -> Result<TokenBucket, ConfigError> {
//!     TokenBucket::try_per_second(rate)?.try_burst(burst)
//! }
//!
//! assert_eq!(from_config(10, 20)?, DEFAULT);
//! assert_eq!(
//!     from_config(10, 0).unwrap_err().to_string(),
//!     "burst is 0: allow at least 1 token, or leave the limit out",
//! );
//! # Ok::<_, ConfigError>(())
//! ```
//!
//! Invalid values are rejected, never rounded or clamped.

mod aligned_window;
mod calendar;
mod calendar_window;
mod encoding;
mod fixed_window;
pub(crate) mod gcra;
pub(crate) mod gcra_queue;
pub(crate) mod interval_bucket;
mod key_state;
mod kind;
pub(crate) mod last_charge;
mod leaky_bucket;
mod leaky_bucket_queue;
mod limit_rule;
mod lockout;
pub(crate) mod log;
mod macros;
mod mul_div;
mod penalty;
mod rate_algorithm;
mod read_bytes;
mod settings;
mod size;
mod sliding_log;
mod sliding_window;
mod sliding_window_counter;
pub(crate) mod state;
mod state_period;
pub(crate) mod tat;
mod token_bucket;

pub use self::calendar::Weekday;
pub use self::calendar_window::CalendarWindow;
#[allow(unused_imports, reason = "for stores that keep states as bytes")]
pub(crate) use self::encoding::{DecodeError, StoredKey};
pub use self::fixed_window::FixedWindow;
pub(crate) use self::key_state::{KeyState, StateMut};
pub use self::kind::Algorithm;
#[cfg(feature = "redis")]
pub(crate) use self::kind::PreparedAlgorithm;
pub use self::leaky_bucket::LeakyBucket;
pub use self::leaky_bucket_queue::LeakyBucketQueue;
pub(crate) use self::limit_rule::LimitRule;
pub(crate) use self::lockout::Lockout;
pub(crate) use self::log::Log;
pub use self::penalty::Penalty;
#[cfg(feature = "redis")]
pub(crate) use self::rate_algorithm::RateAlgorithm;
pub(crate) use self::rate_algorithm::{Availability, Evaluation, QuotaSnapshot};
pub(crate) use self::size::Size;
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::SlidingWindow;
pub use self::sliding_window_counter::{Rounding, SlidingWindowCounter};
pub(crate) use self::state::{ChargeMark, CompactState};
#[cfg(all(test, feature = "redis"))]
pub(crate) use self::state_period::StatePeriod;
pub use self::token_bucket::{Refill, TokenBucket};
