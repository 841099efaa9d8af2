//! The algorithms: pure functions of a key's state, the instant and the cost.
//!
//! | algorithm | admits at most | bytes per key | choose it for |
//! |---|---|---|---|
//! | [`TokenBucket`] | its capacity at once, its rate on average | 24 | APIs: bursts are welcome, the average counts |
//! | [`FixedWindow`] | its limit per aligned window, twice that across a boundary | 24 | quotas: "10,000 a day" |
//! | [`CalendarWindow`] | the same, per day, week, month or year of a time zone | 24 | billed quotas: "10,000 a month" |
//! | [`SlidingWindowCounter`] | its limit in any period, if requests are evenly spread | 24 | a smoother window at the same price |
//! | [`SlidingWindow`] | its limit in any period less one bucket | 48, and 12 to 24 for each further bucket in use | windows without boundaries, as fine as you like |
//! | [`SlidingLog`] | its limit in any period, exactly | 48, and 12 to 24 for each further request in the period | small limits that must be exact: logins, payments |
//! | [`LeakyBucket`] | its capacity at once, its rate on average | 24 | a token bucket, seen as a level |
//! | [`LeakyBucketQueue`] | one at a time, at a constant rate | 24 | shaping: delays rather than denials |
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
pub(crate) mod interval_bucket;
mod key_state;
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
mod token_bucket;

use std::time::Duration;

use self::gcra::Gcra;
use self::interval_bucket::IntervalBucket;
use self::log::LogWindow;
use self::settings::Settings;
use crate::time::Timestamp;

pub use self::calendar::Weekday;
pub use self::calendar_window::CalendarWindow;
#[allow(unused_imports, reason = "for stores that keep states as bytes")]
pub(crate) use self::encoding::{DecodeError, StoredKey};
pub use self::fixed_window::FixedWindow;
pub(crate) use self::key_state::{KeyState, StateMut};
pub use self::leaky_bucket::LeakyBucket;
pub use self::leaky_bucket_queue::LeakyBucketQueue;
pub(crate) use self::limit_rule::LimitRule;
pub(crate) use self::lockout::Lockout;
pub(crate) use self::log::Log;
pub use self::penalty::Penalty;
pub(crate) use self::rate_algorithm::{Availability, Evaluation, QuotaSnapshot, RateAlgorithm};
pub(crate) use self::size::Size;
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::SlidingWindow;
pub use self::sliding_window_counter::{Rounding, SlidingWindowCounter};
pub(crate) use self::state::{ChargeMark, CompactState};
pub(crate) use self::state_period::StatePeriod;
pub use self::token_bucket::{Refill, TokenBucket};

/// Any of the [algorithms](crate::algorithm).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Algorithm {
    /// A counter per aligned window.
    FixedWindow(FixedWindow),
    /// A counter per window of a calendar.
    CalendarWindow(CalendarWindow),
    /// Every request of the last period.
    SlidingLog(SlidingLog),
    /// A counter for each part of the last period.
    SlidingWindow(SlidingWindow),
    /// A counter for the current window, and a weighted one for the previous window.
    SlidingWindowCounter(SlidingWindowCounter),
    /// A bucket of tokens that refills over time.
    TokenBucket(TokenBucket),
    /// A leaky bucket as a meter.
    LeakyBucket(LeakyBucket),
    /// A leaky bucket as a queue.
    LeakyBucketQueue(LeakyBucketQueue),
}

/// Evaluates an expression with the settings of an algorithm, whichever it is.
macro_rules! with_settings {
    ($algorithm:expr, $limit:ident => $call:expr) => {
        match $algorithm {
            Algorithm::FixedWindow($limit) => $call,
            Algorithm::CalendarWindow($limit) => $call,
            Algorithm::SlidingLog($limit) => $call,
            Algorithm::SlidingWindow($limit) => $call,
            Algorithm::SlidingWindowCounter($limit) => $call,
            Algorithm::TokenBucket($limit) => $call,
            Algorithm::LeakyBucket($limit) => $call,
            Algorithm::LeakyBucketQueue($limit) => $call,
        }
    };
}

impl Algorithm {
    /// Returns the largest cost, in tokens, that can ever be allowed.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        with_settings!(self, limit => limit.capacity())
    }

    /// Returns the span over which [`capacity`](Self::capacity) is allowed: the period of a window, or the time in
    /// which an empty bucket fills. For a [`CalendarWindow`], the longest window in a zone without clock changes: 31
    /// days for months, 366 for years.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(with_settings!(self, limit => limit.window()))
    }

    /// Returns the same at an instant: for a [`CalendarWindow`], the length of the window that contains it.
    #[must_use]
    pub fn window_at(&self, at: Timestamp) -> Duration {
        match self {
            Self::CalendarWindow(limit) => Duration::from_micros(limit.window_at(at.as_micros())),
            other => other.window(),
        }
    }

    /// Returns the tag in storage keys, which separates the states of this algorithm from those of others, and the name
    /// in words.
    fn tag_and_name(&self) -> (&'static str, &'static str) {
        match self {
            Self::FixedWindow(_) => ("fw", "fixed window"),
            Self::CalendarWindow(_) => ("cw", "calendar window"),
            Self::SlidingLog(_) => ("sl", "sliding log"),
            Self::SlidingWindow(_) => ("sw", "sliding window"),
            Self::SlidingWindowCounter(limit) => match limit.rounding {
                Rounding::Up => ("sc", "sliding window counter"),
                Rounding::Down => ("sc", "sliding window counter (rounded down)"),
            },
            Self::TokenBucket(limit) => match limit.refills() {
                Refill::Continuous => ("tb", "token bucket"),
                Refill::Interval => ("ti", "token bucket (at intervals)"),
            },
            Self::LeakyBucket(_) => ("lb", "leaky bucket"),
            Self::LeakyBucketQueue(_) => ("lq", "leaky bucket queue"),
        }
    }

    /// Returns the tag in storage keys.
    pub(crate) fn tag(&self) -> &'static str {
        self.tag_and_name().0
    }

    /// Returns the period that the stored state is relative to.
    pub(crate) fn state_period(&self) -> StatePeriod {
        with_settings!(self, limit => limit.state_period())
    }

    /// Returns the limit that each of `parts` processes, from 1, may enforce without knowing of the others.
    pub(crate) fn share(&self, parts: u32) -> Self {
        with_settings!(self, limit => limit.share(parts).into())
    }

    /// Returns the algorithm with `percent` more capacity, rounded down to whole tokens, and at most as much as is in range.
    pub(crate) fn with_overage(&self, percent: u32) -> Self {
        with_settings!(self, limit => limit.with_overage(percent).into())
    }

    /// Returns the tokens of the limit: all that an override changes.
    pub(crate) fn size(&self) -> Size {
        with_settings!(self, limit => limit.size())
    }

    /// Returns the algorithm with another size, or `None` if that is out of range.
    pub(crate) fn with_size(&self, size: Size) -> Option<Self> {
        with_settings!(self, limit => limit.with_size(size).map(Into::into))
    }

    /// Describes the settings in words, for error messages: `a fixed window of 3 per 60 s`.
    pub(crate) fn describe(&self) -> String {
        let (_, name) = self.tag_and_name();
        let period = match self.state_period() {
            StatePeriod::Micros(micros) => format!("{} s", micros as f64 / 1e6),
            StatePeriod::Buckets(micros, buckets) => format!("{} s in {buckets} buckets", micros as f64 / 1e6),
            StatePeriod::Calendar(calendar) => calendar.describe(),
        };
        match self.size() {
            [limit, 0] => format!("a {name} of {limit} per {period}"),
            [capacity, amount] => format!("a {name} of {amount} per {period} with a capacity of {capacity}"),
        }
    }
}

macro_rules! impl_from {
    ($($name:ident),*) => {
        $(impl From<$name> for Algorithm {
            fn from(limit: $name) -> Self {
                Self::$name(limit)
            }
        })*
    };
}
impl_from!(
    FixedWindow,
    CalendarWindow,
    SlidingLog,
    SlidingWindow,
    SlidingWindowCounter,
    TokenBucket,
    LeakyBucket,
    LeakyBucketQueue
);

/// The [`RateAlgorithm`] by which an [`Algorithm`] decides: several have the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PreparedAlgorithm {
    /// A continuous token bucket, or a leaky bucket.
    Gcra(Gcra),
    /// A token bucket that refills at intervals.
    IntervalBucket(IntervalBucket),
    FixedWindow(FixedWindow),
    CalendarWindow(CalendarWindow),
    SlidingWindowCounter(SlidingWindowCounter),
    /// A sliding log, or a sliding window.
    LogWindow(LogWindow),
}

impl Algorithm {
    pub(crate) fn prepare(&self) -> PreparedAlgorithm {
        match self {
            Self::FixedWindow(limit) => PreparedAlgorithm::FixedWindow(*limit),
            Self::CalendarWindow(limit) => PreparedAlgorithm::CalendarWindow(*limit),
            Self::SlidingLog(limit) => PreparedAlgorithm::LogWindow(limit.log_window()),
            Self::SlidingWindow(limit) => PreparedAlgorithm::LogWindow(limit.log_window()),
            Self::SlidingWindowCounter(limit) => PreparedAlgorithm::SlidingWindowCounter(*limit),
            Self::TokenBucket(limit) => match limit.refills() {
                Refill::Continuous => PreparedAlgorithm::Gcra(limit.gcra()),
                Refill::Interval => PreparedAlgorithm::IntervalBucket(limit.interval_bucket()),
            },
            Self::LeakyBucket(limit) => PreparedAlgorithm::Gcra(limit.gcra()),
            Self::LeakyBucketQueue(limit) => PreparedAlgorithm::Gcra(limit.gcra()),
        }
    }
}

/// Calls a method of the [`RateAlgorithm`] with the state that belongs to it.
macro_rules! with_state {
    ($prepared:expr, $state:expr, ($algorithm:ident, $of:ident) => $call:expr) => {
        match ($prepared, $state) {
            (PreparedAlgorithm::Gcra($algorithm), StateMut::Compact($of)) => $call,
            (PreparedAlgorithm::IntervalBucket($algorithm), StateMut::Compact($of)) => $call,
            (PreparedAlgorithm::FixedWindow($algorithm), StateMut::Compact($of)) => $call,
            (PreparedAlgorithm::CalendarWindow($algorithm), StateMut::Compact($of)) => $call,
            (PreparedAlgorithm::SlidingWindowCounter($algorithm), StateMut::Compact($of)) => $call,
            (PreparedAlgorithm::LogWindow($algorithm), StateMut::Log($of)) => $call,
            (algorithm, state) => unreachable!("{algorithm:?} has no {state:?}"),
        }
    };
}

/// The methods of [`RateAlgorithm`]. They panic if the state belongs to another algorithm.
impl PreparedAlgorithm {
    pub(super) fn peek(&self, state: &StateMut<'_>, now: u64, cost: u64) -> Availability {
        with_state!(self, state, (algorithm, state) => algorithm.peek(state, now, cost))
    }

    pub(super) fn commit(&self, state: &mut StateMut<'_>, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        with_state!(self, state, (algorithm, state) => algorithm.commit(state, now, cost))
    }

    /// Decides, and passes the evaluation to `then`: see [`LimitRule::decide_then`](super::LimitRule).
    #[inline]
    pub(super) fn decide_then<R>(
        &self,
        state: &mut StateMut<'_>,
        now: u64,
        cost: u64,
        then: impl FnOnce(Evaluation) -> R,
    ) -> R {
        with_state!(self, state, (algorithm, state) => decide_then(algorithm, state, now, cost, then))
    }

    pub(super) fn snapshot(&self, state: &StateMut<'_>, now: u64) -> QuotaSnapshot {
        with_state!(self, state, (algorithm, state) => algorithm.snapshot(state, now))
    }

    pub(super) fn refund(&self, state: &mut StateMut<'_>, mark: ChargeMark, now: u64, cost: u64) {
        with_state!(self, state, (algorithm, state) => algorithm.refund(state, mark, now, cost));
    }

    /// Returns whether states are logs.
    pub(crate) fn keeps_log(&self) -> bool {
        matches!(self, Self::LogWindow(_))
    }

    /// Returns the state of an unused key.
    pub(crate) fn unused(&self) -> KeyState {
        if self.keeps_log() { KeyState::Log(Log::default()) } else { KeyState::Compact(CompactState::UNUSED) }
    }
}

// Not inlined: one function for each algorithm, in which the evaluation stays in registers until `then` uses it.
#[inline(never)]
fn decide_then<S, R>(
    algorithm: &impl RateAlgorithm<S>,
    state: &mut S,
    now: u64,
    cost: u64,
    then: impl FnOnce(Evaluation) -> R,
) -> R {
    then(algorithm.decide(state, now, cost))
}
