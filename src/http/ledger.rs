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
    pages: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    decisions: Vec<Decision>,
    /// The variants of the limiter that have charged here. None does so twice: a request that meets
    /// one again is another, which a handler has made of the first with its extensions, or is to be
    /// charged twice.
    variants: Vec<Arc<Shared>>,
}

/// The notes of all limiters that the request has passed.
#[derive(Clone, Debug, Default)]
struct Ledgers(SmallVec<[Arc<Ledger>; 2]>);

impl Ledger {
    /// Notes what was decided about the request with these extensions.
    pub(super) fn open(shared: &Arc<Shared>, decision: Decision, extensions: &mut Extensions) -> Arc<Self> {
        let pages = Pages { decisions: vec![decision], variants: vec![shared.clone()] };
        let ledger = Arc::new(Self { identity: shared.identity.clone(), pages: Mutex::new(pages) });
        extensions.get_or_insert_default::<Ledgers>().0.push(ledger.clone());
        ledger
    }

    /// The note that another variant of the limiter has left further out, for this one to charge on.
    pub(super) fn find(shared: &Arc<Shared>, extensions: &Extensions) -> Option<Arc<Self>> {
        let Ledgers(ledgers) = extensions.get()?;
        let ledger = ledgers.iter().rev().find(|ledger| Arc::ptr_eq(&ledger.identity, &shared.identity))?;
        let mut pages = ledger.pages();
        let is_new = !pages.variants.iter().any(|variant| Arc::ptr_eq(variant, shared));
        if !is_new || pages.decisions.is_empty() {
            return None;
        }
        // At once: of several requests with one note, one may use it.
        pages.variants.push(shared.clone());
        Some(ledger.clone())
    }

    /// Adds a later decision.
    pub(super) fn add(&self, decision: Decision) {
        self.pages().decisions.push(decision);
    }

    /// Tells the last decision.
    pub(super) fn write(&self, shared: &Shared, headers: &mut HeaderMap) {
        if let Some(decision) = self.pages().decisions.last() {
            shared.headers.write(decision, headers);
        }
    }

    /// Charges the difference to `cost`, all or nothing: if that is denied, what was charged is
    /// given back, and the whole is asked for once more, so that the answer says how long to wait
    /// for it.
    pub(super) async fn adjust(self: Arc<Self>, shared: Arc<Shared>, cost: u64) -> Asked {
        self.settle(&shared, cost).await.map(Some).map_err(Failure::Store)
    }

    async fn settle(&self, shared: &Arc<Shared>, cost: u64) -> Result<Decision, StoreError> {
        let (bills, refunds) = self.bills(shared, cost);
        if !refunds.is_empty() {
            shared.store.refund(&refunds).await?;
        }
        let more = Bill::charges(&bills, shared, |bill| bill.due.saturating_sub(bill.paid));
        let decision = shared.store.acquire(&more).await?;
        if decision.is_allowed() {
            return Ok(decision);
        }
        // The last first: a queue lets only its last go.
        let charged = std::mem::take(&mut self.pages().decisions);
        for decision in charged.into_iter().rev() {
            limiter::refund(&*shared.store, &shared.limits, &decision.into_receipt()).await?;
        }
        let all = Bill::charges(&bills, shared, |bill| bill.due);
        shared.store.acquire(&all).await
    }

    /// What each limit was paid and is due, and what is to be given back of what it was paid.
    fn bills<'a>(&self, shared: &'a Arc<Shared>, cost: u64) -> (Vec<Bill>, Vec<Refund<'a>>) {
        let mut pages = self.pages();
        let charged = &mut pages.decisions;
        let first = charged.first().map_or(&[][..], Decision::outcomes);
        let bills: Vec<Bill> = first.iter().map(|outcome| Bill::new(outcome, charged, shared, cost)).collect();
        let refunds = bills.iter().flat_map(|bill| bill.refunds(charged, shared)).collect();
        (bills, refunds)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
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
        let outcomes = charged.iter().filter(|decision| decision.is_charged()).flat_map(Decision::outcomes);
        let paid = outcomes.filter(|outcome| outcome.limit() == limit).map(Outcome::cost).sum();
        let has_own_cost = shared.limits.as_slice().get(limit).is_none_or(|limit| limit.own_cost().is_some());
        Self { limit, key: first.key, paid, due: if has_own_cost { paid } else { cost } }
    }

    /// Takes out of the charges what was too much, of the last charge first.
    fn refunds<'a>(&self, charged: &mut [Decision], shared: &'a Shared) -> Vec<Refund<'a>> {
        let Some(terms) = shared.limits.terms(self.limit) else { return Vec::new() };
        let charged = charged.iter_mut().rev().filter(|decision| decision.is_charged());
        let outcomes = charged.flat_map(Decision::outcomes_mut);
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
