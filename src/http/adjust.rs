//! Charges more or less after the first decision: for a route, by the request's handler, or by its response.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::ledger::{Ledger, TargetCost, receipts};
use crate::error::StoreError;
use crate::key::heads::ResponseHead;
use crate::recorder::Event;
use crate::store::decision::{Cell, Decision, Veto};
use crate::store::{Purpose, StoreFuture};

/// The maximum number of retries, if concurrent requests take the capacity that was found.
const MAX_RETRIES: usize = 8;

impl Ledger {
    /// Charges the tokens that are missing to the target cost, all or nothing.
    pub(super) async fn charge(&self, target: &TargetCost<'_>) -> Result<Decision, StoreError> {
        let decision = self.config.client.decide_by(self.by, self.missing(target), Purpose::Take).await?;
        Ok(self.record(decision))
    }

    /// Refunds the tokens paid in excess of the target cost, and charges the missing tokens as far as each limit has
    /// capacity. Returns the last decision, if anything was charged; whether a refund has followed it; and the tokens
    /// that could not be charged, for the limit that lacked the most.
    pub(super) async fn adjust(&self, target: &TargetCost<'_>) -> Result<(Option<Decision>, bool, u64), StoreError> {
        let client = &self.config.client;
        let has_refunded = self.refund_excess(target).await?;
        let missing = self.missing(target);
        if missing.iter().all(|cell| cell.cost() == 0) {
            return Ok((None, has_refunded, 0));
        }
        let (mut charged, mut retries) = (missing.clone(), 0..MAX_RETRIES);
        let decision = loop {
            // A denial is not the client's fault, so it is no strike.
            charged.iter_mut().for_each(|cell| cell.makes_strikes = false);
            let decision = client.decide_by(self.by, charged, Purpose::Take).await?;
            if decision.is_allowed() || retries.next().is_none() {
                break decision;
            }
            charged = self.cells(|limit, paid| {
                let missing = || target(limit, paid).saturating_sub(paid);
                outcome(&decision, limit).map_or_else(missing, lowered_to_available)
            });
        };
        let mut shortfall = 0;
        for cell in missing.iter().filter(|cell| !cell.is_of_penalty() && cell.veto() != Veto::Shadow) {
            let charged = || outcome(&decision, cell.limit()).map_or(cell.cost(), Cell::cost);
            let tokens = cell.cost().saturating_sub(if decision.is_allowed() { charged() } else { 0 });
            if tokens > 0 {
                let limit = client.limits().get(cell.limit()).name();
                client.report_event(&Event::Shortfall { limit, tokens });
                shortfall = shortfall.max(tokens);
            }
        }
        let decision = Some(self.record(decision));
        // Another task may have adjusted the same request meanwhile.
        Ok((decision, self.refund_excess(target).await?, shortfall))
    }

    /// Charges the difference to the cost of a route, all or nothing, in the store that took the first charge.
    ///
    /// If the difference is denied, the earlier charges are refunded, so that the decision has the wait for the full
    /// cost.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the policy is to reject.
    pub(super) async fn adjust_to_route(&self, cost: u64) -> Result<Decision, StoreError> {
        let client = &self.config.client;
        let own_cost = |limit: usize| client.limits().get(limit).cost.as_ref();
        let target = |limit, paid| if own_cost(limit).is_some() { paid } else { cost };
        let (full, difference) = (self.cells(target), self.missing(&target));
        let recording = client.start_recording(Purpose::Take);
        let mut decision = match self.refund_excess(&target).await {
            Ok(_) => client.decide_by(self.by, difference, Purpose::Take).await,
            Err(error) => client.decide_locally(Some(error), difference, Purpose::Take, recording),
        };
        if let Ok(denied) = &mut decision
            && !denied.is_allowed()
            && denied.decided_by() == self.by
            && self.refund_excess(&|_, _| 0).await.is_ok()
            && let Ok(full) = client.decide_by(self.by, full, Purpose::Peek).await
            && !full.is_allowed()
        {
            *denied = full;
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
        if !limits.settles_by_response {
            return;
        }
        let actual = |limit: usize| limits.get(limit).actual_cost.as_ref()?(head);
        let mut applicable = self.cells(|_, _| 0);
        applicable.retain(|cell| !cell.is_of_penalty());
        let actual = applicable.iter().filter_map(|cell| Some((cell.limit(), actual(cell.limit())?)));
        let actual: BTreeMap<usize, u64> = actual.collect();
        if actual.is_empty() {
            return;
        }
        let ledger = self.clone();
        let mut adjusting =
            Box::pin(async move { ledger.adjust(&|limit, paid| actual.get(&limit).copied().unwrap_or(paid)).await });
        match adjusting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((_, true, _))) if !self.config.headers.is_empty() => {
                if let Ok(Ok(decision)) = self.peek().into_ready() {
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
        let result = self.config.client.reset(cells).await;
        if result.is_err() {
            self.return_payments(taken);
        }
        result
    }

    /// Requests the current state of all limits that apply.
    pub(super) fn peek(&self) -> StoreFuture<Decision> {
        self.config.client.decide_by(self.by, self.cells(|_, _| 0), Purpose::Peek)
    }

    /// Records a later decision. Returns a copy whose receipt is empty.
    pub(super) fn record(&self, decision: Decision) -> Decision {
        let copy = decision.without_charges();
        self.add(decision);
        copy
    }

    /// Refunds the tokens paid in excess. Returns whether there were any. Tries all refunds, and returns the first
    /// error.
    async fn refund_excess(&self, target: &TargetCost<'_>) -> Result<bool, StoreError> {
        let receipts = receipts(self.take_excess(target));
        let mut result = Ok(!receipts.is_empty());
        for receipt in receipts {
            result = result.and(self.config.client.refund(receipt).await.map(|()| true));
        }
        result
    }
}

/// Returns the outcome of a limit.
fn outcome(decision: &Decision, limit: usize) -> Option<&Cell> {
    decision.outcomes().iter().find(|outcome| outcome.limit() == limit)
}

/// Returns the part of a cost that a denied request can be charged: if the limit denied it, the available tokens,
/// including overage.
fn lowered_to_available(outcome: &Cell) -> u64 {
    match outcome.is_allowed() {
        true => outcome.cost(),
        // A limit in shadow mode is charged all missing tokens or none.
        false if !outcome.denies() => 0,
        false => outcome.available().min(outcome.cost().saturating_sub(1)),
    }
}
