//! Decides requests by leased tokens: without a call, or by a call that takes a block of tokens besides the cost.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::blocks::{Ask, BlockCall, Lease};
use super::{Deadline, Engine};
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose, Receipt};
use crate::error::StoreError;
use crate::recorder::Event;
use crate::store::StoreFuture;
use crate::time::Timestamp;

impl Engine {
    /// Decides a request by leased tokens, if there are enough for all of its limits.
    pub(super) fn decide_by_blocks(self: &Arc<Self>, charges: &mut Charges) -> Option<Decision> {
        let at = self.blocks.decide(charges);
        if at.is_none() && charges.len() > 1 {
            self.undo(charges);
        }
        Some(Decision::of(at?, DecidedBy::Lease, true, self.limits.store, mem::take(charges)))
    }

    /// Returns the tokens of a request that only some limits have.
    #[cold]
    fn undo(self: &Arc<Self>, charges: &mut Charges) {
        let mut charged = self.limits.no_charges();
        for outcome in charges.iter_mut().filter(|outcome| outcome.is_answered()) {
            charged.push(outcome.clone());
            outcome.set_unanswered();
        }
        self.refund_in_background(Receipt { by: DecidedBy::Lease, store: self.limits.store, charged });
    }

    /// Decides a request that no block has decided.
    #[cold]
    pub(super) fn decide_and_lease(
        self: &Arc<Self>,
        mut charges: Charges,
        began: Option<Instant>,
        deadline: Deadline,
        has_waited: bool,
    ) -> StoreFuture<Decision> {
        let Ok(runtime) = Handle::try_current() else {
            return self.decide_in_store(charges, Purpose::Take, began, deadline);
        };
        match self.blocks.ask(&mut charges) {
            Ask::Denied(at) => StoreFuture::ready(Ok(self.recorded(at, DecidedBy::RememberedDenial, charges, began))),
            Ask::Lease(call) => {
                // In a task of its own, so that the block remains if the caller gives up.
                let (answer, decision) = oneshot::channel();
                runtime.spawn(self.clone().lease(call, charges, began, deadline, answer));
                StoreFuture::pending(async move {
                    decision.await.unwrap_or_else(|_| Err(StoreError::new("the task that leases tokens has ended")))
                })
            }
            Ask::Wait(call) if !has_waited => {
                let (engine, deadline) = (self.clone(), deadline.begin());
                StoreFuture::pending(async move {
                    // An error says that the call has ended.
                    let _ = deadline.limit(call.acquire()).await;
                    engine.decide_after_call(charges, began, deadline).await
                })
            }
            Ask::Wait(_) | Ask::Store => {
                charges.want_no_blocks();
                self.decide_in_store(charges, Purpose::Take, began, deadline)
            }
        }
    }

    /// Decides a request that has waited for the call of another: by the block, as the call was denied, or by a call of its
    /// own.
    fn decide_after_call(
        self: &Arc<Self>,
        mut charges: Charges,
        began: Option<Instant>,
        deadline: Deadline,
    ) -> StoreFuture<Decision> {
        if let Some(decision) = self.decide_by_blocks(&mut charges) {
            self.record(began, &decision);
            return StoreFuture::ready(Ok(decision));
        }
        match self.guard.store.decide_at_once(&mut charges, Purpose::Take) {
            Some(at) => StoreFuture::ready(Ok(self.recorded(at, self.by_at_once, charges, began))),
            None => self.decide_and_lease(charges, began, deadline, true),
        }
    }

    fn recorded(&self, at: Timestamp, by: DecidedBy, charges: Charges, began: Option<Instant>) -> Decision {
        let decision = self.decision(at, by, charges, Purpose::Take);
        self.record(began, &decision);
        decision
    }

    /// Decides a request by the store, keeps the blocks that it takes, and returns what is left of them at their ends.
    async fn lease(
        self: Arc<Self>,
        call: BlockCall,
        charges: Charges,
        began: Option<Instant>,
        deadline: Deadline,
        answer: oneshot::Sender<Result<Decision, StoreError>>,
    ) {
        let mut decision = self.decide_in_store(charges, Purpose::Take, began, deadline).await;
        let mut kept = match &mut decision {
            Ok(decision) => keep(&call, decision),
            Err(_) => Vec::new(),
        };
        drop(call);
        let _ = answer.send(decision);
        for (block, _) in &kept {
            let limit = self.limits[block.limit()].name();
            self.report_event(&Event::LeaseBegan { limit, tokens: block.cost() });
        }
        kept.sort_by_key(|(_, lease)| lease.as_ref().map(|lease| lease.ends_at));
        for (block, lease) in kept {
            self.end_lease(block, lease).await;
        }
    }

    /// Waits for the end of a lease, and returns the tokens that were not spent.
    async fn end_lease(self: &Arc<Self>, mut block: Outcome, lease: Option<Lease>) {
        let (limit, tokens) = (block.limit(), block.cost());
        if let Some(lease) = lease {
            sleep(Duration::from_micros(lease.ends_at.saturating_sub(self.blocks.now()))).await;
            block.charge.cost = self.blocks.end(&block, lease.number);
        }
        let unspent = block.cost();
        let receipt = Receipt { by: DecidedBy::Store, store: self.limits.store, charged: Charges::of([block]) };
        let returned = unspent == 0 || self.refund(receipt, self.deadline()).await.is_ok();
        self.report_event(&Event::LeaseEnded { limit: self.limits[limit].name(), tokens, unspent, returned });
    }

    /// Puts tokens that were spent from blocks back. Returns those whose lease has ended, which the store refunds.
    pub(super) fn put_back(&self, mut charged: Charges) -> Charges {
        charged.retain(|outcome| !self.blocks.put_back(outcome));
        charged
    }
}

/// Keeps the blocks of a decision, each with its lease unless that is over.
fn keep(call: &BlockCall, decision: &mut Decision) -> Vec<(Outcome, Option<Lease>)> {
    let mut kept = Vec::new();
    if decision.decided_by().is_store() {
        for outcome in decision.outcomes_mut() {
            let tokens = outcome.take_out_block();
            let lease = call.keep(outcome, tokens);
            if tokens > 0 {
                let mut block = outcome.clone();
                block.charge.cost = tokens;
                kept.push((block, lease));
            }
        }
    }
    kept
}
