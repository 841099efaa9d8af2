//! Charges and refunds after a request was forwarded: by its handler, or by its response.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::balance::{Balance, TargetCost, charges};
use super::ledger::Ledger;
use crate::decision::{DecidedBy, Decision};
use crate::error::StoreError;
use crate::recorder::Event;
use crate::response::ResponseHead;
use crate::store::{Charge, StoreFuture};

/// The maximum number of retries of a settlement, if concurrent requests take the capacity that it has found.
const MAX_RETRIES: usize = 8;

/// The result of a settlement.
pub(super) struct Settlement {
    /// The last decision, if anything was charged.
    pub(super) decision: Option<Decision>,
    /// Whether a refund has followed that decision, or there was only a refund.
    pub(super) has_refunded: bool,
    /// The tokens that could not be charged, for the limit that lacked the most.
    pub(super) shortfall: u64,
}

/// Charges the tokens that are missing to the target cost, all or nothing. Returns `None` if no limit applies.
pub(super) async fn charge(ledger: &Ledger, target: &TargetCost<'_>) -> Result<Option<Decision>, StoreError> {
    let (by, balances) = ledger.balances(ledger.config.client.limits(), target);
    if balances.is_empty() {
        return Ok(None);
    }
    let decision = acquire(ledger, by, &charges(&balances, Balance::missing)).await?;
    Ok(Some(ledger.record(decision)))
}

/// Refunds the tokens paid in excess of the target cost, and charges the missing tokens as far as each limit has
/// capacity.
pub(super) async fn settle(ledger: &Ledger, target: &TargetCost<'_>) -> Result<Settlement, StoreError> {
    let client = &ledger.config.client;
    let (by, balances) = ledger.balances(client.limits(), target);
    let has_refunded = refund_excess(ledger, &balances).await?;
    // A denial here is not the client's fault, so it is no strike.
    let mut balances: Vec<Balance> = balances.iter().map(Balance::without_strikes).collect();
    if balances.iter().all(|balance| balance.missing() == 0) {
        return Ok(Settlement { decision: None, has_refunded, shortfall: 0 });
    }
    let owed: Vec<u64> = balances.iter().map(|balance| balance.target.cost).collect();
    let mut retries = 1..=MAX_RETRIES;
    let decision = loop {
        let decision = acquire(ledger, by, &charges(&balances, Balance::missing)).await?;
        if decision.is_allowed() {
            break decision;
        }
        if retries.next().is_none() {
            balances.iter_mut().for_each(|balance| balance.target.cost = balance.paid);
            break decision;
        }
        let available = available_tokens(ledger, by, &balances, decision).await?;
        for (balance, available) in balances.iter_mut().zip(available) {
            balance.target.cost = balance.target.cost.min(balance.paid.saturating_add(available));
        }
    };
    let mut shortfall = 0;
    for (balance, owed) in balances.iter().zip(owed) {
        let spec = &balance.target.spec;
        if owed > balance.target.cost && spec.is_enforced() {
            let tokens = owed - balance.target.cost.max(balance.paid);
            client.report_event(&Event::Shortfall { limit: spec.name(), tokens });
            shortfall = shortfall.max(tokens);
        }
    }
    let decision = Some(ledger.record(decision));
    // Another task may have settled the same request meanwhile.
    let (_, balances) = ledger.balances(client.limits(), target);
    let has_refunded = refund_excess(ledger, &balances).await?;
    Ok(Settlement { decision, has_refunded, shortfall })
}

/// Settles the limits that take a request's actual cost from its response. If the store does not answer at once, the
/// settlement completes in the background.
pub(super) fn settle_by_response(ledger: &Arc<Ledger>, head: &ResponseHead<'_>) {
    let limits = ledger.config.client.limits();
    if !limits.settles_by_response() {
        return;
    }
    let (_, balances) = ledger.balances(limits, &|_, paid| paid);
    let actual_cost = |limit: usize| limits.as_slice().get(limit)?.actual_cost()?(head);
    let limits = balances.iter().map(Balance::limit);
    let actual: Vec<(usize, u64)> = limits.filter_map(|limit| Some((limit, actual_cost(limit)?))).collect();
    if actual.is_empty() {
        return;
    }
    let settling = {
        let ledger = ledger.clone();
        let target = move |limit: usize, paid| {
            let actual = actual.iter().find(|(known, _)| *known == limit);
            actual.map_or(paid, |(_, actual)| *actual)
        };
        async move { settle(&ledger, &target).await }
    };
    let mut settling = Box::pin(settling);
    match settling.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(settlement)) if settlement.has_refunded && !ledger.config.headers.is_empty() => {
            if let Some(Ok(Ok(decision))) = peek(ledger).map(StoreFuture::into_ready) {
                ledger.add(decision.with_resized(&ledger.resized()));
            }
        }
        Poll::Ready(_) => {}
        // Without a runtime, the charges stay until the limits forget them.
        Poll::Pending => {
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(settling);
            }
        }
    }
}

/// Resets the keys of all limits, or of `only` one, and removes their charges from the ledger.
pub(super) async fn reset(ledger: &Ledger, only: Option<usize>) -> Result<(), StoreError> {
    let (_, mut balances) = ledger.balances(ledger.config.client.limits(), &|_, _| 0);
    balances.retain(|balance| only.is_none_or(|only| only == balance.limit()));
    // A refund after the reset would be taken from later charges.
    drop(ledger.take_excess(&balances));
    let keys: Vec<_> = balances.iter().map(|balance| (&balance.target.spec, balance.target.key)).collect();
    ledger.config.client.reset_keys(&keys).await
}

/// Requests the current state of all limits that apply. Returns `None` if there are none.
pub(super) fn peek(ledger: &Ledger) -> Option<StoreFuture<Decision>> {
    let (by, balances) = ledger.balances(ledger.config.client.limits(), &|_, paid| paid);
    let charges = charges(&balances, |_| 0);
    (!charges.is_empty()).then(|| peek_charges(ledger, by, &charges))
}

fn peek_charges(ledger: &Ledger, by: DecidedBy, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
    let client = &ledger.config.client;
    if by == DecidedBy::Store { client.peek(charges) } else { client.charged_store(by).peek(charges) }
}

async fn acquire(ledger: &Ledger, by: DecidedBy, charges: &[Charge<'_>]) -> Result<Decision, StoreError> {
    let client = &ledger.config.client;
    if by == DecidedBy::Store {
        return client.acquire(charges).await;
    }
    client.decide_locally(charges).await
}

/// Returns how many of the missing tokens each limit may have capacity for, after a denial.
async fn available_tokens(
    ledger: &Ledger,
    by: DecidedBy,
    balances: &[Balance],
    denied: Decision,
) -> Result<Vec<u64>, StoreError> {
    // A decision does not contain the remaining overage. A peek at the limit with all its overage does.
    let decision = if balances.iter().any(|balance| balance.target.spec.algorithm().overage() > 0) {
        let ceilings: Vec<Balance> = balances.iter().map(Balance::at_ceiling).collect();
        peek_charges(ledger, by, &charges(&ceilings, Balance::missing)).await?
    } else {
        denied
    };
    let available =
        |balance: &Balance| match decision.outcomes().iter().find(|outcome| outcome.limit() == balance.limit()) {
            Some(outcome) if outcome.denies() => outcome.remaining().min(balance.missing().saturating_sub(1)),
            // A limit in shadow mode is charged all missing tokens or none.
            Some(outcome) if !outcome.is_allowed() => 0,
            _ => u64::MAX,
        };
    Ok(balances.iter().map(available).collect())
}

/// Refunds the tokens paid in excess. Returns whether there were any.
async fn refund_excess(ledger: &Ledger, balances: &[Balance]) -> Result<bool, StoreError> {
    let receipts = ledger.take_excess(balances);
    let has_refunded = !receipts.is_empty();
    for receipt in receipts {
        ledger.config.client.refund(&receipt).await?;
    }
    Ok(has_refunded)
}
