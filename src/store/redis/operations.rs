//! Implements [`Store`]: the operations on the keys of one slot or server, in one round trip, and decisions on those of
//! several slots of a Cluster, which no single script can make.
//!
//! First all slots are peeked at concurrently: most denials end there and reserve nothing. Then the slots are charged
//! in turn, and refunded by their marks if a later one denies. All requests charge slots in the same order, so that of
//! several that compete for the last tokens of the same limits, one gets them all. A reservation can only cause others
//! to be denied, never to be admitted.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::cluster::{group_by_slot, slot_of_key};
use super::error::Fault;
use super::request::{INVALID_OVERRIDE, Request, Task, next_override};
use super::store::{Deployment, RedisStore};
use crate::algorithm::KeyState;
use crate::decision::{Charges, Outcome, Purpose, Veto, allows, enforce_quotas};
use crate::key::hash::{KeyHash, KeyHasher};
use crate::store::denials::Change;
use crate::store::{Answer, Node, Override, OverrideOperation, Store, StoreFuture, StoreUsage};
use crate::time::{Clock, SystemClock, Timestamp};

/// The maximum number of round trips that fail because Redis' clock is in none of the calendar windows of the request:
/// two, if Redis' clock is set in between.
const MAX_CLOCK_CORRECTIONS: usize = 2;

impl Store for RedisStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher.get().of_store_at(&format!("{} {}", self.name, self.prefix))
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        let change = self.denials.begin(charges, purpose);
        // Those of one subject share a slot.
        if self.deployment.is_cluster() && charges.iter().any(|outcome| outcome.key() != charges[0].key()) {
            let request = CrossSlotRequest::new(self.clone(), charges);
            return StoreFuture::pending(async move { Ok(request.decide(purpose, change).await?) });
        }
        let task = if purpose == Purpose::Take { Task::Acquire } else { Task::Peek };
        let (store, mut charges) = (self.clone(), Box::new(charges.clone()));
        StoreFuture::pending(async move {
            let (at, until) = store.ask(task, purpose, &mut charges).await?;
            change.decided(&charges, at, until);
            Ok(Answer::with_charges(Timestamp::from_micros(at), charges))
        })
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.change(charges, Request::refund)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.change(charges, Request::reset)
    }

    fn decide_at_once(&self, charges: &mut Charges, _: Purpose) -> Option<Timestamp> {
        self.denials.answer(charges, self.test_clock())
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        match &self.deployment {
            Deployment::Single(_) => None,
            Deployment::Cluster(cluster) => cluster.node(slot_of_key(key)),
        }
    }

    fn name(&self) -> Option<String> {
        Some(self.name.to_string())
    }

    fn usage(&self) -> StoreUsage {
        let queued = match &self.deployment {
            Deployment::Single(workers) => workers.waiting(),
            Deployment::Cluster(cluster) => cluster.waiting(),
        };
        StoreUsage { queued: Some(queued as u64), ..StoreUsage::default() }
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (request, purpose) = match operation {
            OverrideOperation::Get => (Request::of_override(Task::GetOverride, &self.prefix, charges), Purpose::Peek),
            OverrideOperation::Set(size) => (Request::set_override(&self.prefix, charges, size), Purpose::Take),
            OverrideOperation::Remove => (Request::of_override(Task::Reset, &self.prefix, charges), Purpose::Take),
        };
        let change = self.denials.begin(&charges[..1], purpose);
        let (store, charge) = (self.clone(), charges[0].charge);
        StoreFuture::pending(async move {
            // Dropped after the reply, which forgets earlier denials.
            let _change = change;
            let (now, reply) = store.send(request).await?;
            let Some(stored) = next_override(&mut reply.states.iter())? else { return Ok(None) };
            Ok(Some(stored.of(&charge, now).ok_or(INVALID_OVERRIDE)?))
        })
    }
}

impl RedisStore {
    /// Lets the script decide charges, and fills in their answers. If Redis' clock is in another calendar window, the
    /// script decides nothing, and this corrects and repeats the request. Returns the instant of the decision, and that
    /// from which other overrides may apply, in µs.
    async fn ask(&self, task: Task, purpose: Purpose, charges: &mut Charges) -> Result<(u64, u64), Fault> {
        let has_calendar = charges.iter().any(|outcome| outcome.algorithm().is_calendar());
        // A new clock for each call, because the wall clock may have been corrected since the process started.
        let local = || self.test_clock().unwrap_or_else(|| SystemClock::new().now().as_micros());
        let mut now = if has_calendar { local() } else { 0 };
        let mut corrections = 0..MAX_CLOCK_CORRECTIONS;
        loop {
            let request = Request::decide(&self.prefix, task, now, charges);
            match self.send(request).await {
                Ok((at, reply)) => return Ok((at, reply.answer(task, purpose, charges, at)?)),
                Err(fault) => match fault.redis_clock().filter(|_| corrections.next().is_some()) {
                    Some(redis_clock) => now = redis_clock,
                    None => return Err(fault),
                },
            }
        }
    }

    /// Changes the states of charges by a request for each slot, all at the same time.
    fn change(&self, charges: &Charges, encode: fn(&str, &Charges, &[usize]) -> Request) -> StoreFuture<()> {
        if charges.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let is_cluster = self.deployment.is_cluster();
        let slots = if is_cluster { group_by_slot(charges) } else { vec![(0..charges.len()).collect()] };
        let requests: Vec<_> = slots.iter().map(|positions| encode(&self.prefix, charges, positions)).collect();
        let change = self.denials.begin(charges, Purpose::Take);
        let store = self.clone();
        StoreFuture::pending(async move {
            let replies = join_all(requests.into_iter().map(|request| store.send(request))).await;
            drop(change);
            Ok(replies.into_iter().try_for_each(|reply| reply.map(drop))?)
        })
    }
}

/// A request in several slots.
struct CrossSlotRequest {
    store: RedisStore,
    /// The charges, with their latest outcomes.
    charges: Charges,
    /// The positions of the charges of each slot.
    slots: Vec<Vec<usize>>,
    /// Several slots have limits in quota mode. None of them can enforce it, so each decides these in shadow mode.
    splits_quotas: bool,
    /// The latest instant of all answers, in µs.
    at: u64,
}

struct SlotAnswer {
    /// The index of the slot.
    slot: usize,
    /// The instant, in µs.
    at: u64,
    charges: Charges,
}

impl CrossSlotRequest {
    fn new(store: RedisStore, charges: &Charges) -> Self {
        let slots = group_by_slot(charges);
        let has_quota = |slot: &&Vec<usize>| slot.iter().any(|&position| charges[position].veto() == Veto::Quota);
        let splits_quotas = slots.iter().filter(has_quota).count() > 1;
        Self { store, charges: charges.clone(), slots, splits_quotas, at: 0 }
    }

    /// Decides the request. The `change` ends after all refunds, because the charges end the remembered denials of
    /// others. A denial by several slots is not remembered, because each slot decides at an instant of its own.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::NoRuntime`] outside a Tokio runtime, on which reservations are refunded if the caller gives up.
    async fn decide(mut self, purpose: Purpose, mut change: Change) -> Result<Answer, Fault> {
        let runtime = Handle::try_current().map_err(|_| Fault::NoRuntime)?;
        // A denial at this point is final, so it counts as a strike.
        let task = if purpose == Purpose::Take { Task::PeekWithStrikes } else { Task::Peek };
        let answers = join_all((0..self.slots.len()).map(|slot| self.ask(task, slot))).await;
        let mut failed = None;
        for answer in answers {
            match answer {
                Ok(answer) => self.record(answer),
                Err(fault) => failed = Some(fault),
            }
        }
        // A denial stands, whatever the slots without an answer contain: they report that they are unused.
        if let Some(fault) = failed {
            if !self.charges.iter().any(|outcome| outcome.is_answered() && outcome.denies()) {
                return Err(fault);
            }
            for outcome in self.charges.iter_mut().filter(|outcome| !outcome.is_answered()) {
                outcome.peek(&KeyState::UNUSED, self.at, false);
                outcome.complete(&mut KeyState::UNUSED.clone(), false);
                outcome.wait = 0;
            }
        }
        let is_allowed = allows(&self.charges);
        if purpose == Purpose::Take && is_allowed {
            // In a task of its own, so that a caller that gives up leaves nothing reserved.
            let (answer, decision) = oneshot::channel();
            runtime.spawn(self.reserve(change, answer));
            return decision.await.unwrap_or(Err(Fault::Interrupted));
        }
        if !self.charges.iter().any(|outcome| outcome.is_of_penalty()) {
            change.changes = false;
        }
        Ok(self.finish())
    }

    /// Charges the slots that have costs, all or none.
    async fn reserve(mut self, change: Change, decision: oneshot::Sender<Result<Answer, Fault>>) {
        let mut reserved = self.charges.select([]);
        let mut denied = None;
        for slot in 0..self.slots.len() {
            if self.slots[slot].iter().all(|&position| self.charges[position].cost() == 0) {
                continue;
            }
            if decision.is_closed() || denied.is_some() {
                break;
            }
            match self.ask(Task::Acquire, slot).await {
                Ok(answer) => {
                    denied = answer.charges.iter().any(Outcome::denies).then_some(slot);
                    if denied.is_none() {
                        let is_charged =
                            |outcome: &&Outcome| outcome.cost() > 0 && outcome.is_allowed() && !outcome.is_of_penalty();
                        answer.charges.iter().filter(is_charged).for_each(|charged| reserved.push(charged.clone()));
                    }
                    self.record(answer);
                }
                Err(fault) => {
                    let _ = decision.send(Err(fault));
                    let _ = self.store.refund(&reserved).await;
                    return;
                }
            }
        }
        // The quotas that were available when all slots were peeked at may be exhausted.
        if denied.is_none() && allows(&self.charges) && !decision.is_closed() {
            if decision.send(Ok(self.finish())).is_err() {
                let _ = self.store.refund(&reserved).await;
            }
            return;
        }
        // Reservations that cannot be refunded stay charged.
        let _ = self.store.refund(&reserved).await;
        drop(change);
        if decision.is_closed() {
            return;
        }
        // The answers that deny stand: others must not turn a request that was not charged into an allowed one.
        let denies = |slot: usize| {
            let has_quota = |&position: &usize| self.charges[position].veto() == Veto::Quota;
            denied.map_or_else(|| self.slots[slot].iter().any(has_quota), |denied| slot == denied)
        };
        let others = (0..self.slots.len()).filter(|slot| !denies(*slot));
        let answers = join_all(others.map(|slot| self.ask(Task::Peek, slot))).await;
        // Without an answer, the previous one of the slot stands.
        answers.into_iter().flatten().for_each(|answer| self.record(answer));
        let _ = decision.send(Ok(self.finish()));
    }

    /// Lets a slot decide its charges.
    async fn ask(&self, task: Task, slot: usize) -> Result<SlotAnswer, Fault> {
        let mut asked = self.charges.select(self.slots[slot].iter().copied());
        asked.ask_again();
        if self.splits_quotas {
            asked.iter_mut().filter(|charge| charge.veto == Veto::Quota).for_each(|quota| quota.set_veto(Veto::Shadow));
        }
        let purpose = if task == Task::Peek { Purpose::Peek } else { Purpose::Take };
        let (at, _) = self.store.ask(task, purpose, &mut asked).await?;
        Ok(SlotAnswer { slot, at, charges: asked })
    }

    /// Replaces the answers of a slot.
    fn record(&mut self, answer: SlotAnswer) {
        self.at = self.at.max(answer.at);
        for (&position, answered) in self.slots[answer.slot].iter().zip(&*answer.charges) {
            let outcome = &mut self.charges[position];
            let veto = outcome.veto;
            *outcome = answered.clone();
            if self.splits_quotas {
                outcome.set_veto(veto);
            }
        }
    }

    fn finish(&mut self) -> Answer {
        let mut charges = std::mem::take(&mut self.charges);
        enforce_quotas(&mut charges);
        Answer::with_charges(Timestamp::from_micros(self.at), charges)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use crate::RedisConfig;
    use crate::algorithm::FixedWindow;
    use crate::decision::{Charge, Charges, Purpose};
    use crate::store::Store;

    #[test]
    fn a_request_in_several_slots_outside_a_runtime_is_an_error() {
        let store = RedisConfig::cluster(["redis://127.0.0.1:1"]).connect_lazily().unwrap();
        let hasher = store.hasher();
        let charge = |limit: u16, key: &[u8]| {
            Charge::new(limit, "limit", FixedWindow::per_day(1).into(), &hasher).with_key(hasher.hash(key), 1)
        };
        let mut charges = Charges::of([charge(0, b"ann"), charge(1, b"bob")]);
        let answer = store.decide(&mut charges, Purpose::Take, std::time::Duration::MAX).now_or_never();
        assert!(matches!(answer, Some(Err(_))));
    }
}
