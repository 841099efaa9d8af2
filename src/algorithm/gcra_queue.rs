//! GCRA as a queue: each request waits until the backlog before it has drained.

use super::gcra::Gcra;
use super::rate_algorithm::{Availability, Evaluation, QuotaSnapshot, RateAlgorithm};
use super::state::{ChargeMark, CompactState};
use super::tat::Tat;

#[derive(Clone, Copy, Debug)]
pub(crate) struct GcraQueue(pub(crate) Gcra);

impl RateAlgorithm<CompactState> for GcraQueue {
    #[inline]
    fn peek(&self, state: &CompactState, now: u64, cost: u64) -> Availability {
        match self.0.peek(state, now, cost) {
            Availability::Now { overage, .. } => {
                Availability::Now { delay: self.0.backlog_micros(state, now), overage }
            }
            unavailable => unavailable,
        }
    }

    /// The mark is the state that the charge leaves.
    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, cost: u64) -> (ChargeMark, QuotaSnapshot) {
        let (_, snapshot) = self.0.commit(state, now, cost);
        ((*state).into(), snapshot)
    }

    #[inline]
    fn decide(&self, state: &mut CompactState, now: u64, cost: u64) -> Evaluation {
        let delay = self.0.backlog_micros(state, now);
        let evaluation = self.0.decide(state, now, cost);
        match evaluation.availability {
            Availability::Now { overage, .. } => {
                Evaluation { availability: Availability::Now { delay, overage }, mark: (*state).into(), ..evaluation }
            }
            _ => evaluation,
        }
    }

    #[inline]
    fn snapshot(&self, state: &CompactState, now: u64) -> QuotaSnapshot {
        self.0.snapshot(state, now)
    }

    /// Gives the last charge back. Requests behind any other have been promised their instants.
    fn refund(&self, state: &mut CompactState, mark: ChargeMark, now: u64, cost: u64) {
        let [tat, marked] = [*state, mark.into()].map(|state| Tat::decode(&state, self.0.amount));
        if tat.is_same_instant(&marked) {
            self.0.uncharge(state, now, cost);
        }
    }

    fn convert_rate(&self, state: &mut CompactState, now: u64) {
        self.0.convert_rate(state, now);
    }
}
