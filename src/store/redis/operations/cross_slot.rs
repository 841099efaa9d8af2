//! Requests for several subjects whose keys are in different slots of a Cluster, so that no single script can decide
//! them.
//!
//! First all slots are peeked at concurrently: most denials end there and reserve nothing. Then the slots are charged
//! in turn, and refunded by their marks if a later one denies. All requests charge slots in the same order, so that of
//! several that compete for the last tokens of the same limits, one gets them all. A reservation can only cause others
//! to be denied, never to be admitted.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::report::{Report, SlotCharge};
use crate::decision::Decision;
use crate::limit_spec;
use crate::store::denials::Invalidation;
use crate::store::redis::charge::{outcomes, requests};
use crate::store::redis::error::Fault;
use crate::store::redis::script::{Task, encode_clock};
use crate::store::redis::slot;
use crate::store::redis::store::RedisStore;
use crate::store::{Charge, Refund};

/// A request's charges by slot.
pub(super) struct CrossSlotRequest {
    store: RedisStore,
    slots: Vec<Vec<SlotCharge>>,
    /// Dropped after all refunds, because the charges end the cached denials of others. A denial by several slots is not
    /// cached, because each slot decides at an instant of its own.
    invalidation: Option<Invalidation>,
}

/// The decision of one slot.
type SlotDecision = Result<Decision, Fault>;

/// The decisions that charged a slot, with the slot's index.
type Reservations = Vec<(usize, Decision)>;

impl CrossSlotRequest {
    pub(super) fn new(store: RedisStore, charges: &[Charge<'_>], invalidation: Option<Invalidation>) -> Self {
        let own = |(position, Charge { spec, key, cost }): (_, Charge<'_>)| {
            let spec = spec.clone();
            SlotCharge { position, is_cross_slot_quota: false, spec, key, cost }
        };
        let slots = slot::group(charges.iter().copied(), |charge| charge.key);
        let mut slots: Vec<Vec<SlotCharge>> =
            slots.into_iter().map(|(_, slot)| slot.into_iter().map(own).collect()).collect();
        let has_quota = |slot: &&Vec<SlotCharge>| slot.iter().any(|charge| charge.spec.is_quota());
        if slots.iter().filter(has_quota).count() > 1 {
            // No slot has all quotas, so the report enforces them.
            for charge in slots.iter_mut().flatten().filter(|charge| charge.spec.is_quota()) {
                charge.is_cross_slot_quota = true;
                charge.spec = Arc::new(charge.spec.in_shadow());
            }
        }
        Self { store, slots, invalidation }
    }

    pub(super) async fn decide(mut self, task: Task) -> SlotDecision {
        let is_charged = |slot: &&Vec<SlotCharge>| task == Task::Acquire && is_charged(slot);
        if self.slots.iter().filter(is_charged).count() > 1 {
            return self.acquire().await;
        }
        // At most one slot is charged. The others deny nothing, because a cost of 0 is always allowed.
        let decisions = self.slots.iter().map(|slot| {
            let task = if is_charged(&slot) { Task::Acquire } else { Task::Peek };
            self.decide_slot(task, slot)
        });
        let decisions = join_all(decisions).await;
        if decisions.iter().any(Result::is_err) {
            let charged = |(index, decision): (_, &SlotDecision)| {
                Some((index, decision.as_ref().ok().filter(|it| it.is_charged())?.without_charges()))
            };
            let reservations: Reservations = decisions.iter().enumerate().filter_map(charged).collect();
            let report = Report::new(&self.slots, decisions);
            let decision = report.map(|report| report.decision(&self.slots, false));
            tokio::spawn(async move { self.refund(reservations).await });
            return decision;
        }
        if !decisions.iter().flatten().any(Decision::is_charged) {
            self.charged_nothing();
        }
        Ok(Report::new(&self.slots, decisions)?.decision(&self.slots, task == Task::Acquire))
    }

    async fn acquire(mut self) -> SlotDecision {
        // A denial at this point is final, so it counts as a strike.
        let task = if self.has_penalties() { Task::PeekWithStrikes } else { Task::Peek };
        let decisions = join_all(self.slots.iter().map(|slot| self.decide_slot(task, slot))).await;
        let report = Report::new(&self.slots, decisions)?;
        if !report.is_allowed(&self.slots) {
            self.charged_nothing();
            return Ok(report.decision(&self.slots, false));
        }
        // In a task of its own, so that a caller that gives up leaves nothing reserved.
        let (answer, decision) = oneshot::channel();
        tokio::spawn(self.reserve(report, answer));
        decision.await.unwrap_or(Err(Fault::Reply("expected more replies")))
    }

    async fn reserve(mut self, mut report: Report, answer: oneshot::Sender<SlotDecision>) {
        let mut invalidation = self.invalidation.take();
        let mut reservations = Reservations::new();
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| is_charged(slot)) {
            if answer.is_closed() {
                return self.refund(reservations).await;
            }
            match self.decide_slot(Task::Acquire, slot).await {
                Ok(decision) if decision.is_allowed() => {
                    reservations.push((index, decision.without_charges()));
                    report.record(slot, decision);
                }
                Ok(denial) => {
                    if reservations.is_empty()
                        && !self.has_penalties()
                        && let Some(invalidation) = invalidation.take()
                    {
                        invalidation.end(false);
                    }
                    self.refund(reservations).await;
                    report.record(slot, denial);
                    drop(invalidation);
                    self.peek_again(&mut report, Some(index)).await;
                    let _ = answer.send(Ok(report.decision(&self.slots, false)));
                    return;
                }
                Err(fault) => {
                    let _ = answer.send(Err(fault));
                    return self.refund(reservations).await;
                }
            }
        }
        if !report.is_allowed(&self.slots) {
            // The quotas that were available when all slots were peeked at are exhausted.
            self.refund(reservations).await;
            drop(invalidation);
            self.peek_again(&mut report, None).await;
            let _ = answer.send(Ok(report.decision(&self.slots, false)));
            return;
        }
        if answer.send(Ok(report.decision(&self.slots, true))).is_err() {
            self.refund(reservations).await;
        }
    }

    /// Returns whether a slot may have changed state without a charge, by a strike.
    fn has_penalties(&self) -> bool {
        self.slots.iter().flatten().any(|charge| charge.spec.penalty().is_some())
    }

    fn charged_nothing(&mut self) {
        if !self.has_penalties()
            && let Some(invalidation) = self.invalidation.take()
        {
            invalidation.end(false);
        }
    }

    /// Updates the report after all refunds, except for the slot that denied.
    async fn peek_again(&self, report: &mut Report, denied: Option<usize>) {
        let others = self.slots.iter().enumerate().filter(|(index, _)| Some(*index) != denied);
        let decisions = others.map(|(_, slot)| async move { (slot, self.decide_slot(Task::Peek, slot).await) });
        for (slot, decision) in join_all(decisions).await {
            // Without an answer, the slot's previous outcomes stand.
            if let Ok(decision) = decision {
                report.record(slot, decision);
            }
        }
    }

    /// Lets one slot decide its charges.
    async fn decide_slot(&self, task: Task, slot: &[SlotCharge]) -> SlotDecision {
        let charges: Vec<_> = slot.iter().map(SlotCharge::charge).collect();
        let mut prepared = self.store.prepare(&charges);
        let (now, reply) = self.store.perform(task, self.store.test_clock(), &mut prepared).await?;
        outcomes::decision(task, now, &prepared, &reply)
    }

    /// Refunds reservations, once. Those that cannot be refunded stay charged.
    async fn refund(&self, reservations: Reservations) {
        let refunds = reservations.iter().map(|(index, decision)| {
            let outcomes = self.slots[*index].iter().zip(decision.outcomes());
            let charged = outcomes.filter(|(charge, outcome)| charge.cost > 0 && outcome.is_allowed());
            let refunds = charged.map(|(SlotCharge { spec, key, cost, .. }, outcome)| Refund {
                spec: limit_spec::find(outcome.limit(), decision.resized()).unwrap_or(spec),
                key: *key,
                cost: *cost,
                mark: outcome.mark,
            });
            let refund = requests::refund(&self.store.prefix, &refunds.collect::<Vec<_>>());
            self.store.deployment.ask(self.store.test_clock().map(encode_clock), refund)
        });
        join_all(refunds).await;
    }
}

/// Returns whether a slot has a charge of at least one token.
fn is_charged(slot: &[SlotCharge]) -> bool {
    slot.iter().any(|charge| charge.cost > 0)
}
