//! Charges more or less after the first decision: for a route, by the request's handler, or by its response.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::ledger::{Balance, Ledger, TargetCost};
use crate::decision::{DecidedBy, Decision};
use crate::error::StoreError;
use crate::reason::Reason;
use crate::recorder::Event;
use crate::response::ResponseHead;
use crate::store::{Charge, StoreFuture};

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
        let decision = self.acquire(&charges(&balances, Balance::missing)).await?;
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
        // A denial here is not the client's fault, so it is no strike.
        balances.iter_mut().for_each(Balance::ignore_strikes);
        let owed: Vec<u64> = balances.iter().map(|balance| balance.target.cost).collect();
        let mut retries = 1..=MAX_RETRIES;
        let decision = loop {
            let decision = self.acquire(&charges(&balances, Balance::missing)).await?;
            if decision.is_allowed() {
                break decision;
            }
            if retries.next().is_none() {
                balances.iter_mut().for_each(|balance| balance.target.cost = balance.paid);
                break decision;
            }
            self.lower_to_available(&mut balances, decision).await?;
        };
        let mut shortfall = 0;
        for (balance, owed) in balances.iter().zip(owed) {
            let spec = &balance.target.spec;
            let tokens = owed.saturating_sub(balance.target.cost.max(balance.paid));
            if tokens > 0 && spec.is_enforced() {
                self.config.client.report_event(&Event::Shortfall { limit: spec.name(), tokens });
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
        let own_cost = |limit: usize| client.limits().get(limit).0.own_cost();
        let target = |limit, paid| if own_cost(limit).is_some() { paid } else { cost };
        let balances = self.balances(&target);
        let full = charges(&balances, |balance| balance.target.cost);
        // If the difference is denied, only the denial of the full cost counts towards penalties.
        let mut lenient = self.balances(&target);
        lenient.iter_mut().for_each(Balance::ignore_strikes);
        let difference = charges(&lenient, Balance::missing);
        let recording = client.start_recording();
        let mut denied = None;
        let refund = async |target: &TargetCost<'_>| {
            for receipt in self.take_excess(target) {
                client.charged_store(receipt.by).refund(&client.refunds(&receipt)).await?;
            }
            Ok::<_, StoreError>(())
        };
        let adjusting = async {
            let store = client.charged_store(self.by);
            refund(&target).await?;
            let decision = store.decide(&difference).await?;
            if decision.is_allowed() {
                return Ok(decision);
            }
            denied = Some(decision);
            refund(&|_, _| 0).await?;
            store.decide(&full).await
        };
        let decision = if self.by == DecidedBy::Store {
            let decision = match client.admit(&difference) {
                Ok(attempt) => client.await_answer(attempt, adjusting).await,
                Err(error) => {
                    drop(adjusting);
                    Err(error)
                }
            };
            // A denial of the difference stands, even if the store has failed since.
            decision.or_else(|error| denied.map_or_else(|| client.fall_back_to_acquire(error, &difference), Ok))
        } else {
            adjusting.await
        };
        let decision = decision.inspect(|decision| client.record_waited(recording, decision, &difference));
        if !decision.as_ref().is_ok_and(Decision::is_allowed) {
            for receipt in self.take_excess(&|_, _| 0) {
                client.refund_in_background(&receipt);
            }
        }
        decision.map(|decision| self.resize(decision)).map_err(|_| {
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
        let actual = |limit: usize| limits.get(limit).0.actual_cost()?(head);
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
                    self.add(self.resize(decision));
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

    /// Resets the keys of the limits for which `is_for` holds, and removes their charges.
    pub(super) async fn reset(&self, is_for: impl Fn(usize) -> bool + Send + Sync) -> Result<(), StoreError> {
        // A refund after the reset would be taken from later charges.
        drop(self.take_excess(&|limit, paid| if is_for(limit) { 0 } else { paid }));
        let mut balances = self.balances(&|_, _| 0);
        balances.retain(|balance| is_for(balance.limit()));
        let keys: Vec<_> = balances.iter().map(|balance| (&balance.target.spec, balance.target.key)).collect();
        self.config.client.reset_keys(&keys).await
    }

    /// Requests the current state of all limits that apply. Returns `None` if there are none.
    pub(super) fn peek(&self) -> Option<StoreFuture<Decision>> {
        let balances = self.balances(&|_, paid| paid);
        (!balances.is_empty()).then(|| self.peek_charges(&charges(&balances, |_| 0)))
    }

    /// Records a later decision. Returns a copy whose receipt is empty.
    pub(super) fn record(&self, decision: Decision) -> Decision {
        let decision = self.resize(decision);
        let copy = decision.without_charges();
        self.add(decision);
        copy
    }

    fn peek_charges(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let client = &self.config.client;
        if self.by == DecidedBy::Store { client.peek(charges) } else { client.charged_store(self.by).peek(charges) }
    }

    fn acquire(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let client = &self.config.client;
        if self.by == DecidedBy::Store { client.acquire(charges) } else { client.decide_locally(charges) }
    }

    /// Lowers the targets to the tokens that each limit may have capacity for, after a denial.
    async fn lower_to_available(&self, balances: &mut [Balance], denied: Decision) -> Result<(), StoreError> {
        let has_overage = |balance: &Balance| balance.target.spec.algorithm().overage() > 0;
        // A decision does not contain the remaining overage. A peek at the limit with all its overage does.
        let decision = if balances.iter().any(has_overage) {
            let at_ceiling = |balance: &Balance| Arc::new(balance.target.spec.with_overage_reported());
            let ceilings: Vec<_> = balances.iter().map(at_ceiling).collect();
            let charges = charges(balances, Balance::missing).into_iter().zip(&ceilings);
            let charges: Vec<Charge<'_>> = charges.map(|(charge, spec)| Charge { spec, ..charge }).collect();
            self.peek_charges(&charges).await?
        } else {
            denied
        };
        for (balance, outcome) in balances.iter_mut().zip(decision.outcomes()) {
            if !outcome.is_allowed() {
                // A limit in shadow mode is charged all missing tokens or none.
                let available =
                    if outcome.denies() { outcome.remaining().min(balance.missing().saturating_sub(1)) } else { 0 };
                balance.target.cost = balance.paid.saturating_add(available);
            }
        }
        Ok(())
    }

    /// Refunds the tokens paid in excess. Returns whether there were any.
    async fn refund_excess(&self, target: &TargetCost<'_>) -> Result<bool, StoreError> {
        let receipts = self.take_excess(target);
        for receipt in &receipts {
            self.config.client.refund(receipt).await?;
        }
        Ok(!receipts.is_empty())
    }
}

impl Balance {
    /// Returns the limit's index.
    pub(super) fn limit(&self) -> usize {
        self.target.spec.index().into()
    }

    /// Returns the tokens that are missing to the target cost.
    fn missing(&self) -> u64 {
        self.target.cost.saturating_sub(self.paid)
    }

    /// Keeps denials from counting towards penalties.
    fn ignore_strikes(&mut self) {
        self.target.spec = self.target.spec.without_strikes();
    }
}

/// Returns one charge for each balance, at a cost that depends on the balance.
fn charges(balances: &[Balance], cost: impl Fn(&Balance) -> u64) -> Vec<Charge<'_>> {
    balances.iter().map(|balance| Charge { cost: cost(balance), ..balance.target.as_charge() }).collect()
}
