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
use super::request::{INVALID_OVERRIDE, Reply, Request, Task, next_override};
use super::store::{Deployment, RedisStore, SlotStore};
use crate::algorithm::KeyState;
use crate::decision::{Charges, Outcome, Purpose, Veto, allows, enforce_quotas};
use crate::error::StoreError;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::store::{Answer, Node, Override, OverrideOperation, Remembering, Store, StoreFuture, StoreUsage};
use crate::time::{Clock, SystemClock, Timestamp};

/// The maximum number of round trips that fail because Redis' clock is in none of the calendar windows of the request:
/// two, if Redis' clock is set in between.
const MAX_CLOCK_CORRECTIONS: usize = 2;

/// Encodes a request about the charges at some positions.
type Encode = fn(&str, &Charges, &[usize]) -> Request;

/// Wraps the operations on one slot, so that denials of other requests end with each charge and each refund of a slot.
impl Store for RedisStore {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }

    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        // Those of one subject share a slot.
        let is_cluster = self.0.inner.deployment.is_cluster();
        if is_cluster && charges.iter().any(|outcome| outcome.key() != charges[0].key()) {
            return StoreFuture::pending(CrossSlotRequest::new(self.0.clone(), charges).decide(purpose));
        }
        self.0.decide(charges, purpose, longest_wait)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.reset(charges)
    }

    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        self.0.decide_at_once(charges, purpose)
    }
}

/// Its decisions are those on the keys of one slot.
impl Store for SlotStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher.get().with_readable_keys()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        let task = match purpose {
            Purpose::Take if charges.iter().any(|outcome| outcome.wanted_block() > 0) => Task::Lease,
            Purpose::Take => Task::Acquire,
            Purpose::Peek | Purpose::Preview => Task::Peek,
        };
        self.run(task, purpose, charges)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.change(charges, Request::refund)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.change(charges, Request::reset)
    }

    fn renew(&self, charges: &Charges) -> Option<StoreFuture<Answer>> {
        let (store, charges) = (self.clone(), charges.clone());
        Some(StoreFuture::pending(async move {
            // A request for each key, so that the error of one leaves the others alone. They share calls.
            let request = |position| (vec![position], Request::renew(&store.prefix, &charges, position));
            let requests = (0..charges.len()).map(request).collect();
            let renewed = store.send_all(requests).await.into_iter().enumerate().map(|(position, (_, reply))| {
                let (now, reply) = reply?;
                Ok((Timestamp::from_micros(now), reply.mark_of_renewal(&charges[position], now)?))
            });
            Answer::of_renewals(&charges, renewed.collect())
        }))
    }

    fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        match &self.deployment {
            Deployment::Single(_) => None,
            Deployment::Cluster(cluster) => cluster.node(slot_of_key(key)),
        }
    }

    /// All processes reach the same store at an address.
    fn identity(&self) -> u32 {
        self.hasher.0.hash(format!("{} {}", self.name, self.prefix).as_bytes()).as_u128() as u32
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
        let request = match operation {
            OverrideOperation::Get => Request::of_override(Task::GetOverride, &self.prefix, charges),
            OverrideOperation::Set(size) => Request::set_override(&self.prefix, charges, size),
            OverrideOperation::Remove => Request::of_override(Task::Reset, &self.prefix, charges),
        };
        let (store, charge) = (self.clone(), charges[0].charge);
        StoreFuture::pending(async move {
            let (now, reply) = store.send(request).await?;
            let Some(stored) = next_override(&mut reply.states.iter())? else { return Ok(None) };
            Ok(Some(stored.of(&charge, now).ok_or(INVALID_OVERRIDE)?))
        })
    }
}

impl SlotStore {
    /// Runs a task of the script on the charges of one slot.
    fn run(&self, task: Task, purpose: Purpose, charges: &Charges) -> StoreFuture<Answer> {
        let (store, mut charges) = (self.clone(), Box::new(charges.clone()));
        charges.ask_again();
        StoreFuture::pending(async move {
            let [at, until] = store.ask(task, purpose, &mut charges).await?.map(Timestamp::from_micros);
            Ok(Answer::with_charges(at, charges).valid_until(until))
        })
    }

    /// Lets the script decide charges, and fills in their answers. If Redis' clock is in another calendar window, the
    /// script decides nothing, and this corrects and repeats the request. Returns the instant of the decision, and that
    /// from which other overrides may apply, in µs.
    async fn ask(&self, task: Task, purpose: Purpose, charges: &mut Charges) -> Result<[u64; 2], Fault> {
        let has_calendar = charges.iter().any(|outcome| outcome.algorithm().is_calendar());
        // A new clock for each call, because the wall clock may have been corrected since the process started.
        let local = || self.test_clock().unwrap_or_else(|| SystemClock::new().now().as_micros());
        let mut now = if has_calendar { local() } else { 0 };
        let mut corrections = 0..MAX_CLOCK_CORRECTIONS;
        loop {
            let request = Request::decide(&self.prefix, task, now, charges);
            match self.send(request).await {
                Ok((at, reply)) => {
                    let until = reply.answer(task, purpose, charges, at)?;
                    return Ok([at, until.min(Timestamp::MAX.as_micros())]);
                }
                Err(fault) => match fault.redis_clock().filter(|_| corrections.next().is_some()) {
                    Some(redis_clock) => now = redis_clock,
                    None => return Err(fault),
                },
            }
        }
    }

    /// Changes the states of charges.
    fn change(&self, charges: &Charges, encode: Encode) -> StoreFuture<()> {
        if charges.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let (store, requests) = (self.clone(), self.requests(charges, encode));
        StoreFuture::pending(async move {
            Ok(store.send_all(requests).await.into_iter().try_for_each(|(_, reply)| reply.map(drop))?)
        })
    }

    /// Encodes a request for each slot, with the positions of its charges.
    fn requests(&self, charges: &Charges, encode: Encode) -> Vec<(Vec<usize>, Request)> {
        let is_cluster = self.deployment.is_cluster();
        let slots = if is_cluster { group_by_slot(charges) } else { vec![(0..charges.len()).collect()] };
        let request = |positions: Vec<usize>| {
            let request = encode(&self.prefix, charges, &positions);
            (positions, request)
        };
        slots.into_iter().map(request).collect()
    }

    /// Sends requests, all at the same time.
    async fn send_all(&self, requests: Vec<(Vec<usize>, Request)>) -> Vec<(Vec<usize>, Result<(u64, Reply), Fault>)> {
        join_all(requests.into_iter().map(async |(positions, request)| (positions, self.send(request).await))).await
    }
}

/// A request in several slots.
struct CrossSlotRequest {
    store: Remembering<SlotStore>,
    /// The charges, with their latest outcomes.
    charges: Charges,
    /// The positions of the charges of each slot.
    slots: Vec<Vec<usize>>,
    /// Several slots have limits in quota mode. None of them can enforce it, so each decides these in shadow mode.
    splits_quotas: bool,
    /// The latest instant of all answers.
    at: Timestamp,
}

struct SlotAnswer {
    /// The index of the slot.
    slot: usize,
    at: Timestamp,
    charges: Charges,
}

impl CrossSlotRequest {
    fn new(store: Remembering<SlotStore>, charges: &Charges) -> Self {
        let slots = group_by_slot(charges);
        let has_quota = |slot: &&Vec<usize>| slot.iter().any(|&position| charges[position].veto() == Veto::Quota);
        let splits_quotas = slots.iter().filter(has_quota).count() > 1;
        let mut charges = charges.clone();
        charges.want_no_blocks();
        Self { store, charges, slots, splits_quotas, at: Timestamp::EPOCH }
    }

    /// Decides the request. A denial by several slots is not remembered, because each slot decides at an instant of its
    /// own.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::NoRuntime`] outside a Tokio runtime, on which reservations are refunded if the caller gives up.
    async fn decide(mut self, purpose: Purpose) -> Result<Answer, StoreError> {
        let runtime = Handle::try_current().map_err(|_| Fault::NoRuntime)?;
        // A denial at this point is final, so it counts as a strike.
        let task = if purpose == Purpose::Take { Task::PeekWithStrikes } else { Task::Peek };
        let answers = join_all((0..self.slots.len()).map(|slot| self.ask(task, slot))).await;
        let mut failed = None;
        for answer in answers {
            match answer {
                Ok(answer) => self.record(answer),
                Err(error) => failed = Some(error),
            }
        }
        // A denial stands, whatever the slots without an answer contain: they report that they are unused.
        if let Some(error) = failed {
            if !self.charges.iter().any(|outcome| outcome.is_answered() && outcome.denies()) {
                return Err(error);
            }
            for outcome in self.charges.iter_mut().filter(|outcome| !outcome.is_answered()) {
                outcome.peek(&KeyState::UNUSED, self.at.as_micros(), false);
                outcome.complete(&mut KeyState::UNUSED.clone(), false);
                outcome.wait = 0;
            }
        }
        let is_allowed = allows(&self.charges);
        if purpose == Purpose::Take && is_allowed {
            // In a task of its own, so that a caller that gives up leaves nothing reserved.
            let (answer, decision) = oneshot::channel();
            runtime.spawn(self.reserve(answer));
            return decision.await.unwrap_or(Err(Fault::Interrupted.into()));
        }
        Ok(self.finish())
    }

    /// Charges the slots that have costs, all or none.
    async fn reserve(mut self, decision: oneshot::Sender<Result<Answer, StoreError>>) {
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
                        let is_charged = |outcome: &&Outcome| outcome.cost() > 0 && outcome.is_allowed();
                        answer.charges.iter().filter(is_charged).for_each(|charged| reserved.push(charged.clone()));
                    }
                    self.record(answer);
                }
                Err(error) => {
                    let _ = decision.send(Err(error));
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
    async fn ask(&self, task: Task, slot: usize) -> Result<SlotAnswer, StoreError> {
        let mut asked = self.charges.select(self.slots[slot].iter().copied());
        if self.splits_quotas {
            asked.iter_mut().filter(|charge| charge.veto == Veto::Quota).for_each(|quota| quota.set_veto(Veto::Shadow));
        }
        let answer = if task == Task::Peek || task == Task::PeekWithStrikes && !asked.have_penalties() {
            self.store.inner.run(Task::Peek, Purpose::Peek, &asked)
        } else {
            self.store.change(&asked, |store| store.run(task, Purpose::Take, &asked))
        };
        let at = answer.await?.finish(&mut asked);
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
        Answer::with_charges(self.at, charges)
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
