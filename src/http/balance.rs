//! What one limit has been paid for a request, and what it should have been paid.

use std::sync::Arc;

use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::store::{Charge, LimitSpec, OwnedCharge};

/// Returns the cost that a request should have in all under the limit with the given index, given what was paid so far.
pub(super) type TargetCost<'a> = dyn Fn(usize, u64) -> u64 + Send + Sync + 'a;

/// The balance of a request with one limit.
pub(super) struct Balance {
    /// The limit in its size for the request, the key, and the cost that the request should have in all.
    pub(super) target: OwnedCharge,
    /// What the limit was paid.
    pub(super) paid: u64,
}

impl Balance {
    /// Creates the balance from the decisions about the request.
    pub(super) fn new(spec: &Arc<LimitSpec>, key: KeyHash, decisions: &[Decision], target: &TargetCost<'_>) -> Self {
        let limit = usize::from(spec.index());
        let charged = decisions.iter().filter(|decision| decision.is_charged()).flat_map(Decision::outcomes);
        let paid = charged.filter(|outcome| is_payment_to(outcome, limit)).map(Outcome::cost).sum();
        Self { target: OwnedCharge { spec: spec.clone(), key, cost: target(limit, paid) }, paid }
    }

    /// Returns the balance with the limit in another size.
    fn with_spec(&self, spec: Arc<LimitSpec>) -> Self {
        Self { target: OwnedCharge { spec, ..self.target }, paid: self.paid }
    }

    /// Returns the balance with the limit extended by all its overage.
    pub(super) fn at_ceiling(&self) -> Self {
        self.with_spec(Arc::new(self.target.spec.with_overage_reported()))
    }

    /// Returns the balance with the limit in a version whose denials do not count towards penalties.
    pub(super) fn without_strikes(&self) -> Self {
        self.with_spec(self.target.spec.without_strikes())
    }

    /// Returns the limit's index.
    pub(super) fn limit(&self) -> usize {
        self.target.spec.index().into()
    }

    /// Returns what is missing.
    pub(super) fn missing(&self) -> u64 {
        self.target.cost.saturating_sub(self.paid)
    }

    /// Returns what was paid in excess.
    pub(super) fn excess(&self) -> u64 {
        self.paid.saturating_sub(self.target.cost)
    }

    /// Takes at most `excess` out of a charge, and returns what was taken.
    pub(super) fn take_excess(&self, outcomes: &mut [Outcome], excess: &mut u64) -> Option<Outcome> {
        let outcome = outcomes.iter_mut().find(|outcome| is_payment_to(outcome, self.limit()))?;
        let cost = outcome.cost.min(*excess);
        *excess -= cost;
        outcome.cost -= cost;
        let mut taken = outcome.clone();
        taken.cost = cost;
        (cost > 0).then_some(taken)
    }
}

/// Returns one charge for each balance, at a cost that depends on the balance.
pub(super) fn charges(balances: &[Balance], cost: impl Fn(&Balance) -> u64) -> Vec<Charge<'_>> {
    balances.iter().map(|balance| Charge { cost: cost(balance), ..balance.target.as_charge() }).collect()
}

/// Returns whether an outcome took tokens from a limit: one that is not enforced may have had no room.
fn is_payment_to(outcome: &Outcome, limit: usize) -> bool {
    outcome.limit() == limit && outcome.is_allowed()
}
