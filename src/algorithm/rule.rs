//! Decisions on a cost, which follow from the operations of a [`State`], once for all algorithms.

use super::settings::{Algorithm, Kind, Refill};
use super::state::{ChargeMark, CompactState, State};
use super::{bucket, counter, interval_bucket, lockout, window};

/// Whether a cost can be charged, and if not, when. Spans are in µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Availability {
    /// It is available. The request proceeds after `delay`.
    Now {
        delay: u64,
        /// Part of the cost exceeds the limit, and is taken from its overage.
        overage: bool,
    },
    /// It is available after this span, if nothing else is charged until then.
    After(u64),
    /// The cost exceeds the capacity.
    Never,
}

impl Availability {
    pub(crate) const NOW: Self = Self::Now { delay: 0, overage: false };

    pub(crate) const fn is_now(&self) -> bool {
        matches!(self, Self::Now { .. })
    }
}

/// The state of a limit for one key at one instant. Spans are in µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QuotaSnapshot {
    /// The largest cost that is available, in tokens.
    pub(crate) remaining: u64,
    /// The time until `remaining` grows, or `None` if it never does.
    pub(crate) more_after: Option<u64>,
    /// The time until the key is unused again.
    pub(crate) reset_after: u64,
}

impl Algorithm {
    /// Returns whether `cost` can be charged. A cost of 0 always can.
    #[inline(always)]
    pub(crate) fn availability<S: State + ?Sized>(&self, state: &S, now: u64, cost: u64) -> Availability {
        if cost == 0 {
            return Availability::NOW;
        }
        let Some(most) = self.hard_capacity().checked_sub(cost) else { return Availability::Never };
        match state.wait(self, now, most) {
            0 => Availability::Now {
                delay: if self.is_queue() { state.wait(self, now, 0) } else { 0 },
                overage: self.overage > 0 && state.used(self, now) + cost > self.capacity,
            },
            wait => Availability::After(wait),
        }
    }

    /// Returns the largest cost that is available without overage if `used` tokens are in use.
    #[inline]
    pub(crate) fn remaining(&self, used: u64) -> u64 {
        self.capacity.saturating_sub(used)
    }

    /// Returns the time until more tokens remain than now that `used` are in use, or `None` if that never happens.
    #[inline]
    pub(crate) fn more_after<S: State + ?Sized>(&self, state: &S, now: u64, used: u64) -> Option<u64> {
        used.min(self.capacity).checked_sub(1).map(|less| state.wait(self, now, less))
    }

    /// Returns the time until the key is unused again.
    #[inline]
    pub(crate) fn reset_after<S: State + ?Sized>(&self, state: &S, now: u64) -> u64 {
        match self.is_bucket() {
            true => state.wait(self, now, 0),
            false => state.expires_at().saturating_sub(now),
        }
    }

    /// Returns all that is reported of a key at this instant, at which `used` tokens are in use.
    pub(crate) fn snapshot<S: State + ?Sized>(&self, state: &S, now: u64, used: u64) -> QuotaSnapshot {
        QuotaSnapshot {
            remaining: self.remaining(used),
            more_after: self.more_after(state, now, used),
            reset_after: self.reset_after(state, now),
        }
    }
}

/// Calls the functions of the algorithm's file. A new algorithm with a compact state needs a line in each `match`.
///
/// These methods are always inlined, and so are the functions: calls would take another 90 instructions of a decision ("token
/// bucket" in `.ci/instructions`).
impl State for CompactState {
    #[inline]
    fn expires_at(&self) -> u64 {
        self.expires_at
    }

    #[inline(always)]
    fn used(&self, algorithm: &Algorithm, now: u64) -> u64 {
        match algorithm.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::used(algorithm, self, now),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => bucket::used(algorithm, self, now),
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::used(self, now),
            Kind::SlidingWindowCounter(_) => counter::used(algorithm, self, now),
            Kind::Penalty { .. } => 0,
            // `self` is the summary of a log.
            Kind::SlidingLog | Kind::SlidingWindow { .. } => self.detail,
        }
    }

    #[inline(always)]
    fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        match algorithm.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::wait(algorithm, self, now, most),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => {
                bucket::wait(algorithm, self, now, most)
            }
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::wait(self, now, most),
            Kind::SlidingWindowCounter(_) => counter::wait(algorithm, self, now, most),
            Kind::Penalty { .. } => lockout::wait(self, now),
            Kind::SlidingLog | Kind::SlidingWindow { .. } if self.detail <= most => 0,
            Kind::SlidingLog | Kind::SlidingWindow { .. } => self.at - now,
        }
    }

    #[inline]
    fn summary(&self, _: &Algorithm, _: u64) -> CompactState {
        *self
    }

    #[inline(always)]
    fn charge(&mut self, algorithm: &Algorithm, now: u64, cost: u64) -> u64 {
        match algorithm.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::charge(algorithm, self, now, cost),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => {
                bucket::charge(algorithm, self, now, cost)
            }
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::charge(algorithm, self, now, cost),
            Kind::SlidingWindowCounter(_) => counter::charge(algorithm, self, now, cost),
            Kind::Penalty { .. } => lockout::charge(algorithm, self, now),
            Kind::SlidingLog | Kind::SlidingWindow { .. } => unreachable!("the state of {algorithm:?} is a log"),
        }
    }

    fn refund(&mut self, algorithm: &Algorithm, mark: ChargeMark, now: u64, cost: u64) {
        match algorithm.kind {
            Kind::TokenBucket(Refill::Interval) => interval_bucket::refund(algorithm, self, mark, now, cost),
            Kind::TokenBucket(_) | Kind::LeakyBucket | Kind::LeakyBucketQueue => {
                bucket::refund(algorithm, self, mark, now, cost);
            }
            Kind::FixedWindow | Kind::CalendarWindow(_) => window::refund(self, mark, now, cost),
            Kind::SlidingWindowCounter(_) => counter::refund(algorithm, self, mark, now, cost),
            // A strike stays.
            Kind::Penalty { .. } => {}
            Kind::SlidingLog | Kind::SlidingWindow { .. } => unreachable!("the state of {algorithm:?} is a log"),
        }
    }
}
