//! Decides requests by leased tokens: without a call, or by a call that takes a block of tokens besides the cost.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::blocks::{Ask, BlockCall};
use super::{Deadline, Engine};
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose, Receipt};
use crate::error::StoreError;
use crate::recorder::Event;
use crate::store::StoreFuture;

impl Engine {
    /// Decides a request by leased tokens, if there are enough for all of its limits.
    pub(super) fn decide_by_blocks(self: &Arc<Self>, charges: &mut Charges) -> Option<Decision> {
        let at = self.blocks.decide(charges);
        if at.is_none() && charges.len() > 1 {
            self.undo(charges);
        }
        Some(Decision::of(at?, DecidedBy::Lease, true, self.limits.store, mem::take(charges)))
    }

    /// Puts back the tokens of a request for which only some limits had enough.
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
            Ask::Denied(at) => {
                let decision = self.decision(at, DecidedBy::RememberedDenial, charges, Purpose::Take);
                self.record(began, &decision);
                StoreFuture::ready(Ok(decision))
            }
            Ask::Lease(call) => {
                // In a task of its own, so that the block remains if the caller gives up.
                let (answer, decision) = oneshot::channel();
                runtime.spawn(self.clone().lease(call, charges.clone(), deadline, answer));
                let engine = self.clone();
                StoreFuture::pending(async move {
                    let Ok(decision) = decision.await else {
                        let error = StoreError::of_one_request("the task that leases tokens has ended");
                        return engine.decide_locally(Some(error), charges, Purpose::Take, began);
                    };
                    decision.inspect(|decision| engine.record(began, decision))
                })
            }
            Ask::Wait(call) if !has_waited => {
                let (engine, deadline) = (self.clone(), deadline.begin());
                StoreFuture::pending(async move {
                    // An error says that the call has ended. Half of the time is left for a call of its own.
                    let _ = timeout(deadline.left() / 2, call.acquire()).await;
                    engine.decide_until(charges, Purpose::Take, || began, || deadline, true).await
                })
            }
            Ask::Wait(_) | Ask::Store => self.decide_in_store(charges, Purpose::Take, began, deadline),
        }
    }

    /// Decides a request by the store, keeps the blocks that it takes, and returns what is left of them at their ends.
    async fn lease(
        self: Arc<Self>,
        call: BlockCall,
        charges: Charges,
        deadline: Deadline,
        answer: oneshot::Sender<Result<Decision, StoreError>>,
    ) {
        let mut decision = self.decide_in_store(charges, Purpose::Take, None, deadline).await;
        let kept = match &mut decision {
            Ok(decision) => keep(&call, decision),
            Err(_) => Vec::new(),
        };
        drop(call);
        let _ = answer.send(decision);
        let began: Vec<_> = kept.iter().map(|(block, _)| (block.limit(), block.cost())).collect();
        // Each in a task of its own, whatever a recorder does.
        for (block, ends_at) in kept {
            tokio::spawn(self.clone().end_lease(block, ends_at));
        }
        for (limit, tokens) in began {
            self.report_event(&Event::LeaseBegan { limit: self.limits[limit].name(), tokens });
        }
    }

    /// Waits for the end of a lease, in µs, and returns the tokens that were not spent.
    async fn end_lease(self: Arc<Self>, mut block: Outcome, ends_at: Option<u64>) {
        let (limit, tokens) = (block.limit(), block.cost());
        if let Some(ends_at) = ends_at {
            sleep(Duration::from_micros(ends_at.saturating_sub(self.blocks.now()))).await;
            block.charge.cost = self.blocks.end(&block);
        }
        let unspent = block.cost();
        let receipt = Receipt { by: DecidedBy::Store, store: self.limits.store, charged: Charges::of([block]) };
        let returned = unspent == 0 || self.refund(receipt, self.deadline()).await.is_ok();
        self.report_event(&Event::LeaseEnded { limit: self.limits[limit].name(), tokens, unspent, returned });
    }
}

/// Keeps the blocks of a decision, each with the end of its lease, in µs, unless that is over.
fn keep(call: &BlockCall, decision: &mut Decision) -> Vec<(Outcome, Option<u64>)> {
    let mut kept = Vec::new();
    if decision.decided_by().is_store() {
        for outcome in decision.outcomes_mut() {
            let tokens = outcome.take_out_block();
            let ends_at = call.keep(outcome, tokens);
            if tokens > 0 {
                let mut block = outcome.clone();
                block.charge.cost = tokens;
                kept.push((block, ends_at));
            }
        }
    }
    kept
}
