//! The rule of a limit: its algorithm, and its overage.

use super::key_state::StateMut;
use super::kind::Algorithm;
use super::prepared::PreparedAlgorithm;
use super::rate_algorithm::{Availability, QuotaSnapshot};
use super::state::ChargeMark;

/// A limit, and the ceiling that includes its overage: the same algorithm with more capacity. The ceiling decides. What
/// is left is reported of the limit.
///
/// States do not depend on the capacity, so that both read the same one.
#[derive(Clone, Debug)]
pub(crate) struct LimitRule {
    limit: Part,
    /// `None` if there is no overage.
    ceiling: Option<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    algorithm: Algorithm,
    prepared: PreparedAlgorithm,
}

impl Part {
    fn new(algorithm: Algorithm) -> Self {
        Self { prepared: algorithm.prepare(), algorithm }
    }
}

impl LimitRule {
    /// Creates the rule of a limit with an overage of `percent` of its capacity.
    pub(crate) fn new(limit: &Algorithm, percent: u32) -> Self {
        let ceiling = limit.raised(percent);
        Self { limit: Part::new(*limit), ceiling: (ceiling != *limit).then(|| Part::new(ceiling)) }
    }

    /// The limit without its overage.
    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.limit.algorithm
    }

    /// The limit with its overage.
    #[inline]
    pub(crate) fn ceiling(&self) -> &Algorithm {
        &self.deciding_part().algorithm
    }

    /// The algorithm that reports what is left.
    #[cfg(feature = "redis")]
    pub(crate) fn reporting(&self) -> &PreparedAlgorithm {
        &self.limit.prepared
    }

    /// The algorithm that decides.
    #[inline]
    pub(crate) fn deciding(&self) -> &PreparedAlgorithm {
        &self.deciding_part().prepared
    }

    #[inline]
    fn deciding_part(&self) -> &Part {
        self.ceiling.as_ref().unwrap_or(&self.limit)
    }

    /// Returns whether `cost` can be charged. A cost of 0 always can.
    pub(crate) fn peek(&self, state: &StateMut<'_>, now: u64, cost: u64) -> Availability {
        if cost == 0 {
            return Availability::NOW;
        }
        let availability = self.deciding().peek(state, now, cost);
        match availability {
            Availability::Now { delay, .. } if self.ceiling.is_some() => {
                Availability::Now { delay, overage: !self.limit.prepared.peek(state, now, cost).is_now() }
            }
            _ => availability,
        }
    }

    /// Charges `cost`, which [`peek`](Self::peek) has found to be available. Returns what a refund needs, and what is
    /// left.
    pub(crate) fn commit(&self, state: &mut StateMut<'_>, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        if cost == 0 {
            return (ChargeMark::NONE, self.snapshot(state, now));
        }
        let (mark, snapshot) = self.deciding().commit(state, now, cost);
        (mark, if self.ceiling.is_some() { self.snapshot(state, now) } else { snapshot })
    }

    /// Returns what is left, where `cost` is not charged.
    pub(crate) fn skip(&self, state: &mut StateMut<'_>, now: u64, cost: u64) -> QuotaSnapshot {
        if cost > 0 {
            self.deciding().convert_rate(state, now);
        }
        self.snapshot(state, now)
    }

    /// Charges `cost` if it is available.
    #[inline]
    pub(crate) fn decide(
        &self,
        state: &mut StateMut<'_>,
        now: u64,
        cost: u64,
    ) -> (Availability, ChargeMark, QuotaSnapshot) {
        if self.ceiling.is_none() && cost > 0 {
            // Most limits: one call, which saves a sixth of the instructions ("token bucket" in `.ci/instructions`).
            return self.limit.prepared.decide(state, now, cost);
        }
        self.decide_by_parts(state, now, cost)
    }

    /// Charges `cost` if it is available, of a limit with overage or for a cost of 0.
    fn decide_by_parts(
        &self,
        state: &mut StateMut<'_>,
        now: u64,
        cost: u64,
    ) -> (Availability, ChargeMark, QuotaSnapshot) {
        let availability = self.peek(state, now, cost);
        if availability.is_now() {
            let (mark, snapshot) = self.commit(state, now, cost);
            (availability, mark, snapshot)
        } else {
            (availability, ChargeMark::NONE, self.skip(state, now, cost))
        }
    }

    /// Returns what is left.
    pub(crate) fn snapshot(&self, state: &StateMut<'_>, now: u64) -> QuotaSnapshot {
        self.limit.prepared.snapshot(state, now)
    }

    /// Gives back as much of a charge of `cost` as still counts.
    pub(crate) fn refund(&self, state: &mut StateMut<'_>, mark: ChargeMark, now: u64, cost: u64) {
        self.deciding().refund(state, mark, now, cost);
    }
}
