//! Charges more or less after the first decision: for a route, by the request's handler, or by its response.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::ledger::{Balance, Ledger, TargetCost};
use crate::decision::{Cell, Cells, DecidedBy, Decision};
use crate::error::StoreError;
use crate::key::heads::ResponseHead;
use crate::reason::Reason;
use crate::recorder::DecisionSource;
use crate::recorder::Event;
use crate::store::{Purpose, StoreFuture};

/// The maximum number of retries, if concurrent requests take the capacity that was found.
const MAX_RETRIES: usize = 8;

/// The result of an adjustment.
pub(super) struct Adjustment {
    /// The last decision, if anything was charged.
    pub(super) decision: Option<Decision>,
    /// Whether a refund has followed that decision, or there was only a refund.
    pub(super) has_refunded: bool,
    /// The tokens that could not be charged, for the limit that lacked the most.
    pub(super) shortfall: u64,
}

impl Ledger {
    /// Charges the tokens that are missing to the target cost, all or nothing. Returns `None` if no limit applies.
    pub(super) async fn charge(&self, target: &TargetCost<'_>) -> Result<Option<Decision>, StoreError> {
        let balances = self.balances(target);
        if balances.is_empty() {
            return Ok(None);
        }
        let decision = self.acquire(self.cells(&balances, Balance::missing)).await?;
        Ok(Some(self.record(decision)))
    }

    /// Refunds the tokens paid in excess of the target cost, and charges the missing tokens as far as each limit has
    /// capacity.
    pub(super) async fn adjust(&self, target: &TargetCost<'_>) -> Result<Adjustment, StoreError> {
        let has_refunded = self.refund_excess(target).await?;
        let mut balances = self.balances(target);
        if balances.iter().all(|balance| balance.missing() == 0) {
            return Ok(Adjustment { decision: None, has_refunded, shortfall: 0 });
        }
        let owed: Vec<u64> = balances.iter().map(|balance| balance.target).collect();
        let mut retries = 1..=MAX_RETRIES;
        let decision = loop {
            // A denial here is not the client's fault, so it is no strike.
            let decision = self.acquire(without_strikes(self.cells(&balances, Balance::missing))).await?;
            if decision.is_allowed() {
                break decision;
            }
            if retries.next().is_none() {
                balances.iter_mut().for_each(|balance| balance.target = balance.paid);
                break decision;
            }
            lower_to_available(&mut balances, &decision);
        };
        let mut shortfall = 0;
        for (balance, owed) in balances.iter().zip(owed) {
            let limit = self.config.client.limits().get(balance.limit());
            let tokens = owed.saturating_sub(balance.target.max(balance.paid));
            if tokens > 0 && !limit.is_shadow() {
                self.config.client.report_event(&Event::Shortfall { limit: limit.name(), tokens });
                shortfall = shortfall.max(tokens);
            }
        }
        let decision = Some(self.record(decision));
        // Another task may have adjusted the same request meanwhile.
        let has_refunded = self.refund_excess(target).await?;
        Ok(Adjustment { decision, has_refunded, shortfall })
    }

    /// Charges the difference to the cost of a route, all or nothing, in the store that took the first charge.
    ///
    /// If the difference is denied, the earlier charges are refunded and the full cost is requested, so that the
    /// decision has the wait for the full cost.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the policy is to reject.
    pub(super) async fn adjust_to_route(&self, cost: u64) -> Result<Decision, Reason> {
        let client = &self.config.client;
        let own_cost = |limit: usize| client.limits().get(limit).own_cost();
        let target = |limit, paid| if own_cost(limit).is_some() { paid } else { cost };
        let balances = self.balances(&target);
        let full = self.cells(&balances, |balance| balance.target);
        // If the difference is denied, only the denial of the full cost counts towards penalties.
        let difference = without_strikes(self.cells(&self.balances(&target), Balance::missing));
        let recording = client.start_recording(Purpose::Take);
        let mut denied = None;
        let refund = async |target: &TargetCost<'_>| {
            let mut result = Ok(());
            for receipt in self.take_excess(target) {
                result = result.and(client.refund_by(receipt).await);
            }
            result
        };
        let adjusting = async {
            refund(&target).await?;
            let decision = client.decide_by(self.by, difference.clone()).await?;
            if decision.is_allowed() {
                return Ok(decision);
            }
            denied = Some(decision);
            refund(&|_, _| 0).await?;
            client.decide_by(self.by, full).await
        };
        let decision = if self.by == DecidedBy::Store {
            let decision = client.call_all(&difference, adjusting).await;
            // A denial of the difference stands, even if the store has failed since.
            match (decision, denied) {
                (Err(_), Some(denied)) => Ok(denied),
                (Err(error), None) => client.fall_back(error, difference, Purpose::Take, None),
                (decision, _) => decision,
            }
        } else {
            adjusting.await
        };
        if let Ok(decision) = &decision {
            let source = match decision.decided_by() {
                DecidedBy::Store => DecisionSource::Store,
                DecidedBy::Local | DecidedBy::Nobody => DecisionSource::Fallback,
            };
            client.record(recording, source, decision);
        }
        if !decision.as_ref().is_ok_and(Decision::is_allowed) {
            for receipt in self.take_excess(&|_, _| 0) {
                client.refund_in_background(receipt);
            }
        }
        decision.map_err(|_| {
            self.clear();
            Reason::StoreFailed
        })
    }

    /// Adjusts the charges of the limits that take a request's actual cost from its response. If the store does not
    /// answer at once, this completes in the background.
    pub(super) fn adjust_by_response(self: &Arc<Self>, head: &ResponseHead<'_>) {
        let limits = self.config.client.limits();
        if !limits.settles_by_response() {
            return;
        }
        let actual = |limit: usize| limits.get(limit).actual_cost()?(head);
        let balances = self.balances(&|_, paid| paid);
        let applicable = balances.iter().map(Balance::limit);
        let actual: Vec<(usize, u64)> = applicable.filter_map(|limit| Some((limit, actual(limit)?))).collect();
        if actual.is_empty() {
            return;
        }
        let ledger = self.clone();
        let mut adjusting = Box::pin(async move {
            let target = |limit: usize, paid| actual.iter().find(|(known, _)| *known == limit).map_or(paid, |of| of.1);
            ledger.adjust(&target).await
        });
        match adjusting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(adjustment)) if adjustment.has_refunded && !self.config.headers.is_empty() => {
                if let Some(Ok(Ok(decision))) = self.peek().map(StoreFuture::into_ready) {
                    self.add(decision);
                }
            }
            Poll::Ready(_) => {}
            // Without a runtime, the charges stay until the limits forget them.
            Poll::Pending => {
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(adjusting);
                }
            }
        }
    }

    /// Resets the keys of the limits for which `is_for` holds, and removes their charges, unless the reset fails.
    pub(super) async fn reset(&self, is_for: impl Fn(usize) -> bool + Send + Sync) -> Result<(), StoreError> {
        let mut balances = self.balances(&|_, _| 0);
        balances.retain(|balance| is_for(balance.limit()));
        // A refund during the reset would be taken from later charges.
        let taken = self.take_payments(&is_for);
        let result = self.config.client.reset_cells(&self.cells(&balances, |_| 0)).await;
        if result.is_err() {
            self.return_payments(taken);
        }
        result
    }

    /// Requests the current state of all limits that apply. Returns `None` if there are none.
    pub(super) fn peek(&self) -> Option<StoreFuture<Decision>> {
        let balances = self.balances(&|_, paid| paid);
        (!balances.is_empty()).then(|| self.decide(self.cells(&balances, |_| 0), Purpose::Peek))
    }

    /// Records a later decision. Returns a copy whose receipt is empty.
    pub(super) fn record(&self, decision: Decision) -> Decision {
        let copy = decision.without_charges();
        self.add(decision);
        copy
    }

    fn acquire(&self, cells: Cells) -> StoreFuture<Decision> {
        self.decide(cells, Purpose::Take)
    }

    /// Decides where the first decision was made.
    fn decide(&self, cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        let client = &self.config.client;
        match (self.by, purpose) {
            (DecidedBy::Store, Purpose::Take) => client.acquire(cells),
            (DecidedBy::Store, _) => client.peek(cells),
            (DecidedBy::Local | DecidedBy::Nobody, _) => StoreFuture::ready(client.decide_locally(cells, purpose)),
        }
    }

    /// Returns the cells of balances, with these costs.
    fn cells(&self, balances: &[Balance], cost: impl Fn(&Balance) -> u64) -> Cells {
        let mut cells = Cells::new();
        for balance in balances {
            self.config.client.limits().add_again(&mut cells, &balance.asked, cost(balance));
        }
        cells
    }

    /// Refunds the tokens paid in excess. Returns whether there were any. Tries all refunds, and returns the first error.
    async fn refund_excess(&self, target: &TargetCost<'_>) -> Result<bool, StoreError> {
        let receipts = self.take_excess(target);
        let mut result = Ok(!receipts.is_empty());
        for receipt in receipts {
            result = result.and(self.config.client.refund(receipt).await.map(|()| true));
        }
        result
    }
}

impl Balance {
    pub(super) fn limit(&self) -> usize {
        self.asked.limit()
    }

    fn missing(&self) -> u64 {
        self.target.saturating_sub(self.paid)
    }
}

/// Lowers the targets of denied limits to the tokens that are available, including overage.
fn lower_to_available(balances: &mut [Balance], denied: &Decision) {
    for balance in balances {
        let outcome = denied.outcomes().iter().find(|outcome| outcome.limit() == balance.limit());
        if let Some(outcome) = outcome.filter(|outcome| !outcome.is_allowed()) {
            // A limit in shadow mode is charged all missing tokens or none.
            let available =
                if outcome.denies() { outcome.available().min(balance.missing().saturating_sub(1)) } else { 0 };
            balance.target = balance.paid.saturating_add(available);
        }
    }
}

fn without_strikes(mut cells: Cells) -> Cells {
    cells.iter_mut().for_each(|cell: &mut Cell| cell.makes_strikes = false);
    cells
}
