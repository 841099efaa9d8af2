//! What the same limiter further out has charged a request, for a route that costs something else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Extensions, HeaderMap};
use smallvec::SmallVec;

use super::charge::{Asked, Failure};
use super::shared::{Identity, Shared};
use crate::decision::{DecidedBy, Decision, Outcome};
use crate::error::StoreError;
use crate::hash::KeyHash;
use crate::limit::Limits;
use crate::resilience::Guard;
use crate::store::{Charge, Refund, Terms};
use crate::terms;

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
    ///
    /// It is charged where the request was first charged. If the store fails, what it was not asked to give
    /// back yet of a request that ends here is given back later, if it can be.
    pub(super) async fn adjust(self: Arc<Self>, shared: Arc<Shared>, cost: u64) -> Asked {
        let other_sizes = self.other_sizes();
        let mut decision = self.settle(&shared.guard, cost).await;
        if !other_sizes.is_empty() {
            decision = decision.map(|decision| decision.overridden(other_sizes));
        }
        if let Ok(decision) = &decision {
            shared.guard.tell_decision(decision);
        }
        if !decision.as_ref().is_ok_and(Decision::is_allowed) {
            while let Some(charged) = self.last() {
                shared.guard.give_back(&charged.into_receipt());
            }
        }
        decision.map(Some).map_err(|_| Failure::Store)
    }

    async fn settle(&self, guard: &Arc<Guard>, cost: u64) -> Result<Decision, StoreError> {
        let (by, bills) = self.bills(guard.limits(), cost);
        let more = Bill::charges(&bills, |bill| bill.due.saturating_sub(bill.paid));
        let mut denied = None;
        let asked = self.ask(guard, by, &bills, &more, &mut denied);
        if by != DecidedBy::Store {
            return asked.await;
        }
        let failure = match guard.admit(&more) {
            Ok(attempt) => match guard.watch(attempt, asked).await {
                Ok(decision) => return Ok(decision),
                Err(failure) => failure,
            },
            Err(failure) => {
                drop(asked);
                failure
            }
        };
        // It has decided, before it failed.
        denied.map_or_else(|| guard.acquire_otherwise(failure, &more), Ok)
    }

    /// Asks whoever has charged the request first.
    async fn ask(
        &self,
        guard: &Guard,
        by: DecidedBy,
        bills: &[Bill],
        more: &[Charge<'_>],
        denied: &mut Option<Decision>,
    ) -> Result<Decision, StoreError> {
        for (by, refunds) in self.too_much(bills) {
            guard.keeper(by).refund(&refunds).await?;
        }
        let decision = guard.keeper(by).acquire(more).await?;
        if decision.is_allowed() {
            return Ok(decision);
        }
        *denied = Some(decision);
        // What is under way may be given back, whether or not that is told: it is not tried twice.
        while let Some(charged) = self.last() {
            let by = charged.decided_by();
            let receipt = charged.into_receipt();
            guard.keeper(by).refund(&guard.refunds(&receipt)).await?;
        }
        guard.keeper(by).acquire(&Bill::charges(bills, |bill| bill.due)).await
    }

    /// The terms of all limits that have another size for the request.
    fn other_sizes(&self) -> Box<[Arc<Terms>]> {
        self.pages().decisions.first().map_or_else(Box::default, |first| first.all_overridden().into())
    }

    /// Takes out the last charge. A queue lets only its last go.
    fn last(&self) -> Option<Decision> {
        self.pages().decisions.pop()
    }

    /// Who was paid first, and what each limit was paid and is due.
    fn bills(&self, limits: &Limits, cost: u64) -> (DecidedBy, Vec<Bill>) {
        let pages = self.pages();
        let Some(first) = pages.decisions.first() else { return (DecidedBy::Store, Vec::new()) };
        let bill = |outcome: &Outcome| Bill::new(outcome, &pages.decisions, limits, cost);
        (first.decided_by(), first.outcomes().iter().filter_map(bill).collect())
    }

    /// What is to be given back of what was paid, and by whom.
    fn too_much<'a>(&self, bills: &'a [Bill]) -> Vec<(DecidedBy, Vec<Refund<'a>>)> {
        let mut pages = self.pages();
        let charged = pages.decisions.iter_mut().rev().filter(|decision| decision.is_charged());
        let mut left: Vec<u64> = bills.iter().map(|bill| bill.paid.saturating_sub(bill.due)).collect();
        let mut too_much = Vec::new();
        for decision in charged {
            let by = decision.decided_by();
            let bills = bills.iter().zip(&mut left);
            let refunds: Vec<_> = bills.filter_map(|(bill, left)| bill.refund(decision.outcomes_mut(), left)).collect();
            if !refunds.is_empty() {
                too_much.push((by, refunds));
            }
        }
        too_much
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a limit was paid for a request, and what it is due.
struct Bill {
    terms: Arc<Terms>,
    key: KeyHash,
    paid: u64,
    due: u64,
}

impl Bill {
    fn new(first: &Outcome, charged: &[Decision], limits: &Limits, cost: u64) -> Option<Self> {
        let limit = first.limit();
        let other_size = charged.first().and_then(|first| terms::of(limit, first.all_overridden()));
        let terms = other_size.or_else(|| limits.terms(limit).map(|terms| limits.present(terms)))?.clone();
        let outcomes = charged.iter().filter(|decision| decision.is_charged()).flat_map(Decision::outcomes);
        let paid = outcomes.filter(|outcome| outcome.limit() == limit && outcome.is_allowed()).map(Outcome::cost).sum();
        let has_own_cost = limits.as_slice().get(limit).is_none_or(|limit| limit.own_cost().is_some());
        let due = if has_own_cost { paid } else { cost };
        Some(Self { terms, key: first.key, paid, due })
    }

    /// Takes out of a charge what is `left` of what was too much.
    fn refund(&self, outcomes: &mut [Outcome], left: &mut u64) -> Option<Refund<'_>> {
        let limit = usize::from(self.terms.index());
        let outcome = outcomes.iter_mut().find(|outcome| outcome.limit() == limit && outcome.is_allowed())?;
        let cost = outcome.cost.min(*left);
        *left -= cost;
        outcome.cost -= cost;
        (cost > 0).then_some(Refund { terms: &self.terms, key: self.key, cost, mark: outcome.mark })
    }

    fn charges(bills: &[Self], cost: impl Fn(&Self) -> u64) -> Vec<Charge<'_>> {
        bills.iter().map(|bill| Charge { terms: &bill.terms, key: bill.key, cost: cost(bill) }).collect()
    }
}
