//! The balance of a request with one limit: the tokens that it has paid, and those that it should have paid.

use std::sync::Arc;

use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::store::{Charge, LimitSpec, OwnedCharge};

/// Returns the total cost that a request should have under the limit with the given index, given the tokens paid so
/// far.
pub(super) type TargetCost<'a> = dyn Fn(usize, u64) -> u64 + Send + Sync + 'a;

/// The balance of a request with one limit.
pub(super) struct Balance {
    /// The limit in its size for the request, the key, and the total cost that the request should have.
    pub(super) target: OwnedCharge,
    /// The tokens that the limit was paid.
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

    /// Returns the tokens that are missing to the target cost.
    pub(super) fn missing(&self) -> u64 {
        self.target.cost.saturating_sub(self.paid)
    }

    /// Returns the tokens paid in excess of the target cost.
    pub(super) fn excess(&self) -> u64 {
        self.paid.saturating_sub(self.target.cost)
    }

    /// Takes up to `excess` tokens out of a charge. Returns them as an outcome to refund.
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

/// Returns whether an outcome took tokens from a limit: one that is not enforced may have had no capacity.
fn is_payment_to(outcome: &Outcome, limit: usize) -> bool {
    outcome.limit() == limit && outcome.is_allowed()
}
