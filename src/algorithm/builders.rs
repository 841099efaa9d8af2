//! The builders of algorithms: buckets, windows, and windows of the calendar.

use std::time::Duration;

#[cfg(feature = "time-zones")]
use super::calendar::NamedZone;
use super::calendar::{Calendar, Unit, Weekday, Zone};
use super::settings::{Algorithm, BucketKind, Kind, Rounding};
#[cfg(feature = "time-zones")]
use crate::error::or_panic;
use crate::error::validation::{self, DAY, HOUR, MINUTE, SECOND, checked};
use crate::error::{ConfigError, Fault};

/// The constructors, and the setter of the capacity, of a limit with a capacity and an amount per interval. The
/// literals are sentences of their documentation.
macro_rules! bucket {
    ($name:ident, $kind:expr, $set:ident, new: $new:literal, unit: $unit_doc:literal, set: $set_doc:literal) => {
        impl $name {
            #[doc = $new]
            ///
            /// Both numbers of tokens are at least 1, and the interval is 1 µs to 366 days. All tokens must drain
            /// within 2^52 µs, 142 years.
            ///
            /// # Panics
            ///
            /// Panics if an argument is out of its range, or `interval` is not in whole microseconds. In a constant,
            /// this is a compile-time error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(capacity: u32, amount: u32, interval: Duration) -> Self {
                Self(checked!(Algorithm::bucket($kind, capacity, amount, interval)))
            }

            /// Fallible version of [`new`](Self::new), for values that are read at runtime.
            ///
            /// # Errors
            ///
            /// Returns an error if `capacity` or `amount` is 0, `interval` is 0, longer than 366 days, or not in whole
            /// microseconds, or the tokens do not drain within 142 years.
            pub fn try_new(capacity: u32, amount: u32, interval: Duration) -> Result<Self, ConfigError> {
                Ok(Self(Algorithm::bucket($kind, capacity, amount, interval)?))
            }

            bucket!(@unit per_second, SECOND, "second", $unit_doc, $set);
            bucket!(@unit per_minute, MINUTE, "minute", $unit_doc, $set);
            bucket!(@unit per_hour, HOUR, "hour", $unit_doc, $set);
            bucket!(@unit per_day, DAY, "day", $unit_doc, $set);

            #[doc = concat!($set_doc, " At least 1. It may be less than the amount.")]
            ///
            /// # Panics
            ///
            /// Panics if `capacity` is 0, or takes more than 142 years to drain. In a constant, this is a compile-time
            /// error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn $set(self, capacity: u32) -> Self {
                Self(checked!(self.0.with_capacity(stringify!($set), capacity)))
            }
        }

        impl From<$name> for Algorithm {
            fn from(limit: $name) -> Self {
                limit.0
            }
        }
    };
    (@unit $name:ident, $interval:ident, $unit:literal, $unit_doc:literal, $set:ident) => {
        #[doc = concat!($unit_doc, " per ", $unit, ". [`", stringify!($set), "`](Self::", stringify!($set), ")")]
        /// sets another capacity.
        ///
        /// # Panics
        ///
        /// Panics if `rate` is 0. In a constant, this is a compile-time error. [`try_new`](Self::try_new) returns an
        /// error instead.
        #[must_use]
        #[track_caller]
        pub const fn $name(rate: u32) -> Self {
            Self::new(checked!(validation::tokens("rate", rate)), rate, $interval)
        }
    };
}

/// A bucket of `capacity` tokens, full at first, which regains `amount` tokens per `interval`: continuously, or
/// [all at once](Self::at_intervals) at the end of each interval.
///
/// - **Admits at most** `capacity` + `amount` · span / `interval` tokens in any span: a burst of the whole bucket, then
///   the refill rate. With refills at intervals, span / `interval` rounds up.
/// - **Keeps** 24 bytes per key: the instant at which the bucket is full again, that of the last charge, and the rate.
/// - **Choose it** when bursts are welcome and the average rate is what counts. It is the usual choice for APIs. With
///   refills at intervals, it expresses rules such as "10 attempts, and one more every hour".
///
/// A continuous bucket is decided by the generic cell rate algorithm (GCRA, ITU-T I.371).
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/token_bucket.svg"))]
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::TokenBucket;
///
/// // 10 requests per second on average, in bursts of up to 20.
/// let api = TokenBucket::per_second(10).burst(20);
/// assert_eq!(api, TokenBucket::new(20, 10, Duration::from_secs(1)));
///
/// // $200 at once, and $50 back per day: continuously, or all of it when a day has passed.
/// let continuous = TokenBucket::per_day(50).burst(200);
/// let daily = TokenBucket::per_day(50).burst(200).at_intervals();
///
/// // 3 per minute, all of which come back together.
/// let strict = TokenBucket::per_minute(3).at_intervals();
/// # let _ = (continuous, daily, strict);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TokenBucket(Algorithm);

bucket!(
    TokenBucket, Kind::Bucket(BucketKind::Token), burst,
    new: "Creates a bucket of `capacity` tokens, which regains `amount` tokens per `interval`.",
    unit: "Creates a bucket of `rate` tokens, at least 1, which regains as many",
    set: "Sets the capacity: the tokens that are allowed at once."
);

impl TokenBucket {
    /// Adds the tokens of each interval at once, at its end, instead of continuously in fractions of a token. Intervals
    /// begin when a full bucket is first used.
    ///
    /// # Panics
    ///
    /// Panics if the bucket is not full after 142 years of whole intervals. In a constant, this is a compile-time
    /// error. [`try_at_intervals`](Self::try_at_intervals) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn at_intervals(self) -> Self {
        Self(checked!(self.0.at_intervals()))
    }

    /// Fallible version of [`at_intervals`](Self::at_intervals).
    ///
    /// # Errors
    ///
    /// Returns an error if the bucket is not full after 142 years of whole intervals.
    pub fn try_at_intervals(self) -> Result<Self, ConfigError> {
        Ok(Self(self.0.at_intervals()?))
    }
}

/// A bucket that holds up to `capacity` tokens, is empty at first, and leaks `amount` tokens per `interval`,
/// continuously. A request adds its cost, and is denied if the bucket would overflow.
///
/// - **Admits at most** `capacity` + `amount` · span / `interval` tokens in any span.
/// - **Keeps** 24 bytes per key: the instant at which the bucket is empty again, that of the last charge, and the rate.
/// - **Choose it** when you think in levels rather than allowances. It is the mirror image of a continuous
///   [`TokenBucket`], and decides alike. To delay requests rather than deny them, use a
///   [`LeakyBucketQueue`].
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/leaky_bucket.svg"))]
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::LeakyBucket;
///
/// // Holds three tokens, and leaks one every 20 seconds.
/// let bucket = LeakyBucket::new(3, 1, Duration::from_secs(20));
/// # let _ = bucket;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucket(Algorithm);

bucket!(
    LeakyBucket, Kind::Bucket(BucketKind::Leaky), burst,
    new: "Creates a bucket for `capacity` tokens, from which `amount` tokens leak per `interval`.",
    unit: "Creates a bucket for `rate` tokens, at least 1, from which as many leak",
    set: "Sets the capacity: the tokens that fit into the bucket."
);

/// A queue in which up to `waiting` tokens wait, and which `amount` tokens leave per `interval`, evenly spaced and
/// first in, first out. A request that finds the queue empty proceeds at once, one that finds it full is denied, and
/// any other is delayed. With a [burst](Self::burst), that many more
/// proceed at once before others wait.
///
/// - **Admits at most** `waiting` + 1 + `burst` + `amount` · span / `interval` tokens in any span. Of these, at most 1 +
///   `burst` + `amount` · span / `interval` tokens proceed in any span; without a burst, no two closer together than
///   `interval` / `amount`.
/// - **Delays** a request by at most `waiting` · `interval` / `amount`.
/// - **Keeps** 24 bytes per key: the instant at which the next slot is free, that of the last charge, and the rate.
/// - **Choose it** to shape traffic to a steady rate rather than cut it off, in front of services or in clients.
///
/// A delayed request waits in its own future, which holds the service that was ready for it. Put a concurrency limit
/// outside this layer, or waiting requests occupy its permits. A request that is dropped while it waits, because
/// its client has disconnected, gives its slot back if none has queued behind it. Otherwise the slot passes unused, and
/// the others keep the instants that they were promised.
///
/// If the rate is changed, requests that wait proceed as promised, and a new one finds the same number of tokens in the
/// queue, at the new rate. With a faster rate it may proceed before the last one that waits.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/leaky_bucket_queue.svg"))]
///
/// ```
/// use tower_ratelimit::LeakyBucketQueue;
///
/// // One request per second proceeds, and five may wait.
/// let queue = LeakyBucketQueue::per_second(1).waiting(5);
///
/// // Slow down, then deny: nine requests proceed at once, twelve more wait for up to 2.4 seconds, and others are denied.
/// // In nginx, this is `rate=5r/s` with `burst=20 delay=8`.
/// let slow_down = LeakyBucketQueue::per_second(5).waiting(12).burst(8);
/// # let _ = (queue, slow_down);
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeakyBucketQueue(Algorithm);

bucket!(
    LeakyBucketQueue, Kind::Bucket(BucketKind::Queue { burst: 0 }), waiting,
    new: "Creates a queue in which `capacity` tokens may wait, and which `amount` tokens leave per `interval`.",
    unit: "Creates a queue in which `rate` tokens, at least 1, may wait, and which as many leave",
    set: "Sets the capacity: the tokens that may wait."
);

impl LeakyBucketQueue {
    /// Sets the tokens that proceed at once, in addition to the one whose turn it is. Defaults to 0.
    ///
    /// # Panics
    ///
    /// Panics if the burst and the tokens that may wait are more than 2^32 − 1, or take more than 142 years to leave. In
    /// a constant, this is a compile-time error. [`try_burst`](Self::try_burst) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn burst(self, tokens: u32) -> Self {
        Self(checked!(self.0.with_burst(tokens)))
    }

    /// Fallible version of [`burst`](Self::burst).
    ///
    /// # Errors
    ///
    /// Returns an error if the burst and the tokens that may wait are more than 2^32 − 1, or take more than 142 years to
    /// leave.
    pub fn try_burst(self, tokens: u32) -> Result<Self, ConfigError> {
        Ok(Self(self.0.with_burst(tokens)?))
    }
}

/// The constructors of a limit of tokens per period. `$new` and `$per` are the words before the period in their
/// documentation.
macro_rules! window {
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

            window!(@unit per_second, SECOND, "second", $per);
            window!(@unit per_minute, MINUTE, "minute", $per);
            window!(@unit per_hour, HOUR, "hour", $per);
            window!(@unit per_day, DAY, "day", $per);
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
/// [`CalendarWindow`].
///
/// - **Admits at most** `limit` tokens per window, and twice that across a boundary, if a client spends one window at
///   its end and the next at its start.
/// - **Keeps** 24 bytes per key: the end of the window, and its count.
/// - **Choose it** for rules that are stated in windows ("10,000 a day"), or when cost matters most and a burst at a
///   boundary does no harm.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/fixed_window.svg"))]
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

window!(FixedWindow, Kind::Window(None), "each aligned window of", "each");

/// At most `limit` tokens in any `period`, exactly: every allowed request is kept until it is `period` old.
///
/// - **Admits at most** `limit` tokens in any span of `period`.
/// - **Keeps** 48 bytes per key, 12 for each further request that was allowed in the last period, and up to twice as
///   much while it grows. Requests of the same microsecond share an entry.
/// - **Choose it** for small limits that must be exact: five attempts to log in, a payment. For large limits, a
///   [`SlidingWindow`] is nearly as exact, and smaller.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/sliding_log.svg"))]
///
/// ```
/// use tower_ratelimit::SlidingLog;
///
/// let attempts = SlidingLog::per_minute(5);
/// # let _ = attempts;
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SlidingLog(Algorithm);

window!(SlidingLog, Kind::Log(None), "any span of", "any");

/// At most `limit` tokens in a sliding window of `period`, which is divided into buckets: the current one, and those
/// before it.
///
/// - **Admits at most** `limit` tokens in any span of `period` less one bucket.
/// - **Keeps** 48 bytes per key, 12 for each further bucket in which a request was allowed, and up to twice as much
///   while it grows.
/// - **Choose it** when the boundary of a [`FixedWindow`] would hurt, and a
///   [`SlidingLog`] would grow too large. The more buckets, the closer to the log, and the larger.
///
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/sliding_window.svg"))]
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

window!(SlidingWindow, Kind::Log(Some(10)), "a sliding window of", "a sliding");

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
        if !self.0.span.is_multiple_of(buckets as u64) {
            return Err(Fault::new("period ")
                .duration(Duration::from_micros(self.0.span))
                .text(" does not divide into ")
                .number(buckets as u64)
                .text(" buckets of whole microseconds: use a number that divides ")
                .number(self.0.span));
        }
        self.0.kind = Kind::Log(Some(buckets));
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
#[cfg_attr(doc, doc = include_str!("../guide/diagrams/sliding_window_counter.svg"))]
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

window!(SlidingWindowCounter, Kind::Counter(Rounding::Up, 100), "a sliding window of", "a sliding");

impl SlidingWindowCounter {
    /// Sets the rounding. Defaults to [`Rounding::Up`].
    #[must_use]
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        if let Kind::Counter(_, weight) = self.0.kind {
            self.0.kind = Kind::Counter(rounding, weight);
        }
        self
    }

    /// Sets the weight of the previous window, in percent: 1 to 100. Defaults to 100. With less, a burst is forgotten
    /// sooner after the end of its window, and more than `limit` tokens may be admitted in a period.
    ///
    /// # Panics
    ///
    /// Panics if `percent` is 0 or more than 100. In a constant, this is a compile-time error.
    /// [`try_weight`](Self::try_weight) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn weight(self, percent: u32) -> Self {
        Self(checked!(self.0.with_weight(percent)))
    }

    /// Fallible version of [`weight`](Self::weight).
    ///
    /// # Errors
    ///
    /// Returns an error if `percent` is 0 or more than 100.
    pub fn try_weight(self, percent: u32) -> Result<Self, ConfigError> {
        Ok(Self(self.0.with_weight(percent)?))
    }
}

/// At most `limit` tokens in each day, week, month or year of a calendar: in UTC, or in another time zone (`in_zone`,
/// with the feature `time-zones`).
///
/// - **Admits at most** `limit` tokens per window, and twice that across a boundary.
/// - **Keeps** 24 bytes per key: the end of the window, and its count.
/// - **Choose it** for quotas that people are billed by, which begin with a local day, a week, a month or a billing
///   day. If only the length of the window matters, a [`FixedWindow`] is simpler.
///
/// ```
/// use tower_ratelimit::{CalendarWindow, Limit, Weekday};
///
/// let quota = Limit::new("quota", CalendarWindow::monthly(10_000));
/// let billed = Limit::new("billed", CalendarWindow::monthly(10_000).from_day(15));
/// let weekly = Limit::new("weekly", CalendarWindow::weekly(500, Weekday::Monday));
/// # let _ = (quota, billed, weekly);
/// # #[cfg(feature = "time-zones")]
/// let local = Limit::new("local", CalendarWindow::daily(100).in_zone("Europe/Berlin"));
/// ```
///
/// # Where windows begin
///
/// A window begins at the first instant that is, by the clocks of the time zone, on one of these dates or later, and
/// ends where the next window begins:
///
/// - [`daily`](Self::daily): every day,
/// - [`weekly`](Self::weekly): every day that is the given weekday,
/// - [`monthly`](Self::monthly): the first of every month, or the day set by [`from_day`](Self::from_day): in shorter
///   months, their last day,
/// - [`yearly`](Self::yearly): every 1 January.
///
/// A day in which clocks are set forward has 23 hours, one in which they are set back has 25. A day whose midnight is
/// skipped begins with the first instant after the gap, and one with two midnights begins with the first. Once a new
/// day has begun, it includes the minutes that are repeated when clocks are set back over midnight. A date that is
/// skipped altogether (30 December 2011 in Samoa) has no window: one that would begin on it begins on the next date.
///
/// Dates are those of the Gregorian calendar. Time zones follow the IANA database as it was when the zone was first
/// used: the system's, or else the one that is compiled in. A window with a count keeps the end that it had when it
/// began, even if another process has other rules.
///
/// # On Redis
///
/// Redis' clock decides which window is current. As scripts know no calendars, a request carries the boundaries of four
/// windows: the current one by this machine's clock, the one before, and the two after. If Redis' clock is in none
/// of them, nothing is charged, and the request is sent again with the boundaries around Redis' clock: a second round
/// trip, for machines whose clock is off by more than a window.
///
/// Limits of the same name share their keys' counts if they have the same unit, first day and time zone (by name).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CalendarWindow {
    limit: u32,
    calendar: Calendar,
}

impl CalendarWindow {
    /// Allows `limit` tokens, at least 1, per day.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[doc(alias = "per day")]
    #[must_use]
    #[track_caller]
    pub const fn daily(limit: u32) -> Self {
        Self::of(limit, Unit::Day)
    }

    /// Allows `limit` tokens, at least 1, per week. Weeks begin on the day `first`.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn weekly(limit: u32, first: Weekday) -> Self {
        Self::of(limit, Unit::Week(first))
    }

    /// Allows `limit` tokens, at least 1, per month. Months begin on their first day, or on the day set by
    /// [`from_day`](Self::from_day).
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[doc(alias = "per month")]
    #[doc(alias = "per_month")]
    #[must_use]
    #[track_caller]
    pub const fn monthly(limit: u32) -> Self {
        Self::of(limit, Unit::Month(1))
    }

    /// Allows `limit` tokens, at least 1, per year. Years begin on 1 January.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile-time error.
    #[must_use]
    #[track_caller]
    pub const fn yearly(limit: u32) -> Self {
        Self::of(limit, Unit::Year)
    }

    #[track_caller]
    const fn of(limit: u32, unit: Unit) -> Self {
        let limit = checked!(validation::tokens("limit", limit));
        Self { limit, calendar: Calendar { unit, every: 1, zone: Zone::Utc } }
    }

    /// Sets the day of the month on which months begin, from 1 to 31: a billing day. Shorter months begin on their last
    /// day: with 31, that is 28 February, 31 March, 30 April.
    ///
    /// # Panics
    ///
    /// Panics if there is no such day, or windows are not months. In a constant, this is a compile-time error.
    /// [`try_from_day`](Self::try_from_day) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn from_day(self, day: u8) -> Self {
        checked!(self.checked_from_day(day))
    }

    /// Fallible version of [`from_day`](Self::from_day).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such day, or windows are not months.
    pub fn try_from_day(self, day: u8) -> Result<Self, ConfigError> {
        Ok(self.checked_from_day(day)?)
    }

    const fn checked_from_day(mut self, day: u8) -> Result<Self, Fault> {
        self.calendar.unit = match (self.calendar.unit, validation::day_of_month(day as u32)) {
            (Unit::Month(_), Ok(day)) => Unit::Month(day),
            (Unit::Month(_), Err(fault)) => return Err(fault),
            _ => return Err(Fault::new("`from_day` is for months: use `CalendarWindow::monthly`, or leave it out")),
        };
        Ok(self)
    }

    /// Sets the time zone in which windows begin, by its name in the IANA database (`"Europe/Berlin"`, `"UTC"`), in
    /// upper or lower case. Defaults to UTC.
    ///
    /// ```
    /// use tower_ratelimit::CalendarWindow;
    ///
    /// let quota = CalendarWindow::monthly(10_000).in_zone("America/New_York");
    /// assert!(CalendarWindow::daily(1).try_in_zone("Europe/Atlantis").is_err());
    /// # let _ = quota;
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if there is no such time zone. [`try_in_zone`](Self::try_in_zone) returns an error instead.
    #[cfg(feature = "time-zones")]
    #[doc(alias = "time zone")]
    #[must_use]
    #[track_caller]
    pub fn in_zone(self, zone: &str) -> Self {
        or_panic(self.try_in_zone(zone))
    }

    /// Fallible version of [`in_zone`](Self::in_zone).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such time zone.
    #[cfg(feature = "time-zones")]
    pub fn try_in_zone(mut self, zone: &str) -> Result<Self, ConfigError> {
        let is_utc = zone.eq_ignore_ascii_case("UTC");
        self.calendar.zone = if is_utc { Zone::Utc } else { Zone::Named(NamedZone::find(zone)?) };
        Ok(self)
    }
}

impl From<CalendarWindow> for Algorithm {
    fn from(CalendarWindow { limit, calendar }: CalendarWindow) -> Self {
        let kind = Kind::Window(Some(calendar));
        Self { kind, amount: 0, overage: 0, capacity: limit.into(), span: 0, is_concurrency: false, term: 0 }
    }
}
