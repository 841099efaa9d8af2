//! Charges more or less after the first decision: for a route, by the request's handler, or by its response.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::ledger::{Ledger, TargetCost, Tokens, receipts};
use crate::decision::{Cell, Cells, DecidedBy, Decision};
use crate::error::StoreError;
use crate::key::heads::ResponseHead;
use crate::recorder::{DecisionSource, Event};
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
        let cells = self.cells(|limit, paid| target(limit, paid).saturating_sub(paid));
        if cells.is_empty() {
            return Ok(None);
        }
        let decision = self.decide(cells, Purpose::Take).await?;
        Ok(Some(self.record(decision)))
    }

    /// Refunds the tokens paid in excess of the target cost, and charges the missing tokens as far as each limit has
    /// capacity.
    pub(super) async fn adjust(&self, target: &TargetCost<'_>) -> Result<Adjustment, StoreError> {
        let has_refunded = self.refund_excess(target).await?;
        let missing = self.missing(target);
        if missing.is_empty() {
            return Ok(Adjustment { decision: None, has_refunded, shortfall: 0 });
        }
        let (mut charged, mut retries) = (missing.clone(), 0..MAX_RETRIES);
        let decision = loop {
            let decision = self.charge_without_strikes(&charged).await?;
            if decision.is_allowed() || retries.next().is_none() {
                break decision;
            }
            lower_to_available(&mut charged, &decision);
        };
        let mut shortfall = 0;
        for ((limit, missing), charged) in missing.into_iter().zip(charged.into_values()) {
            let limit = self.config.client.limits().get(limit);
            let tokens = if decision.is_allowed() { missing - charged } else { missing };
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

    /// Charges these tokens to these limits, all or nothing. A denial is not the client's fault, so it is no strike.
    async fn charge_without_strikes(&self, missing: &Tokens) -> Result<Decision, StoreError> {
        let tokens = |limit, _| missing.get(&limit).copied().unwrap_or_default();
        self.decide(without_strikes(self.cells(tokens)), Purpose::Take).await
    }

    /// Charges the difference to the cost of a route, all or nothing, in the store that took the first charge.
    ///
    /// If the difference is denied, the earlier charges are refunded and the full cost is requested, so that the
    /// decision has the wait for the full cost.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the policy is to reject.
    pub(super) async fn adjust_to_route(&self, cost: u64) -> Result<Decision, StoreError> {
        let client = &self.config.client;
        let own_cost = |limit: usize| client.limits().get(limit).own_cost();
        let target = |limit, paid| if own_cost(limit).is_some() { paid } else { cost };
        let full = self.cells(target);
        // If the difference is denied, only the denial of the full cost counts towards penalties.
        let difference = without_strikes(self.cells(|limit, paid| target(limit, paid).saturating_sub(paid)));
        let recording = client.start_recording(Purpose::Take);
        let mut denied = None;
        let refund = async |target: &TargetCost<'_>| {
            let mut result = Ok(());
            for receipt in receipts(self.take_excess(target)) {
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
                DecidedBy::Local | DecidedBy::Unlimited => DecisionSource::Fallback,
            };
            client.record(recording, source, decision);
        }
        if !decision.as_ref().is_ok_and(Decision::is_allowed) {
            for receipt in receipts(self.take_excess(&|_, _| 0)) {
                client.refund_in_background(receipt);
            }
        }
        decision.inspect_err(|_| self.clear())
    }

    /// Adjusts the charges of the limits that take a request's actual cost from its response. If the store does not
    /// answer at once, this completes in the background.
    pub(super) fn adjust_by_response(self: &Arc<Self>, head: &ResponseHead<'_>) {
        let limits = self.config.client.limits();
        if !limits.settles_by_response() {
            return;
        }
        let actual = |limit: usize| limits.get(limit).actual_cost()?(head);
        let actual: Tokens = self.applicable().into_iter().filter_map(|limit| Some((limit, actual(limit)?))).collect();
        if actual.is_empty() {
            return;
        }
        let ledger = self.clone();
        let mut adjusting =
            Box::pin(async move { ledger.adjust(&|limit, paid| actual.get(&limit).copied().unwrap_or(paid)).await });
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
        let mut cells = self.cells(|_, _| 0);
        cells.retain(|cell| is_for(cell.limit()));
        // A refund during the reset would be taken from later charges.
        let taken = self.take_excess(&|limit, paid| if is_for(limit) { 0 } else { paid });
        let result = self.config.client.reset_cells(&cells).await;
        if result.is_err() {
            self.return_payments(taken);
        }
        result
    }

    /// Requests the current state of all limits that apply. Returns `None` if there are none.
    pub(super) fn peek(&self) -> Option<StoreFuture<Decision>> {
        let cells = self.cells(|_, _| 0);
        (!cells.is_empty()).then(|| self.decide(cells, Purpose::Peek))
    }

    /// Records a later decision. Returns a copy whose receipt is empty.
    pub(super) fn record(&self, decision: Decision) -> Decision {
        let copy = decision.without_charges();
        self.add(decision);
        copy
    }

    /// Decides where the first decision was made.
    fn decide(&self, cells: Cells, purpose: Purpose) -> StoreFuture<Decision> {
        let client = &self.config.client;
        match (self.by, purpose) {
            (DecidedBy::Store, Purpose::Take) => client.acquire(cells),
            (DecidedBy::Store, _) => client.peek(cells),
            (DecidedBy::Local | DecidedBy::Unlimited, _) => StoreFuture::ready(client.decide_locally(cells, purpose)),
        }
    }

    /// Refunds the tokens paid in excess. Returns whether there were any. Tries all refunds, and returns the first error.
    async fn refund_excess(&self, target: &TargetCost<'_>) -> Result<bool, StoreError> {
        let receipts = receipts(self.take_excess(target));
        let mut result = Ok(!receipts.is_empty());
        for receipt in receipts {
            result = result.and(self.config.client.refund(receipt).await.map(|()| true));
        }
        result
    }
}

/// Lowers the tokens to charge to denied limits to those that are available, including overage.
fn lower_to_available(missing: &mut Tokens, denied: &Decision) {
    for (limit, tokens) in missing {
        let outcome = denied.outcomes().iter().find(|outcome| outcome.limit() == *limit);
        if let Some(outcome) = outcome.filter(|outcome| !outcome.is_allowed()) {
            // A limit in shadow mode is charged all missing tokens or none.
            *tokens = if outcome.denies() { outcome.available().min(tokens.saturating_sub(1)) } else { 0 };
        }
    }
}

fn without_strikes(mut cells: Cells) -> Cells {
    cells.iter_mut().for_each(|cell: &mut Cell| cell.makes_strikes = false);
    cells
}
