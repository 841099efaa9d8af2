//! An algorithm, prepared to decide.

use super::calendar_window::CalendarWindow;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::gcra_queue::GcraQueue;
use super::interval_bucket::IntervalBucket;
use super::key_state::{KeyState, StateMut};
use super::kind::Algorithm;
use super::log::{Log, LogWindow};
use super::rate_algorithm::{Availability, Evaluation, QuotaSnapshot, RateAlgorithm};
use super::sliding_window_counter::SlidingWindowCounter;
use super::state::{ChargeMark, CompactState};
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
