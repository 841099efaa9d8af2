//! What the same limiter further out has charged a request, for a route that costs something else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Extensions, HeaderMap};
use smallvec::SmallVec;

use super::charge::{Asked, Failure};
use super::shared::{Identity, Shared};
use crate::decision::{Decision, Outcome};
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::limiter;
use crate::store::{Charge, Refund};

/// A note among a request's extensions: the limiter's decisions about it so far.
#[derive(Debug)]
pub(super) struct Ledger {
    identity: Arc<Identity>,
    decisions: Mutex<Vec<Decision>>,
}

/// The notes of all limiters that the request has passed.
#[derive(Clone, Debug, Default)]
struct Ledgers(SmallVec<[Arc<Ledger>; 2]>);

impl Ledger {
    /// Notes what was decided about the request with these extensions.
    pub(super) fn open(shared: &Shared, decision: Decision, extensions: &mut Extensions) -> Arc<Self> {
        let ledger = Arc::new(Self { identity: shared.identity.clone(), decisions: Mutex::new(vec![decision]) });
        extensions.get_or_insert_default::<Ledgers>().0.push(ledger.clone());
        ledger
    }

    /// The note that the same limiter further out has left.
    pub(super) fn find(shared: &Shared, extensions: &Extensions) -> Option<Arc<Self>> {
        let Ledgers(ledgers) = extensions.get()?;
        ledgers.iter().find(|ledger| Arc::ptr_eq(&ledger.identity, &shared.identity)).cloned()
    }

    /// Adds a later decision.
    pub(super) fn add(&self, decision: Decision) {
        self.decisions().push(decision);
    }

    /// Tells the last decision.
    pub(super) fn write(&self, shared: &Shared, headers: &mut HeaderMap) {
        if let Some(decision) = self.decisions().last() {
            shared.headers.write(decision, headers);
        }
    }

    /// Charges the difference to `cost`, all or nothing: if that is denied, what was charged is
    /// given back, and the whole is asked for once more, so that the answer says how long to wait
    /// for it.
    pub(super) async fn adjust(self: Arc<Self>, shared: Arc<Shared>, cost: u64) -> Asked {
        let charged = std::mem::take(&mut *self.decisions());
        self.settle(&shared, charged, cost).await.map_err(Failure::Store)
    }

    async fn settle(
        &self,
        shared: &Shared,
        mut charged: Vec<Decision>,
        cost: u64,
    ) -> Result<Option<Decision>, StoreError> {
        let bills: Vec<Bill> = match charged.first() {
            Some(first) => first.outcomes().iter().map(|outcome| Bill::new(outcome, &charged, shared, cost)).collect(),
            None => return Ok(None),
        };
        let refunds: Vec<Refund<'_>> = bills.iter().flat_map(|bill| bill.refunds(&mut charged, shared)).collect();
        if !refunds.is_empty() {
            shared.store.refund(&refunds).await?;
        }
        let more = Bill::charges(&bills, shared, |bill| bill.due.saturating_sub(bill.paid));
        let decision = shared.store.acquire(&more).await?;
        if decision.is_allowed() {
            self.decisions().append(&mut charged);
            return Ok(Some(decision));
        }
        // The last first: a queue lets only its last go.
        for decision in charged.into_iter().rev() {
            limiter::refund(&*shared.store, &shared.limits, &decision.into_receipt()).await?;
        }
        let all = Bill::charges(&bills, shared, |bill| bill.due);
        shared.store.acquire(&all).await.map(Some)
    }

    fn decisions(&self) -> MutexGuard<'_, Vec<Decision>> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a limit was paid for a request, and what it is due.
struct Bill {
    limit: usize,
    key: KeyHash,
    paid: u64,
    due: u64,
}

impl Bill {
    fn new(first: &Outcome, charged: &[Decision], shared: &Shared, cost: u64) -> Self {
        let limit = first.limit();
        let outcomes = charged.iter().flat_map(Decision::outcomes);
        let paid = outcomes.filter(|outcome| outcome.limit() == limit).map(Outcome::cost).sum();
        let has_own_cost = shared.limits.as_slice().get(limit).is_none_or(|limit| limit.own_cost().is_some());
        Self { limit, key: first.key, paid, due: if has_own_cost { paid } else { cost } }
    }

    /// Takes out of the charges what was too much, of the last charge first.
    fn refunds<'a>(&self, charged: &mut [Decision], shared: &'a Shared) -> Vec<Refund<'a>> {
        let Some(terms) = shared.limits.terms(self.limit) else { return Vec::new() };
        let outcomes = charged.iter_mut().rev().flat_map(Decision::outcomes_mut);
        let mut too_much = self.paid.saturating_sub(self.due);
        let mut refunds = Vec::new();
        for outcome in outcomes.filter(|outcome| outcome.limit() == self.limit) {
            let cost = too_much.min(outcome.cost);
            if cost > 0 {
                too_much -= cost;
                outcome.cost -= cost;
                refunds.push(Refund { terms, key: self.key, cost, mark: outcome.mark });
            }
        }
        refunds
    }

    fn charges<'a>(bills: &[Self], shared: &'a Shared, cost: impl Fn(&Self) -> u64) -> Vec<Charge<'a>> {
        let charge = |bill: &Self| {
            let terms = shared.limits.terms(bill.limit)?;
            Some(Charge { terms, key: bill.key, cost: cost(bill) })
        };
        bills.iter().filter_map(charge).collect()
    }
}
