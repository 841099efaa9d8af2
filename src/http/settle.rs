//! What is charged and given back after a request has gone on.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::bill::Bill;
use super::ledger::{Due, Ledger};
use crate::decision::{DecidedBy, Decision};
use crate::error::StoreError;
use crate::observe::Event;
use crate::response::ResponseHead;
use crate::store::{Charge, StoreFuture};

/// How often room is looked for that others may take meanwhile.
const TRIES: usize = 8;

/// What came of settling.
pub(super) struct Settling {
    /// The last, if anything was charged.
    pub(super) decision: Option<Decision>,
    /// Whether that was not the last of it.
    pub(super) gave_back: bool,
    /// The most that a limit had no room for.
    pub(super) shortfall: u64,
}

impl Ledger {
    /// Charges what is due and was not paid, all or nothing.
    pub(super) async fn charge(&self, due: &Due<'_>) -> Result<Option<Decision>, StoreError> {
        let (by, bills) = self.bills(self.shared.client.limits(), due);
        if bills.is_empty() {
            return Ok(None);
        }
        let charges = Bill::charges(&bills, Bill::more);
        let decision = self.acquire(by, &charges).await?;
        Ok(Some(self.note(decision)))
    }

    /// Gives back what was paid too much, and charges what is missing as far as there is room, each
    /// limit for itself.
    pub(super) async fn settle(&self, due: &Due<'_>) -> Result<Settling, StoreError> {
        let (by, mut bills) = self.bills(self.shared.client.limits(), due);
        let gave_back = self.give_back(&bills).await?;
        // What there is no room for is nobody's fault.
        bills.iter_mut().for_each(|bill| *bill = bill.without_strikes());
        if bills.iter().all(|bill| bill.more() == 0) {
            return Ok(Settling { decision: None, gave_back, shortfall: 0 });
        }
        let owed: Vec<u64> = bills.iter().map(|bill| bill.due).collect();
        let mut tries = 1..=TRIES;
        let decision = loop {
            let charges = Bill::charges(&bills, Bill::more);
            let decision = self.acquire(by, &charges).await?;
            if decision.is_allowed() {
                break decision;
            }
            if tries.next().is_none() {
                bills.iter_mut().for_each(|bill| bill.due = bill.paid);
                break decision;
            }
            let rooms = self.rooms(by, &bills, decision).await?;
            for (bill, room) in bills.iter_mut().zip(rooms) {
                bill.due = bill.due.min(bill.paid.saturating_add(room));
            }
        };
        let mut shortfall = 0;
        let is_unpaid = |(bill, owed): &(&Bill, u64)| *owed > bill.due && bill.spec.is_enforced();
        for (bill, owed) in bills.iter().zip(owed).filter(is_unpaid) {
            let tokens = owed - bill.due.max(bill.paid);
            self.shared.client.report_event(&Event::Shortfall { limit: bill.spec.name(), tokens });
            shortfall = shortfall.max(tokens);
        }
        let decision = Some(self.note(decision));
        // Others may have settled meanwhile.
        let (_, bills) = self.bills(self.shared.client.limits(), due);
        let gave_back = self.give_back(&bills).await?;
        Ok(Settling { decision, gave_back, shortfall })
    }

    /// Forgets the keys of all limits, or of `only` one, and what they were paid.
    pub(super) async fn reset(&self, only: Option<usize>) -> Result<(), StoreError> {
        let (_, mut bills) = self.bills(self.shared.client.limits(), &|_, _| 0);
        bills.retain(|bill| only.is_none_or(|only| only == bill.limit()));
        // What is forgotten can't be given back: that would be taken from what comes after it.
        drop(self.too_much(&bills));
        let keys: Vec<_> = bills.iter().map(|bill| (&bill.spec, bill.key)).collect();
        self.shared.client.reset_keys(&keys).await
    }

    /// What is left of all limits now.
    pub(super) fn look(&self) -> Option<StoreFuture<Decision>> {
        let (by, bills) = self.bills(self.shared.client.limits(), &|_, paid| paid);
        if bills.is_empty() {
            return None;
        }
        let charges = Bill::charges(&bills, |_| 0);
        Some(self.peek(by, &charges))
    }

    /// Notes a decision, and what it says.
    pub(super) fn note(&self, decision: Decision) -> Decision {
        let decision = decision.overridden(&self.other_sizes());
        let told = decision.told();
        if decision.decided_by() != DecidedBy::Nobody {
            self.add(decision);
        }
        told
    }

    /// Does as the limits say of the response: at once, if the store answers at once, and later
    /// otherwise.
    pub(super) fn close(self: &Arc<Self>, head: &ResponseHead<'_>) {
        let limits = self.shared.client.limits();
        if !limits.settles_by_response() {
            return;
        }
        let (_, bills) = self.bills(limits, &|_, paid| paid);
        let actual = |bill: &Bill| Some((bill.limit(), limits.as_slice().get(bill.limit())?.actual_cost()?(head)?));
        let actual: Vec<(usize, u64)> = bills.iter().filter_map(actual).collect();
        if actual.is_empty() {
            return;
        }
        let ledger = self.clone();
        let due = move |limit: usize, paid| {
            let actual = actual.iter().find(|(known, _)| *known == limit);
            actual.map_or(paid, |(_, actual)| *actual)
        };
        let mut settle = Box::pin(async move { ledger.settle(&due).await });
        match settle.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(settling)) if settling.gave_back && !self.shared.headers.is_empty() => {
                if let Some(Ok(Ok(decision))) = self.look().map(StoreFuture::into_ready) {
                    self.add(decision.overridden(&self.other_sizes()));
                }
            }
            Poll::Ready(_) => {}
            // Without a runtime, what was charged is left to come back by itself.
            Poll::Pending => drop(Handle::try_current().map(|runtime| runtime.spawn(settle))),
        }
    }

    /// What of the missing each limit may have room for, after a denial.
    async fn rooms(&self, by: DecidedBy, bills: &[Bill], denied: Decision) -> Result<Vec<u64>, StoreError> {
        // No decision tells how much room is left in overage.
        let seen = if bills.iter().any(|bill| bill.spec.raised().is_some()) {
            let ceilings: Vec<Bill> = bills.iter().map(Bill::at_ceiling).collect();
            self.peek(by, &Bill::charges(&ceilings, Bill::more)).await?
        } else {
            denied
        };
        let room = |bill: &Bill| match seen.outcomes().iter().find(|outcome| outcome.limit() == bill.limit()) {
            Some(outcome) if outcome.denies() => outcome.remaining().min(bill.more().saturating_sub(1)),
            // What is not enforced has said what it lacks.
            Some(outcome) if !outcome.is_allowed() => 0,
            _ => u64::MAX,
        };
        Ok(bills.iter().map(room).collect())
    }

    fn peek(&self, by: DecidedBy, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let client = &self.shared.client;
        if by == DecidedBy::Store { client.peek(charges) } else { client.charged_store(by).peek(charges) }
    }

    async fn acquire(&self, by: DecidedBy, charges: &[Charge<'_>]) -> Result<Decision, StoreError> {
        let client = &self.shared.client;
        if by == DecidedBy::Store {
            return client.acquire(charges).await;
        }
        let decision = client.charged_store(by).acquire(charges).await?;
        client.report_decision(&decision);
        Ok(decision)
    }

    /// Gives back what is too much: whether there was anything.
    async fn give_back(&self, bills: &[Bill]) -> Result<bool, StoreError> {
        let receipts = self.too_much(bills);
        let gave_back = !receipts.is_empty();
        for receipt in receipts {
            self.shared.client.refund(&receipt).await?;
        }
        Ok(gave_back)
    }
}
