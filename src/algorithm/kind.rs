//! Any of the algorithms.

use std::fmt;
use std::time::Duration;

use super::calendar::Calendar;
use super::calendar_window::CalendarWindow;
use super::fixed_window::FixedWindow;
use super::leaky_bucket::LeakyBucket;
use super::leaky_bucket_queue::LeakyBucketQueue;
use super::size::Size;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::sliding_window_counter::SlidingWindowCounter;
use super::token_bucket::{Refill, TokenBucket};
use crate::time::{self, Timestamp};

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
        time::micros(with_settings!(self, limit => limit.window()))
    }

    /// Returns the same at an instant: for a [`CalendarWindow`], the length of the window that contains it.
    #[must_use]
    pub fn window_at(&self, at: Timestamp) -> Duration {
        match self {
            Self::CalendarWindow(limit) => time::micros(limit.window_at(at.as_micros())),
            other => other.window(),
        }
    }

    /// The tag that separates this algorithm's storage keys from others', whose states mean something else.
    pub(crate) fn tag(&self) -> &'static str {
        match self {
            Self::FixedWindow(_) => "fw",
            Self::CalendarWindow(_) => "cw",
            Self::SlidingLog(_) => "sl",
            Self::SlidingWindow(_) => "sw",
            Self::SlidingWindowCounter(_) => "sc",
            Self::TokenBucket(limit) => match limit.refills() {
                Refill::Continuous => "tb",
                Refill::Interval => "ti",
            },
            Self::LeakyBucket(_) => "lb",
            Self::LeakyBucketQueue(_) => "lq",
        }
    }

    /// The period that the stored state is relative to.
    pub(crate) fn state_period(&self) -> StatePeriod {
        match self {
            Self::FixedWindow(limit) => StatePeriod::Micros(limit.period),
            Self::CalendarWindow(limit) => StatePeriod::Calendar(limit.calendar),
            Self::SlidingLog(limit) => StatePeriod::Micros(limit.period),
            Self::SlidingWindow(limit) => StatePeriod::Buckets(limit.period, limit.buckets),
            Self::SlidingWindowCounter(limit) => StatePeriod::Micros(limit.period),
            Self::TokenBucket(limit) => StatePeriod::Micros(limit.interval),
            Self::LeakyBucket(limit) => StatePeriod::Micros(limit.interval),
            Self::LeakyBucketQueue(limit) => StatePeriod::Micros(limit.interval),
        }
    }

    /// The limit that each of `parts` nodes, from 1, may enforce without knowing of the others.
    pub(crate) fn share(&self, parts: u32) -> Self {
        with_settings!(self, limit => limit.share(parts).into())
    }

    /// The same algorithm with `percent` more capacity, rounded down to whole tokens, and at most 2^32 − 1.
    pub(crate) fn raised(&self, percent: u32) -> Self {
        with_settings!(self, limit => limit.raised(percent).into())
    }

    /// The tokens of the limit: all that an override changes.
    pub(crate) fn size(&self) -> Size {
        with_settings!(self, limit => limit.size())
    }

    /// The same algorithm with another size, or `None` if a size of 0 is in it.
    pub(crate) fn sized(&self, size: Size) -> Option<Self> {
        with_settings!(self, limit => limit.sized(size).map(Into::into))
    }

    /// The settings, for error messages.
    pub(crate) fn describe(&self) -> String {
        with_settings!(self, limit => format!("{limit:?}"))
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

/// What the state of a key is relative to: a period or interval in µs, a period in so many buckets, or a calendar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StatePeriod {
    Micros(u64),
    Buckets(u64, u32),
    Calendar(Calendar),
}

/// As it appears in storage keys: `60s`, `1500000u`, `3600s.10`, `m15.Europe/Berlin`.
impl fmt::Display for StatePeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Micros(micros) if micros % 1_000_000 == 0 => write!(f, "{}s", micros / 1_000_000),
            Self::Micros(micros) => write!(f, "{micros}u"),
            Self::Buckets(micros, buckets) => write!(f, "{}.{buckets}", Self::Micros(*micros)),
            Self::Calendar(calendar) => write!(f, "{calendar}"),
        }
    }
}
