//! An algorithm, prepared to decide.

use super::calendar_window::CalendarWindow;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::gcra_queue::GcraQueue;
use super::interval_bucket::IntervalBucket;
use super::kind::Algorithm;
use super::log::{Log, LogWindow};
use super::rate_algorithm::RateAlgorithm;
use super::sliding_window_counter::SlidingWindowCounter;
use super::state::CompactState;
use super::token_bucket::Refill;

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

/// A [`RateAlgorithm`] by its type of state.
pub(crate) enum ByState<'a> {
    Compact(&'a dyn RateAlgorithm<CompactState>),
    Log(&'a dyn RateAlgorithm<Log>),
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

impl PreparedAlgorithm {
    pub(crate) fn by_state(&self) -> ByState<'_> {
        match self {
            Self::Gcra(rule) => ByState::Compact(rule),
            Self::GcraQueue(rule) => ByState::Compact(rule),
            Self::IntervalBucket(rule) => ByState::Compact(rule),
            Self::FixedWindow(rule) => ByState::Compact(rule),
            Self::CalendarWindow(rule) => ByState::Compact(rule),
            Self::SlidingWindowCounter(rule) => ByState::Compact(rule),
            Self::LogWindow(rule) => ByState::Log(rule),
        }
    }
}
