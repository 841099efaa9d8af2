//! Limits of windows.

use std::time::Duration;

use super::super::settings::{Algorithm, Kind, Rounding};
use crate::error::validation::{DAY, HOUR, MINUTE, SECOND, checked};
use crate::error::{ConfigError, Fault};

/// The constructors of a limit of tokens per period. `$new` and `$per` are the words before the period in their
/// documentation.
macro_rules! constructors {
    ($name:ident, $kind:expr, $new:literal, $per:literal) => {
        impl $name {
            #[doc = concat!("Allows `limit` tokens, at least 1, in ", $new, " `period`: 1 µs to 366 days.")]
            ///
            /// # Panics
            ///
            /// Panics if an argument is out of its range, or `period` is not in whole microseconds. In a constant, this
            /// is a compile-time error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(limit: u32, period: Duration) -> Self {
                Self(checked!(Algorithm::window_of($kind, limit, period)))
            }

            /// Fallible version of [`new`](Self::new), for values that are read at runtime.
            ///
            /// # Errors
            ///
            /// Returns an error if `limit` is 0, or `period` is 0, longer than 366 days, or not in whole microseconds.
            pub fn try_new(limit: u32, period: Duration) -> Result<Self, ConfigError> {
                Ok(Self(Algorithm::window_of($kind, limit, period)?))
            }

            constructors!(@unit per_second, SECOND, "second", $per);
            constructors!(@unit per_minute, MINUTE, "minute", $per);
            constructors!(@unit per_hour, HOUR, "hour", $per);
            constructors!(@unit per_day, DAY, "day", $per);
        }

        impl From<$name> for Algorithm {
            fn from(limit: $name) -> Self {
                limit.0
            }
        }
    };
    (@unit $name:ident, $period:ident, $unit:literal, $per:literal) => {
        #[doc = concat!("Allows `limit` tokens, at least 1, in ", $per, " ", $unit, ".")]
        ///
        /// # Panics
        ///
        /// Panics if `limit` is 0. In a constant, this is a compile-time error. [`try_new`](Self::try_new) returns an
        /// error instead.
        #[must_use]
        #[track_caller]
        pub const fn $name(limit: u32) -> Self {
            Self::new(limit, $period)
        }
    };
}

/// At most `limit` tokens in each window of `period`. Windows are aligned to multiples of `period` since the Unix
/// epoch, so that a window of a day is a day in UTC. For months, or for days in other time zones, use a
/// [`CalendarWindow`](crate::CalendarWindow).
///
/// - **Admits at most** `limit` tokens per window, and twice that across a boundary, if a client spends one window at
///   its end and the next at its start.
/// - **Keeps** 24 bytes per key: the end of the window, and its count.
/// - **Choose it** for rules that are stated in windows ("10,000 a day"), or when cost matters most and a burst at a
///   boundary does no harm.
///
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/fixed_window.svg"))]
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::FixedWindow;
///
/// let daily = FixedWindow::per_day(10_000);
/// assert_eq!(daily, FixedWindow::new(10_000, Duration::from_secs(86_400)));
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FixedWindow(Algorithm);

constructors!(FixedWindow, Kind::FixedWindow, "each aligned window of", "each");

/// At most `limit` tokens in any `period`, exactly: every allowed request is kept until it is `period` old.
///
/// - **Admits at most** `limit` tokens in any span of `period`.
/// - **Keeps** 48 bytes per key, 12 for each further request that was allowed in the last period, and up to twice as
///   much while it grows. Requests of the same microsecond share an entry.
/// - **Choose it** for small limits that must be exact: five attempts to log in, a payment. For large limits, a
///   [`SlidingWindow`] is nearly as exact, and smaller.
///
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/sliding_log.svg"))]
///
/// ```
/// use tower_ratelimit::SlidingLog;
///
/// let attempts = SlidingLog::per_minute(5);
/// # let _ = attempts;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingLog(Algorithm);

constructors!(SlidingLog, Kind::SlidingLog, "any span of", "any");

/// At most `limit` tokens in a sliding window of `period`, which is divided into buckets: the current one, and those
/// before it.
///
/// - **Admits at most** `limit` tokens in any span of `period` less one bucket.
/// - **Keeps** 48 bytes per key, 12 for each further bucket in which a request was allowed, and up to twice as much
///   while it grows.
/// - **Choose it** when the boundary of a [`FixedWindow`] would hurt, and a
///   [`SlidingLog`] would grow too large. The more buckets, the closer to the log, and the larger.
///
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/sliding_window.svg"))]
///
/// ```
/// use tower_ratelimit::SlidingWindow;
///
/// // 100 per hour, counted by the minute.
/// let hourly = SlidingWindow::per_hour(100).buckets(60);
/// # let _ = hourly;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingWindow(Algorithm);

constructors!(SlidingWindow, Kind::SlidingWindow { buckets: 10 }, "a sliding window of", "a sliding");

impl SlidingWindow {
    /// Sets the number of buckets, from 1. Defaults to 10, or the largest smaller number that divides the period. With
    /// one bucket, the limit decides as a [`FixedWindow`].
    ///
    /// # Panics
    ///
    /// Panics if the period does not divide into that many buckets of whole microseconds. In a constant, this is a
    /// compile-time error. [`try_buckets`](Self::try_buckets) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn buckets(self, buckets: u32) -> Self {
        checked!(self.checked_buckets(buckets))
    }

    /// Fallible version of [`buckets`](Self::buckets).
    ///
    /// # Errors
    ///
    /// Returns an error if the period does not divide into that many buckets of whole microseconds.
    pub fn try_buckets(self, buckets: u32) -> Result<Self, ConfigError> {
        Ok(self.checked_buckets(buckets)?)
    }

    const fn checked_buckets(mut self, buckets: u32) -> Result<Self, Fault> {
        if buckets == 0 || !self.0.span.is_multiple_of(buckets as u64) {
            return Err(Fault::Buckets { period: Duration::from_micros(self.0.span), buckets });
        }
        self.0.kind = Kind::SlidingWindow { buckets };
        Ok(self)
    }
}

/// At most `limit` tokens in a sliding window of `period`, estimated from two aligned ones: the count of the current
/// window, plus the count of the previous window times the share of it that the sliding window still covers.
///
/// - **Admits at most** `limit` tokens in any period if the requests of the previous window were evenly spread, which
///   the estimate assumes. In practice it is close to that, and never more than twice.
/// - **Keeps** 24 bytes per key: two counts, and their window.
/// - **Choose it** when the burst of a [`FixedWindow`] at its boundary would hurt, and a
///   [`SlidingLog`] would grow too large.
///
#[cfg_attr(doc, doc = include_str!("../../guide/diagrams/sliding_window_counter.svg"))]
///
/// ```
/// use tower_ratelimit::{Rounding, SlidingWindowCounter};
///
/// let strict = SlidingWindowCounter::per_minute(100);
/// let lenient = SlidingWindowCounter::per_minute(100).rounding(Rounding::Down);
/// # let _ = (strict, lenient);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingWindowCounter(Algorithm);

constructors!(SlidingWindowCounter, Kind::SlidingWindowCounter(Rounding::Up), "a sliding window of", "a sliding");

impl SlidingWindowCounter {
    /// Sets the rounding. Defaults to [`Rounding::Up`].
    #[must_use]
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        self.0.kind = Kind::SlidingWindowCounter(rounding);
        self
    }
}
