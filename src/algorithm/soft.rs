//! A limit with overage.

use super::rate_algorithm::{Availability, QuotaSnapshot, RateAlgorithm};
use super::state::ChargeMark;

/// Decides by `ceiling`, and reports what is left of `limit`: the same algorithm with less capacity. The state does not
/// depend on the capacity, so that both read the same one.
pub(crate) struct SoftLimit<'a, S> {
    pub(crate) limit: &'a dyn RateAlgorithm<S>,
    pub(crate) ceiling: &'a dyn RateAlgorithm<S>,
}

impl<S> RateAlgorithm<S> for SoftLimit<'_, S> {
    fn peek(&self, state: &S, now: u64, cost: u64) -> Availability {
        match self.ceiling.peek(state, now, cost) {
            Availability::Now { delay, .. } => {
                Availability::Now { delay, overage: !self.limit.peek(state, now, cost).is_now() }
            }
            unavailable => unavailable,
        }
    }

    fn commit(&self, state: &mut S, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let (mark, _) = self.ceiling.commit(state, now, cost);
        (mark, self.limit.snapshot(state, now))
    }

    fn snapshot(&self, state: &S, now: u64) -> QuotaSnapshot {
        self.limit.snapshot(state, now)
    }

    fn refund(&self, state: &mut S, mark: ChargeMark, now: u64, cost: u64) {
        self.ceiling.refund(state, mark, now, cost);
    }

    fn convert_rate(&self, state: &mut S, now: u64) {
        self.ceiling.convert_rate(state, now);
    }
}
