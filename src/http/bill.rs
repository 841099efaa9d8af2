//! What one limit was paid for a request, and what it is due.

use super::ledger::Due;
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::limit::Limits;
use crate::store::Charge;

/// What a limit was paid for a request, and what it is due.
pub(super) struct Bill {
    pub(super) limit: usize,
    pub(super) key: KeyHash,
    pub(super) paid: u64,
    pub(super) due: u64,
}

impl Bill {
    pub(super) fn new(subject: &Outcome, decisions: &[Decision], due: &Due<'_>) -> Self {
        let limit = subject.limit();
        let charged = decisions.iter().filter(|decision| decision.is_charged()).flat_map(Decision::outcomes);
        let paid = charged.filter(|outcome| outcome.limit() == limit).map(Outcome::cost).sum();
        Self { limit, key: subject.key, paid, due: due(limit, paid) }
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
        let outcome = outcomes.iter_mut().find(|outcome| outcome.limit() == self.limit)?;
        let cost = outcome.cost.min(*left);
        *left -= cost;
        outcome.cost -= cost;
        (cost > 0).then(|| Outcome { cost, ..outcome.clone() })
    }

    pub(super) fn charges<'a>(bills: &[Self], limits: &'a Limits, cost: impl Fn(&Self) -> u64) -> Vec<Charge<'a>> {
        let charge = |bill: &Self| {
            let terms = limits.terms(bill.limit)?;
            Some(Charge { terms, key: bill.key, cost: cost(bill) })
        };
        bills.iter().filter_map(charge).collect()
    }
}
