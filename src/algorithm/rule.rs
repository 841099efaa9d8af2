//! Decisions on a cost, which follow from the operations of a [`KeyState`], once for all algorithms.

use super::key_state::KeyState;
use super::settings::{Algorithm, Kind};
use super::state::CompactState;
use super::{bucket, counter, interval_bucket, penalty, window};

/// The wait for a cost that exceeds the capacity.
pub(crate) const NEVER: u64 = u64::MAX;

impl Algorithm {
    /// Returns the time until `cost` can be charged if nothing else is charged until then: 0 if it can be now, or
    /// [`NEVER`]. A cost of 0 always can.
    #[inline(always)]
    pub(crate) fn wait(&self, state: &KeyState, now: u64, cost: u64) -> u64 {
        match self.hard_capacity().checked_sub(cost) {
            _ if cost == 0 => 0,
            Some(most) => state.wait(self, now, most),
            None => NEVER,
        }
    }

    /// Returns the time for which a request that can be charged `cost` waits before it proceeds.
    #[inline(always)]
    pub(crate) fn delay(&self, state: &KeyState, now: u64, cost: u64) -> u64 {
        if self.is_queue() && cost > 0 { state.wait(self, now, 0) } else { 0 }
    }

    /// Returns the largest cost that is available without overage if `used` tokens are in use.
    #[inline]
    pub(crate) fn remaining(&self, used: u64) -> u64 {
        self.capacity.saturating_sub(used)
    }

    /// Returns the time until more tokens remain than now that `used` are in use, or `None` if that never happens.
    #[inline]
    pub(crate) fn more_after(&self, state: &CompactState, now: u64, used: u64) -> Option<u64> {
        used.min(self.capacity).checked_sub(1).map(|less| state.wait(self, now, less))
    }

    /// Returns the time until the key is unused again.
    #[inline]
    pub(crate) fn reset_after(&self, state: &CompactState, now: u64) -> u64 {
        match self.is_bucket() {
            true => state.wait(self, now, 0),
            false => state.expires_at.saturating_sub(now),
        }
    }
}

/// Calls the functions of the algorithm's file. A new algorithm with a compact state needs a line in each `match`.
///
/// These methods are always inlined, and so are the functions: calls would take another 90 instructions of a decision
/// ("token bucket" in `.ci/instructions`).
impl CompactState {
    #[inline(always)]
    pub(crate) fn used(&self, algorithm: &Algorithm, now: u64) -> u64 {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::used(algorithm, self, now),
            Kind::Bucket(_) => bucket::used(algorithm, self, now),
            Kind::Window(_) => window::used(self, now),
            Kind::Counter(_) => counter::used(algorithm, self, now),
            Kind::Penalty { .. } => 0,
            // `self` is the summary of a log.
            Kind::Log(_) => self.detail,
        }
    }

    #[inline(always)]
    pub(crate) fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::wait(algorithm, self, now, most),
            Kind::Bucket(_) => bucket::wait(algorithm, self, now, most),
            Kind::Window(_) => window::wait(self, now, most),
            Kind::Counter(_) => counter::wait(algorithm, self, now, most),
            Kind::Penalty { .. } => penalty::wait(self, now),
            Kind::Log(_) if self.detail <= most => 0,
            Kind::Log(_) => self.at - now,
        }
    }

    #[inline(always)]
    pub(super) fn charge(&mut self, algorithm: &Algorithm, now: u64, cost: u64) -> u64 {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::charge(algorithm, self, now, cost),
            Kind::Bucket(_) => bucket::charge(algorithm, self, now, cost),
            Kind::Window(_) => window::charge(algorithm, self, now, cost),
            Kind::Counter(_) => counter::charge(algorithm, self, now, cost),
            Kind::Penalty { .. } => penalty::charge(algorithm, self, now),
            Kind::Log(_) => unreachable!("the state of {algorithm:?} is a log"),
        }
    }

    pub(super) fn refund(&mut self, algorithm: &Algorithm, mark: CompactState, now: u64, cost: u64) {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::refund(algorithm, self, mark, now, cost),
            Kind::Bucket(_) => bucket::refund(algorithm, self, mark, now, cost),
            Kind::Window(_) => window::refund(self, mark, now, cost),
            Kind::Counter(_) => counter::refund(algorithm, self, mark, now, cost),
            // A strike stays.
            // An unused log has no charges.
            Kind::Penalty { .. } | Kind::Log(_) => {}
        }
    }
}
