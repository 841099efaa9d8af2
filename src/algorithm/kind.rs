//! Any of the algorithms: the list that a new algorithm is added to.

use std::time::Duration;

use super::calendar_window::CalendarWindow;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::gcra_queue::GcraQueue;
use super::interval_bucket::IntervalBucket;
use super::key_state::{KeyState, StateMut};
use super::leaky_bucket::LeakyBucket;
use super::leaky_bucket_queue::LeakyBucketQueue;
use super::log::{Log, LogWindow};
use super::rate_algorithm::{Availability, Evaluation, QuotaSnapshot, RateAlgorithm};
use super::settings::Settings;
use super::size::Size;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::sliding_window_counter::SlidingWindowCounter;
use super::state::{ChargeMark, CompactState};
use super::state_period::StatePeriod;
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

    /// Returns the tag that separates this algorithm's storage keys from others', whose states mean something else.
    pub(crate) fn tag(&self) -> &'static str {
        with_settings!(self, limit => limit.tag())
    }

    /// Returns the period that the stored state is relative to.
    pub(crate) fn state_period(&self) -> StatePeriod {
        with_settings!(self, limit => limit.state_period())
    }

    /// Returns the limit that each of `parts` processes, from 1, may enforce without knowing of the others.
    pub(crate) fn share(&self, parts: u32) -> Self {
        with_settings!(self, limit => limit.share(parts).into())
    }

    /// Returns the algorithm with `percent` more capacity, rounded down to whole tokens, and at most 2^32 − 1.
    pub(crate) fn with_overage(&self, percent: u32) -> Self {
        with_settings!(self, limit => limit.with_overage(percent).into())
    }

    /// Returns the tokens of the limit: all that an override changes.
    pub(crate) fn size(&self) -> Size {
        with_settings!(self, limit => limit.size())
    }

    /// Returns the algorithm with another size, or `None` if a number of the size is 0.
    pub(crate) fn with_size(&self, size: Size) -> Option<Self> {
        with_settings!(self, limit => limit.with_size(size).map(Into::into))
    }

    /// Describes the settings, for error messages.
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

/// The [`RateAlgorithm`] by which an [`Algorithm`] decides: several have the same.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PreparedAlgorithm {
    /// A continuous token bucket, or a leaky bucket as a meter.
    Gcra(Gcra),
    /// A leaky bucket as a queue.
    GcraQueue(GcraQueue),
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
            Self::LeakyBucketQueue(limit) => PreparedAlgorithm::GcraQueue(limit.gcra_queue()),
        }
    }
}

/// Calls a method of the [`RateAlgorithm`] with the state that belongs to it.
macro_rules! with_state {
    ($prepared:expr, $state:expr, ($algorithm:ident, $of:ident) => $call:expr) => {
        match ($prepared, $state) {
            (PreparedAlgorithm::Gcra($algorithm), StateMut::Compact($of)) => $call,
            (PreparedAlgorithm::GcraQueue($algorithm), StateMut::Compact($of)) => $call,
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

    /// Decides, and returns what `then` makes of the evaluation: see [`LimitRule::decide_then`](super::LimitRule).
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

    pub(super) fn convert_rate(&self, state: &mut StateMut<'_>, now: u64) {
        with_state!(self, state, (algorithm, state) => algorithm.convert_rate(state, now));
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
