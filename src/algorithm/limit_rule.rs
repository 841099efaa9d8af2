//! The rule of a limit: its algorithm, and its overage.

use super::key_state::StateMut;
use super::rate_algorithm::{Availability, Evaluation, QuotaSnapshot};
use super::state::ChargeMark;
use super::{Algorithm, PreparedAlgorithm};

/// A limit, and the ceiling that includes its overage: the same algorithm with more capacity. The ceiling decides. What
/// is left is reported of the limit.
///
/// States do not depend on the capacity, so that both read the same one.
#[derive(Clone, Debug)]
pub(crate) struct LimitRule {
    ceiling: Part,
    /// `None` if there is no overage: the limit is its own ceiling.
    limit: Option<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    algorithm: Algorithm,
    prepared: PreparedAlgorithm,
    /// The capacity of the algorithm.
    capacity: u64,
}

impl Part {
    fn new(algorithm: Algorithm) -> Self {
        Self { prepared: algorithm.prepare(), capacity: algorithm.capacity(), algorithm }
    }
}

impl LimitRule {
    /// Creates the rule of a limit with an overage of `percent` of its capacity.
    pub(crate) fn new(limit: &Algorithm, percent: u32) -> Self {
        let ceiling = limit.with_overage(percent);
        Self { ceiling: Part::new(ceiling), limit: (ceiling != *limit).then(|| Part::new(*limit)) }
    }

    /// Returns the limit without its overage.
    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.limit().algorithm
    }

    /// Returns the limit with its overage.
    pub(crate) fn ceiling(&self) -> &Algorithm {
        &self.ceiling.algorithm
    }

    /// Returns the largest cost that can ever be charged.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.ceiling.capacity
    }

    /// Returns the algorithm that decides.
    #[inline]
    pub(crate) fn deciding(&self) -> &PreparedAlgorithm {
        &self.ceiling.prepared
    }

    fn limit(&self) -> &Part {
        self.limit.as_ref().unwrap_or(&self.ceiling)
    }

    /// Returns whether `cost` can be charged. A cost of 0 always can.
    pub(crate) fn peek(&self, state: &StateMut<'_>, now: u64, cost: u64) -> Availability {
        if cost == 0 {
            return Availability::NOW;
        }
        match (self.deciding().peek(state, now, cost), &self.limit) {
            (Availability::Now { delay, .. }, Some(limit)) => {
                Availability::Now { delay, overage: !limit.prepared.peek(state, now, cost).is_now() }
            }
            (availability, _) => availability,
        }
    }

    /// Charges `cost`, which [`peek`](Self::peek) has found to be available. Returns the mark for a refund, and the
    /// remaining tokens.
    pub(crate) fn commit(&self, state: &mut StateMut<'_>, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        if cost == 0 {
            return (ChargeMark::NONE, self.snapshot(state, now));
        }
        let (mark, snapshot) = self.deciding().commit(state, now, cost);
        (mark, if self.limit.is_some() { self.snapshot(state, now) } else { snapshot })
    }

    /// Evaluates `cost` without charging it.
    pub(crate) fn evaluate(&self, state: &StateMut<'_>, now: u64, cost: u64) -> Evaluation {
        Evaluation::uncharged(self.peek(state, now, cost), self.snapshot(state, now))
    }

    /// Charges `cost` if it is available.
    pub(crate) fn decide(&self, state: &mut StateMut<'_>, now: u64, cost: u64) -> Evaluation {
        self.decide_then(state, now, cost, |evaluation| evaluation)
    }

    /// Charges `cost` if it is available, and passes the evaluation to `then`.
    ///
    /// `then` runs where the evaluation is computed, so that its result is built in place rather than copied.
    #[inline]
    pub(crate) fn decide_then<R>(
        &self,
        state: &mut StateMut<'_>,
        now: u64,
        cost: u64,
        then: impl FnOnce(Evaluation) -> R,
    ) -> R {
        if self.limit.is_none() && cost > 0 {
            return self.ceiling.prepared.decide_then(state, now, cost, then);
        }
        then(self.decide_by_parts(state, now, cost))
    }

    /// Charges `cost` if it is available, of a limit with overage or for a cost of 0.
    fn decide_by_parts(&self, state: &mut StateMut<'_>, now: u64, cost: u64) -> Evaluation {
        let availability = self.peek(state, now, cost);
        if availability.is_now() {
            let (mark, snapshot) = self.commit(state, now, cost);
            Evaluation { availability, mark, snapshot }
        } else {
            Evaluation::uncharged(availability, self.snapshot(state, now))
        }
    }

    /// Returns the remaining tokens.
    pub(crate) fn snapshot(&self, state: &StateMut<'_>, now: u64) -> QuotaSnapshot {
        self.limit().prepared.snapshot(state, now)
    }

    /// Refunds a charge of `cost`, as far as it still counts.
    pub(crate) fn refund(&self, state: &mut StateMut<'_>, mark: ChargeMark, now: u64, cost: u64) {
        self.deciding().refund(state, mark, now, cost);
    }
}
