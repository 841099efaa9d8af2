//! What a limiter has charged a request, for all who charge more or less later: a route that costs
//! something else, its handler, and its response.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Extensions, HeaderMap};
use smallvec::{SmallVec, smallvec};

use super::bill::Bill;
use super::charge::{Asked, Failure};
use super::shared::Shared;
use crate::decision::{DecidedBy, Decision, Outcome, Receipt};
use crate::error::StoreError;
use crate::limit::Limits;
use crate::resilience::StoreClient;
use crate::store::{Charge, LimitSpec};

/// A note among a request's extensions: the limiter's decisions about it so far.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Whoever has opened it.
    pub(super) shared: Arc<Shared>,
    pages: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    /// The first says which limits apply, and under which keys. Most requests have no other.
    decisions: SmallVec<[Decision; 1]>,
    /// The variants of the limiter that have charged here. None does so twice: a request that meets
    /// one again is another, which a handler has made of the first with its extensions, or is to be
    /// charged twice.
    variants: SmallVec<[Arc<Shared>; 2]>,
}

/// The notes of all limiters that the request has passed.
#[derive(Clone, Debug, Default)]
struct Ledgers(SmallVec<[Arc<Ledger>; 2]>);

/// The most that a store is asked to give back at once.
const MOST_AT_ONCE: usize = 64;

/// What a limit is due in all, by its index and what it was paid.
pub(super) type Due<'a> = dyn Fn(usize, u64) -> u64 + Send + Sync + 'a;

impl Ledger {
    /// Notes what was decided about the request with these extensions.
    pub(super) fn open(shared: &Arc<Shared>, decision: Decision, extensions: &mut Extensions) -> Arc<Self> {
        let pages = Pages { decisions: smallvec![decision], variants: smallvec![shared.clone()] };
        let ledger = Arc::new(Self { shared: shared.clone(), pages: Mutex::new(pages) });
        extensions.get_or_insert_default::<Ledgers>().0.push(ledger.clone());
        ledger
    }

    /// The note that another variant of the limiter has left further out, for this one to charge on.
    pub(super) fn find(shared: &Arc<Shared>, extensions: &Extensions) -> Option<Arc<Self>> {
        let Ledgers(ledgers) = extensions.get()?;
        let is_own = |ledger: &&Arc<Self>| Arc::ptr_eq(&ledger.shared.identity, &shared.identity);
        let ledger = ledgers.iter().rev().find(is_own)?;
        let mut pages = ledger.pages();
        let is_new = !pages.variants.iter().any(|known| known.variant.is(&shared.variant));
        if !is_new || pages.decisions.first().is_none_or(|first| first.outcomes().is_empty()) {
            return None;
        }
        // At once: of several requests with one note, one may use it.
        pages.variants.push(shared.clone());
        Some(ledger.clone())
    }

    /// The innermost note of a limiter that gives permits.
    pub(super) fn of_permit(extensions: &Extensions) -> Option<Arc<Self>> {
        let Ledgers(ledgers) = extensions.get()?;
        let permits = |ledger: &&Arc<Self>| ledger.pages().variants.iter().any(|variant| variant.permits);
        ledgers.iter().rev().find(permits).cloned()
    }

    /// Adds a later decision.
    pub(super) fn add(&self, decision: Decision) {
        let mut pages = self.pages();
        // Of what nothing can be given back, the first and the last are enough.
        while pages.decisions.len() > 1 && pages.decisions.last().is_some_and(|last| !is_paid(last)) {
            pages.decisions.pop();
        }
        pages.decisions.push(decision);
    }

    /// Tells the last decision.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if let Some(decision) = self.pages().decisions.last() {
            self.shared.headers.write(decision, headers);
        }
    }

    /// What the last decision says.
    pub(super) fn last(&self) -> Option<Decision> {
        self.pages().decisions.last().map(Decision::told)
    }

    /// Charges the difference to `cost`, all or nothing: if that is denied, what was charged is
    /// given back, and the whole is asked for once more, so that the answer says how long to wait
    /// for it.
    ///
    /// It is charged where the request was first charged. If the store fails, what it was not asked to give
    /// back yet of a request that ends here is given back later, if it can be.
    pub(super) async fn adjust(self: Arc<Self>, shared: Arc<Shared>, cost: u64) -> Asked {
        let other_sizes = self.other_sizes();
        let decision = self.reconsider(&shared.client, cost).await;
        let decision = decision.map(|decision| decision.overridden(&other_sizes));
        if let Ok(decision) = &decision {
            shared.client.report_decision(decision);
        }
        if !decision.as_ref().is_ok_and(Decision::is_allowed) {
            while let Some(charged) = self.take_last() {
                shared.client.refund_in_background(&charged.into_receipt());
            }
        }
        decision.map(Some).map_err(|_| Failure::Store)
    }

    async fn reconsider(&self, client: &Arc<StoreClient>, cost: u64) -> Result<Decision, StoreError> {
        let limits = client.limits();
        let has_own_cost = |limit: usize| limits.as_slice().get(limit).is_none_or(|limit| limit.own_cost().is_some());
        let (by, bills) = self.bills(limits, &|limit, paid| if has_own_cost(limit) { paid } else { cost });
        // If that is denied, the whole is asked for, and that is what counts.
        let without_strikes =
            limits.has_penalties().then(|| bills.iter().map(Bill::without_strikes).collect::<Vec<_>>());
        let more = Bill::charges(without_strikes.as_deref().unwrap_or(&bills), Bill::more);
        let mut denied = None;
        let asked = self.ask(client, by, &bills, &more, &mut denied);
        if by != DecidedBy::Store {
            return asked.await;
        }
        let failure = match client.admit(&more) {
            Ok(attempt) => match client.await_answer(attempt, asked).await {
                Ok(decision) => return Ok(decision),
                Err(failure) => failure,
            },
            Err(failure) => {
                drop(asked);
                failure
            }
        };
        // It has decided, before it failed.
        denied.map_or_else(|| client.fall_back_to_acquire(failure, &more), Ok)
    }

    /// Asks whoever has charged the request first.
    async fn ask(
        &self,
        client: &StoreClient,
        by: DecidedBy,
        bills: &[Bill],
        more: &[Charge<'_>],
        denied: &mut Option<Decision>,
    ) -> Result<Decision, StoreError> {
        for receipt in self.too_much(bills) {
            client.charged_store(receipt.by).refund(&client.refunds(&receipt)).await?;
        }
        let decision = client.charged_store(by).acquire(more).await?;
        if decision.is_allowed() {
            return Ok(decision);
        }
        *denied = Some(decision);
        // What is under way may be given back, whether or not that is told: it is not tried twice.
        while let Some(charged) = self.take_last() {
            let by = charged.decided_by();
            let receipt = charged.into_receipt();
            client.charged_store(by).refund(&client.refunds(&receipt)).await?;
        }
        client.charged_store(by).acquire(&Bill::charges(bills, |bill| bill.due)).await
    }

    /// The spec of all limits that have another size for the request.
    pub(super) fn other_sizes(&self) -> Box<[Arc<LimitSpec>]> {
        self.pages().decisions.first().into_iter().flat_map(other_sizes).cloned().collect()
    }

    /// Takes out the last charge. A queue lets only its last go.
    fn take_last(&self) -> Option<Decision> {
        self.pages().decisions.pop()
    }

    /// Who was paid first, and what each limit was paid and is due.
    pub(super) fn bills(&self, limits: &Limits, due: &Due<'_>) -> (DecidedBy, Vec<Bill>) {
        let pages = self.pages();
        let Some(first) = pages.decisions.first() else { return (DecidedBy::Store, Vec::new()) };
        let present = |limit| limits.spec(limit).map(|spec| limits.current(spec));
        let other_size = |limit| other_sizes(first).find(|spec| usize::from(spec.index()) == limit);
        let spec = |limit| other_size(limit).or_else(|| present(limit));
        let bill = |subject: &Outcome| Some(Bill::new(spec(subject.limit())?, subject.key, &pages.decisions, due));
        (first.decided_by(), first.outcomes().iter().filter_map(bill).collect())
    }

    /// Takes out what is too much, the last charge first. Once: whoever takes it gives it back.
    pub(super) fn too_much(&self, bills: &[Bill]) -> Vec<Receipt> {
        let mut pages = self.pages();
        let charged = pages.decisions.iter_mut().rev().filter(|decision| decision.is_charged());
        let mut left: Vec<u64> = bills.iter().map(Bill::less).collect();
        let mut receipts: Vec<Receipt> = Vec::new();
        for decision in charged {
            let by = decision.decided_by();
            // By the sizes by which it was charged.
            let sizes: Box<[Arc<LimitSpec>]> = decision.all_overridden().into();
            let bills = bills.iter().zip(&mut left);
            let taken = bills.filter_map(|(bill, left)| bill.take(decision.outcomes_mut(), left));
            for taken in taken {
                let goes_with = |last: &&mut Receipt| {
                    last.by == by && last.charged().len() < MOST_AT_ONCE && is_same(last.all_overridden(), &sizes)
                };
                match receipts.last_mut().filter(goes_with) {
                    Some(last) => last.push(taken),
                    None => receipts.push(Receipt::of(by, taken).overridden(&sizes)),
                }
            }
        }
        receipts
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The spec of all limits that have another size for the request, whatever is charged later: not those that the
/// store has found for their keys, and finds again, if it has decided.
fn other_sizes(first: &Decision) -> impl Iterator<Item = &Arc<LimitSpec>> {
    let by_store = first.decided_by() == DecidedBy::Store;
    first.all_overridden().iter().filter(move |spec| !(by_store && spec.is_override()))
}

fn is_same(some: &[Arc<LimitSpec>], others: &[Arc<LimitSpec>]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| Arc::ptr_eq(one, other))
}

/// Whether something of it can be given back.
fn is_paid(decision: &Decision) -> bool {
    decision.is_charged() && decision.outcomes().iter().any(|outcome| outcome.cost() > 0 && outcome.is_allowed())
}
