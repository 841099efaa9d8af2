//! What one limit was paid for a request, and what it is due.

use std::sync::Arc;

use super::ledger::Due;
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::store::{Charge, LimitSpec};

/// What a limit was paid for a request, and what it is due.
pub(super) struct Bill {
    /// Of its size for the request.
    pub(super) spec: Arc<LimitSpec>,
    pub(super) key: KeyHash,
    pub(super) paid: u64,
    pub(super) due: u64,
}

impl Bill {
    pub(super) fn new(spec: &Arc<LimitSpec>, key: KeyHash, decisions: &[Decision], due: &Due<'_>) -> Self {
        let limit = usize::from(spec.index());
        let charged = decisions.iter().filter(|decision| decision.is_charged()).flat_map(Decision::outcomes);
        let paid = charged.filter(|outcome| is_paid_to(outcome, limit)).map(Outcome::cost).sum();
        Self { spec: spec.clone(), key, paid, due: due(limit, paid) }
    }

    /// The same, of the limit with all its overage.
    pub(super) fn at_ceiling(&self) -> Self {
        Self { spec: Arc::new(self.spec.at_ceiling()), ..*self }
    }

    /// The same, of the limit whose denials count for no penalty.
    pub(super) fn without_strikes(&self) -> Self {
        Self { spec: self.spec.without_strikes(), ..*self }
    }

    /// The position of its limit.
    pub(super) fn limit(&self) -> usize {
        self.spec.index().into()
    }

    /// What is missing.
    pub(super) fn more(&self) -> u64 {
        self.due.saturating_sub(self.paid)
    }

    /// What is too much.
    pub(super) fn less(&self) -> u64 {
        self.paid.saturating_sub(self.due)
    }

    /// Takes out of a charge what is `left` of what was too much.
    pub(super) fn take(&self, outcomes: &mut [Outcome], left: &mut u64) -> Option<Outcome> {
        let outcome = outcomes.iter_mut().find(|outcome| is_paid_to(outcome, self.limit()))?;
        let cost = outcome.cost.min(*left);
        *left -= cost;
        outcome.cost -= cost;
        let mut taken = outcome.clone();
        taken.cost = cost;
        (cost > 0).then_some(taken)
    }

    pub(super) fn charges(bills: &[Self], cost: impl Fn(&Self) -> u64) -> Vec<Charge<'_>> {
        bills.iter().map(|bill| Charge { spec: &bill.spec, key: bill.key, cost: cost(bill) }).collect()
    }
}

/// Whether a charge was taken from a limit: one that is not enforced may have had no room.
fn is_paid_to(outcome: &Outcome, limit: usize) -> bool {
    outcome.limit() == limit && outcome.is_allowed()
}
