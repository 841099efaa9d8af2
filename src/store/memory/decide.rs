//! Decides requests.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::MemoryStore;
use super::entry::{Entry, Expiring};
use super::rank::EvictionRank;
use super::request_states::RequestStates;
use super::shard::{EntryKey, Locked, Shard};
use super::table::Slot;
use crate::algorithm::{Availability, Evaluation, KeyState, State};
use crate::charge::Charge;
use crate::decision::{Decision, Outcome};
use crate::hash::KeyHash;
use crate::store::evaluation::preview::preview;
use crate::store::evaluation::{self, Task};
use crate::store::{Resized, StoreFuture};
use crate::time::Timestamp;

/// The most charges that are decided by [`MemoryStore::decide_known`].
const MAX_KNOWN: usize = 8;

impl MemoryStore {
    /// Decides a request. Most requests have one limit, which needs no look at the states of others: that takes half the
    /// instructions ("token bucket" in `.ci/instructions`).
    pub(super) fn decide_now(&self, charges: &[Charge<'_>], task: Task) -> StoreFuture<Decision> {
        match charges {
            [charge] if charge.spec.penalty().is_none() && !charge.spec.is_overridable() => {
                self.decide_one(charge, task)
            }
            _ => self.decide_all(charges, task),
        }
    }

    /// Decides a charge by the state of its key alone.
    fn decide_one(&self, charge: &Charge<'_>, task: Task) -> StoreFuture<Decision> {
        let index = self.shard_of(charge.key);
        let mut locked = [(index, self.lock(index))];
        let at = self.begin(&mut locked);
        let [(_, shard)] = &mut locked;
        let (now, key) = (at.as_micros(), EntryKey::new(charge));
        let takes = task == Task::Decide;
        let evaluation = match shard.find(key) {
            Slot::Occupied(slot) if takes => match key.keeps_log {
                true => decide_entry(charge, shard.log_mut(slot), now),
                false => decide_entry(charge, shard.compact_mut(slot), now),
            },
            Slot::Occupied(slot) => {
                charge.spec.algorithm().evaluate(shard.entry_mut(key, slot).state, now, charge.cost)
            }
            Slot::Vacant(_) => self.decide_new(shard, key, charge, now, task),
        };
        let outcomes = SmallVec::from_buf([Outcome::evaluated(charge, evaluation, now)]);
        StoreFuture::ready(Ok(Decision::of(at, takes, outcomes)))
    }

    /// Decides the charge of a new key, and stores the key if it is charged.
    fn decide_new(&self, shard: &mut Shard, key: EntryKey, charge: &Charge<'_>, now: u64, task: Task) -> Evaluation {
        let rule = charge.spec.algorithm();
        let mut state = KeyState::unused(rule);
        if task == Task::Peek {
            return rule.evaluate(state.as_state(), now, charge.cost);
        }
        let evaluation = rule.decide(state.as_state_mut(), now, charge.cost);
        // Nothing is stored of a denial or a cost of 0.
        if state.as_state().expires_at() > 0 && shard.make_room(1, &[], self.max_keys, now) {
            shard.insert(
                key,
                state,
                EvictionRank::new(charge.spec.algorithm().remaining(evaluation.used), charge.spec.capacity()),
            );
        }
        evaluation
    }

    /// Decides a request of any limits.
    fn decide_all(&self, charges: &[Charge<'_>], task: Task) -> StoreFuture<Decision> {
        if let [first, others @ ..] = charges
            && others.iter().all(|charge| charge.key == first.key)
        {
            let shard = self.shard_of(first.key);
            return self.decide_locked(&mut [(shard, self.lock(shard))], charges, task);
        }
        self.decide_locked(&mut self.lock_all(charges), charges, task)
    }

    /// Decides a request as [`decide_now`](Self::decide_now) would, and changes nothing.
    pub(super) fn preview_now(&self, charges: &[Charge<'_>]) -> Decision {
        let mut locked = self.lock_all(charges);
        let at = self.clock.now();
        let resized = self.resized(&mut locked, charges, at);
        let charges = resized.charges(charges);
        let copies = RequestStates::new(self, &mut locked, &charges, at.as_micros()).copy();
        preview(copies, &charges, at).with_resized(resized.specs())
    }

    /// Locks the shards of a request's keys.
    #[inline]
    fn lock_all(&self, charges: &[Charge<'_>]) -> SmallVec<[(usize, MutexGuard<'_, Shard>); 4]> {
        let mut shards: SmallVec<[usize; 8]> = charges.iter().map(|charge| self.shard_of(charge.key)).collect();
        // In ascending order, so that no two requests wait for each other.
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.lock(shard))).collect()
    }

    /// Returns the limits that the keys of a request override at `at`.
    fn resized(&self, locked: &mut Locked<'_>, charges: &[Charge<'_>], at: Timestamp) -> Resized {
        Resized::new(charges, |charge| {
            let shard = self.shard_among(locked, charge.key);
            let kept = shard.overrides.get(charge.spec.fingerprint(charge.key), at.as_micros(), &self.overrides);
            kept.map(|kept| kept.size)
        })
    }

    /// Decides a request whose shards are locked.
    fn decide_locked<'s>(
        &'s self,
        locked: &mut Locked<'s>,
        charges: &[Charge<'_>],
        task: Task,
    ) -> StoreFuture<Decision> {
        let at = self.begin(locked);
        if task == Task::Decide
            && let Some(outcomes) = self.decide_known(locked, charges, at.as_micros())
        {
            return StoreFuture::ready(Ok(Decision::of(at, true, outcomes.into())));
        }
        let now = at.as_micros();
        let resized = self.resized(locked, charges, at);
        let charges = resized.charges(charges);
        let mut states = RequestStates::new(self, locked, &charges, now);
        let decision = evaluation::decide(&mut states, &charges, at, task);
        StoreFuture::ready(Ok(decision.with_resized(resized.specs())))
    }

    /// Decides and charges a few known keys, one after the other. Returns `None`, with nothing changed, if a limit
    /// denies or a charge needs more than its limit's algorithm.
    ///
    /// Most requests are allowed and have known keys: this takes less than half the instructions of
    /// [`evaluation::decide`] ("four limits" in `.ci/instructions`).
    fn decide_known(&self, locked: &mut Locked<'_>, charges: &[Charge<'_>], now: u64) -> Option<Vec<Outcome>> {
        if charges.len() > MAX_KNOWN {
            return None;
        }
        // The slots of the entries, and the entries before the decision.
        let mut known: SmallVec<[_; MAX_KNOWN]> = SmallVec::new();
        for charge in charges {
            if !charge.spec.is_plain() {
                return None;
            }
            let shard = self.shard_among(locked, charge.key);
            let slot = shard.find_compact(charge)?;
            known.push((slot, *shard.compact_mut(slot)));
        }
        // Outcomes are only created, and allocated, once no limit denies.
        let mut evaluations: SmallVec<[Evaluation; MAX_KNOWN]> = SmallVec::new();
        for (charge, &(slot, _)) in charges.iter().zip(&known) {
            let evaluation = decide_entry(charge, self.shard_among(locked, charge.key).compact_mut(slot), now);
            evaluations.push(evaluation);
            if !evaluation.availability.is_now() && charge.spec.is_enforced() {
                for (charge, &(slot, before)) in charges.iter().zip(&known) {
                    *self.shard_among(locked, charge.key).compact_mut(slot) = before;
                }
                return None;
            }
        }
        let outcomes =
            charges.iter().zip(&evaluations).map(|(charge, evaluation)| Outcome::evaluated(charge, *evaluation, now));
        Some(outcomes.collect())
    }

    /// Reads the clock for a request, and sweeps a part of the store if that is due.
    ///
    /// Called while the locks are held, so that the wait for them does not make the instant stale.
    #[inline]
    fn begin(&self, locked: &mut Locked<'_>) -> Timestamp {
        let at = self.clock.now();
        let due = locked.iter_mut().map(|(_, shard)| shard.sweep_due()).sum();
        if due > 0 {
            self.sweep(due, at.as_micros(), locked);
        }
        at
    }

    /// Returns the shard of a key, which is locked.
    #[inline]
    pub(super) fn shard_among<'l>(&self, locked: &'l mut Locked<'_>, key: KeyHash) -> &'l mut Shard {
        if let [(_, shard)] = locked {
            return shard;
        }
        let shard = self.shard_of(key);
        let place = locked.iter().position(|(index, _)| *index == shard);
        &mut locked[place.expect("the shard of every key is locked")].1
    }
}

/// Decides a charge by the entry of its key.
#[inline]
fn decide_entry<S: State + Expiring>(charge: &Charge<'_>, entry: &mut Entry<S>, now: u64) -> Evaluation {
    let evaluation = charge.spec.algorithm().decide(&mut entry.state, now, charge.cost);
    if let Some(rank) = rank(charge, &evaluation) {
        entry.set_rank(rank);
    }
    evaluation
}

/// Returns the rank of a key after a decision, or `None` to leave it: a cost beyond the capacity, or of 0, says nothing
/// about how much the key has used.
fn rank(charge: &Charge<'_>, evaluation: &Evaluation) -> Option<EvictionRank> {
    match evaluation.availability {
        _ if charge.cost == 0 => None,
        Availability::Now { .. } => {
            Some(EvictionRank::new(charge.spec.algorithm().remaining(evaluation.used), charge.spec.capacity()))
        }
        Availability::After(_) => Some(EvictionRank::DENIED),
        Availability::Never => None,
    }
}
