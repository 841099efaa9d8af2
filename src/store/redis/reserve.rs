//! Requests whose limits have several subjects, in a Cluster: no one script can decide them if their
//! slots differ.
//!
//! First all slots are asked at the same time whether they have room: most denials take nothing.
//! Then they are charged one after the other, in the order of slots, and what was taken is given
//! back by its mark if a later one denies. As all take the same order, of those who want the last
//! tokens of the same limits one gets all of them. What is held for a moment can only make others be
//! denied, never admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::denials::Watch;
use super::error::Fault;
use super::script::Task;
use super::{RedisStore, ask, decision, script, slot};
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::limit_spec;
use crate::store::evaluation::quota;
use crate::store::{Charge, LimitSpec, Refund};
use crate::time::Timestamp;

/// A request's charges by slot.
pub(super) struct Apart {
    store: RedisStore,
    slots: Vec<Vec<Placed>>,
    /// Once all is over, what is given back too, what was taken here ends the denials of others. A denial
    /// of several slots is not remembered itself, as each has decided at an instant of its own.
    watch: Option<Watch>,
    /// Whether a slot has put a bucket at another rate, whatever it decided.
    changes_a_rate: AtomicBool,
}

/// A [`Charge`], and which of the request's it is.
struct Placed {
    place: usize,
    /// The limit is in quota mode, and limits of other slots are, too. The slot decides it in shadow mode.
    is_cross_slot_quota: bool,
    spec: Arc<LimitSpec>,
    key: KeyHash,
    cost: u64,
}

/// What the slots have said of a request so far.
struct Report {
    /// The latest instant of all.
    at: Timestamp,
    outcomes: Vec<(usize, Outcome)>,
    /// The limits that were of another size.
    overridden: Vec<Arc<LimitSpec>>,
}

type Part = Result<Decision, Fault>;

/// What slots have taken, by their number among the request's.
type Taken = Vec<(usize, Decision)>;

impl Apart {
    pub(super) fn new(store: RedisStore, charges: &[Charge<'_>], watch: Option<Watch>) -> Self {
        let place = |(place, Charge { spec, key, cost }): (_, Charge<'_>)| {
            let spec = spec.clone();
            Placed { place, is_cross_slot_quota: false, spec, key, cost }
        };
        let slots = slot::group(charges.iter().copied(), |charge| charge.key);
        let mut slots: Vec<Vec<Placed>> =
            slots.into_iter().map(|(_, slot)| slot.into_iter().map(place).collect()).collect();
        let has_quota = |slot: &&Vec<Placed>| slot.iter().any(|charge| charge.spec.is_quota());
        if slots.iter().filter(has_quota).count() > 1 {
            // No slot sees all quotas: they are enforced here.
            for charge in slots.iter_mut().flatten().filter(|charge| charge.spec.is_quota()) {
                charge.is_cross_slot_quota = true;
                charge.spec = Arc::new(charge.spec.in_shadow());
            }
        }
        Self { store, slots, watch, changes_a_rate: AtomicBool::new(false) }
    }

    pub(super) async fn decide(mut self, task: Task) -> Part {
        let takes = |slot: &&Vec<Placed>| task == Task::Acquire && takes(slot);
        if self.slots.iter().filter(takes).count() > 1 {
            return self.acquire().await;
        }
        // One slot has all, or decides, as whoever takes nothing denies nothing.
        let parts = self.slots.iter().map(|slot| {
            let task = if takes(&slot) { Task::Acquire } else { Task::Peek };
            self.part(task, slot)
        });
        let parts = join_all(parts).await;
        if parts.iter().any(Result::is_err) {
            let charged = |(index, part): (_, &Part)| {
                Some((index, part.as_ref().ok().filter(|it| it.is_charged())?.without_charges()))
            };
            let taken: Taken = parts.iter().enumerate().filter_map(charged).collect();
            let report = Report::of(&self.slots, parts);
            let decision = report.map(|report| report.decision(&self.slots, false));
            tokio::spawn(async move { self.give_back(taken).await });
            return decision;
        }
        if !parts.iter().flatten().any(Decision::is_charged) {
            self.took_nothing();
        }
        Ok(Report::of(&self.slots, parts)?.decision(&self.slots, task == Task::Acquire))
    }

    async fn acquire(mut self) -> Part {
        // What is denied here is denied, and not asked again.
        let task = if self.have_penalties() { Task::PeekWithStrikes } else { Task::Peek };
        let parts = join_all(self.slots.iter().map(|slot| self.part(task, slot))).await;
        let report = Report::of(&self.slots, parts)?;
        if !report.is_allowed(&self.slots) {
            self.took_nothing();
            return Ok(report.decision(&self.slots, false));
        }
        // By a task of its own, so that whoever gives up leaves nothing half taken.
        let (answer, decision) = oneshot::channel();
        tokio::spawn(self.reserve(report, answer));
        decision.await.unwrap_or(Err(Fault::Reply("nothing")))
    }

    async fn reserve(mut self, mut report: Report, answer: oneshot::Sender<Part>) {
        let mut watch = self.watch.take();
        let mut taken = Taken::new();
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| takes(slot)) {
            if answer.is_closed() {
                return self.give_back(taken).await;
            }
            match self.part(Task::Acquire, slot).await {
                Ok(decision) if decision.is_allowed() => {
                    taken.push((index, decision.without_charges()));
                    report.note(slot, decision);
                }
                Ok(denial) => {
                    if taken.is_empty()
                        && !self.may_have_changed()
                        && let Some(watch) = watch.take()
                    {
                        watch.changed_nothing();
                    }
                    self.give_back(taken).await;
                    report.note(slot, denial);
                    drop(watch);
                    self.look_again(&mut report, Some(index)).await;
                    let _ = answer.send(Ok(report.decision(&self.slots, false)));
                    return;
                }
                Err(fault) => {
                    let _ = answer.send(Err(fault));
                    return self.give_back(taken).await;
                }
            }
        }
        if !report.is_allowed(&self.slots) {
            // No quota has room any more that had some when all slots were asked.
            self.give_back(taken).await;
            drop(watch);
            self.look_again(&mut report, None).await;
            let _ = answer.send(Ok(report.decision(&self.slots, false)));
            return;
        }
        if answer.send(Ok(report.decision(&self.slots, true))).is_err() {
            self.give_back(taken).await;
        }
    }

    fn have_penalties(&self) -> bool {
        self.slots.iter().flatten().any(|charge| charge.spec.penalty().is_some())
    }

    /// Whether a slot may have changed something besides what it took: by a strike, or by a rate.
    fn may_have_changed(&self) -> bool {
        self.have_penalties() || self.changes_a_rate.load(Ordering::Relaxed)
    }

    fn took_nothing(&mut self) {
        if !self.may_have_changed()
            && let Some(watch) = self.watch.take()
        {
            watch.changed_nothing();
        }
    }

    /// What the slots but one that denied say once all was given back.
    async fn look_again(&self, report: &mut Report, denied: Option<usize>) {
        let others = self.slots.iter().enumerate().filter(|(index, _)| Some(*index) != denied);
        let parts = others.map(|(_, slot)| async move { (slot, self.part(Task::Peek, slot).await) });
        for (slot, part) in join_all(parts).await {
            // Who does not answer has said before what it has; the denial stands.
            if let Ok(decision) = part {
                report.note(slot, decision);
            }
        }
    }

    /// What one slot says of its part of the request.
    async fn part(&self, task: Task, slot: &[Placed]) -> Part {
        let charges: Vec<_> = slot.iter().map(Placed::charge).collect();
        let mut asked = self.store.asked(&charges);
        let (now, found) = self.store.find(task, self.store.now(), &mut asked).await?;
        if decision::changes_a_rate(&asked, &found) {
            self.changes_a_rate.store(true, Ordering::Relaxed);
        }
        decision::of(task, now, &asked, &found)
    }

    /// Gives back what slots have taken, once: what can't be given back stays charged.
    async fn give_back(&self, taken: Taken) {
        let refunds = taken.iter().map(|(index, decision)| {
            let taken = self.slots[*index].iter().zip(decision.outcomes());
            let taken = taken.filter(|(charge, outcome)| charge.cost > 0 && outcome.is_allowed());
            let refunds = taken.map(|(Placed { spec, key, cost, .. }, outcome)| Refund {
                spec: limit_spec::find(outcome.limit(), decision.resized()).unwrap_or(spec),
                key: *key,
                cost: *cost,
                mark: outcome.mark,
            });
            let refund = ask::refunds(&self.store.prefix, &refunds.collect::<Vec<_>>());
            self.store.deployment.ask(self.store.now().map(script::encode_clock), refund)
        });
        join_all(refunds).await;
    }
}

/// Whether the limit at a place of the request is in quota mode, and others that are have other slots.
fn is_quota_cross_slot(slots: &[Vec<Placed>], place: usize) -> bool {
    let charge = slots.iter().flatten().find(|charge| charge.place == place);
    charge.is_some_and(|charge| charge.is_cross_slot_quota)
}

/// Whether a slot is charged anything.
fn takes(slot: &[Placed]) -> bool {
    slot.iter().any(|charge| charge.cost > 0)
}

impl Placed {
    fn charge(&self) -> Charge<'_> {
        Charge { spec: &self.spec, key: self.key, cost: self.cost }
    }
}

impl Report {
    fn of(slots: &[Vec<Placed>], parts: Vec<Part>) -> Result<Self, Fault> {
        let mut report = Self { at: Timestamp::EPOCH, outcomes: Vec::new(), overridden: Vec::new() };
        for (slot, part) in slots.iter().zip(parts) {
            report.note(slot, part?);
        }
        report.outcomes.sort_by_key(|(place, _)| *place);
        Ok(report)
    }

    /// Notes what a slot says, for what it has said before.
    fn note(&mut self, slot: &[Placed], decision: Decision) {
        self.at = self.at.max(decision.at());
        self.overridden.retain(|spec| !slot.iter().any(|charge| charge.spec.index() == spec.index()));
        self.overridden.extend_from_slice(decision.resized());
        for (charge, outcome) in slot.iter().zip(decision.outcomes()) {
            match self.outcomes.iter_mut().find(|(place, _)| *place == charge.place) {
                Some((_, before)) => before.clone_from(outcome),
                None => self.outcomes.push((charge.place, outcome.clone())),
            }
        }
    }

    fn is_allowed(&self, slots: &[Vec<Placed>]) -> bool {
        let has_room = |(_, outcome): &&(usize, Outcome)| outcome.is_allowed();
        let mut quotas = self.outcomes.iter().filter(|(place, _)| is_quota_cross_slot(slots, *place)).peekable();
        let quotas_allow = quotas.peek().is_none() || quotas.any(|outcome| has_room(&outcome));
        quotas_allow && !self.outcomes.iter().any(|(_, outcome)| outcome.denies())
    }

    fn decision(self, slots: &[Vec<Placed>], charge: bool) -> Decision {
        let quotas: Vec<bool> = self.outcomes.iter().map(|(place, _)| is_quota_cross_slot(slots, *place)).collect();
        let mut outcomes: SmallVec<[Outcome; 1]> = self.outcomes.into_iter().map(|(_, outcome)| outcome).collect();
        quota::enforce(&mut outcomes, quotas.into_iter());
        Decision::of(self.at, charge, outcomes).with_resized(&self.overridden)
    }
}
