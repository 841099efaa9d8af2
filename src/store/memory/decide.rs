//! Decisions, from one that a limit makes alone to one that many make of keys in several parts of the store.

use std::hint;
use std::iter;
use std::sync::{Arc, MutexGuard};

use smallvec::SmallVec;

use super::settle::{look, settle};
use super::shard::{Known, Shard, Tabled, of_charge, of_rule};
use super::table::Place;
use super::{Locked, MemoryStore, penalise};
use crate::algorithm::{Availability, ByState, PreparedAlgorithm, RateAlgorithm, SoftLimit};
use crate::decision::{Decision, Several};
use crate::hash::KeyHash;
use crate::limit_spec;
use crate::store::{Charge, LimitSpec, StoreFuture};
use crate::time::Timestamp;

/// How many charges are taken at the price of one look-up each. More are decided all the same.
const MOST: usize = 8;

impl MemoryStore {
    /// Decides a request, and takes its charges from all its limits or from none.
    #[inline]
    pub(super) fn take(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match charges {
            [charge] if charge.spec.is_plain() => of_rule!(charge.spec.rule(), rule => self.take_one(charge, rule)),
            [charge] if charge.spec.penalty().is_none() && !charge.spec.is_overridable() => self.take_soft(charge),
            charges => self.decide_all(charges, true),
        }
    }

    /// What one limit decides that has overage.
    #[inline(never)]
    fn take_soft(&self, charge: &Charge<'_>) -> StoreFuture<Decision> {
        of_charge!(charge, rule => self.take_one(charge, rule))
    }

    /// Most requests have one limit, and need no more than one lock. A key that is known takes one look-up.
    // One copy for each algorithm, and all in that, so that what is written is written where it stays: to copy what was
    // written a moment ago stalls the processor.
    #[inline(never)]
    fn take_one<S: Tabled>(&self, charge: &Charge<'_>, rule: &impl RateAlgorithm<S>) -> StoreFuture<Decision> {
        let print = charge.spec.print(charge.key);
        let (mut shard, at) = self.enter(charge.key);
        let now = at.as_micros();
        let table = S::table(&mut shard);
        let told = |outcome| StoreFuture::ready(Ok(Decision::of(at, true, outcome)));
        match table.find(print) {
            Place::At(place) if charge.cost > 0 => settle(table, rule, place, charge, now, told),
            place => self.take_otherwise(&mut shard, print, place, charge, at),
        }
    }

    /// The same for a key that is not known yet, or what takes nothing.
    #[cold]
    #[inline(never)]
    fn take_otherwise(
        &self,
        shard: &mut Shard,
        print: u128,
        place: Place,
        charge: &Charge<'_>,
        at: Timestamp,
    ) -> StoreFuture<Decision> {
        let outcome = shard.settle_otherwise(print, place, charge, self.most, at.as_micros());
        StoreFuture::ready(Ok(Decision::of(at, true, outcome)))
    }

    /// Decides a request, and takes nothing.
    pub(super) fn look(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        match charges {
            [charge] if charge.spec.is_plain() => of_rule!(charge.spec.rule(), rule => self.look_at(charge, rule)),
            charges => self.decide_all(charges, false),
        }
    }

    /// What there is for a charge of one limit, of which nothing is taken.
    #[inline(never)]
    fn look_at<S: Tabled>(&self, charge: &Charge<'_>, rule: &impl RateAlgorithm<S>) -> StoreFuture<Decision> {
        let print = charge.spec.print(charge.key);
        let (mut shard, at) = self.enter(charge.key);
        let table = S::table(&mut shard);
        let outcome = look(table, rule, table.find(print), charge, at.as_micros());
        StoreFuture::ready(Ok(Decision::of(at, false, outcome)))
    }

    /// The part of the store that has a key, locked, and the time.
    #[inline(always)]
    fn enter(&self, key: KeyHash) -> (MutexGuard<'_, Shard>, Timestamp) {
        let index = self.shard_of(key);
        let mut shard = self.lock(index);
        // Under the lock, so that no request comes with an instant of long ago.
        let at = self.clock.now();
        let due = shard.sweep_due();
        if due > 0 {
            let dropped = self.sweep(due, at.as_micros(), |next| (next == index).then_some(&mut *shard));
            shard.keep_pace(dropped);
        }
        (shard, at)
    }

    /// Decides any request.
    #[inline(never)]
    fn decide_all(&self, charges: &[Charge<'_>], asked: bool) -> StoreFuture<Decision> {
        if let [first, others @ ..] = charges
            && others.iter().all(|charge| charge.key == first.key)
        {
            let shard = self.shard_of(first.key);
            return self.decide_in(&mut [(shard, self.lock(shard))], charges, asked);
        }
        self.decide_apart(charges, asked)
    }

    /// The same of keys that are in several parts of the store.
    #[inline(never)]
    fn decide_apart(&self, charges: &[Charge<'_>], asked: bool) -> StoreFuture<Decision> {
        let mut shards: SmallVec<[usize; 8]> = charges.iter().map(|charge| self.shard_of(charge.key)).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[_; 8]> = shards.into_iter().map(|shard| (shard, self.lock(shard))).collect();
        self.decide_in(&mut locked, charges, asked)
    }

    // Inlined, so that in the copy for one part of the store nothing looks for that of a key.
    #[inline(always)]
    fn decide_in(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], asked: bool) -> StoreFuture<Decision> {
        let at = self.clock.now();
        let now = at.as_micros();
        let due = locked.iter_mut().map(|(_, shard)| shard.sweep_due()).sum();
        if due > 0 {
            let dropped = self.sweep(due, now, |next| {
                locked.iter_mut().find(|(index, _)| *index == next).map(|(_, shard)| &mut **shard)
            });
            locked.iter_mut().for_each(|(_, shard)| shard.keep_pace(dropped));
        }
        if asked && let Some(outcomes) = self.take_all(locked, charges, now) {
            return StoreFuture::ready(Ok(Decision::of_several(at, outcomes)));
        }
        StoreFuture::ready(Ok(self.decide_each(locked, charges, at, asked)))
    }

    /// Takes all charges, each at the price of one look-up, if all have room and are of keys that are known: as most
    /// are. If one is not, all is as it was.
    #[inline(always)]
    fn take_all(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], now: u64) -> Option<Several> {
        let mut keys = [Known::default(); MOST];
        let keys = keys.get_mut(..charges.len())?;
        // What lies in memory is read first, with nothing that depends on it: the processor then waits for all at
        // once, rather than for one look-up after the other.
        let touched = charges.iter().map(|charge| self.shard_among(locked, charge.key).touch(charge));
        hint::black_box(touched.fold(0, |all, one| all ^ one));
        for (charge, key) in charges.iter().zip(&mut *keys) {
            *key = self.shard_among(locked, charge.key).likely(charge)?;
        }
        let mut outcomes = Several::unwritten(charges.len());
        for ((charge, key), outcome) in charges.iter().zip(&*keys).zip(outcomes.as_mut_slice()) {
            if !self.shard_among(locked, charge.key).take_known(key, charge, now, outcome) {
                for (charge, key) in charges.iter().zip(&*keys) {
                    self.shard_among(locked, charge.key).put_back(key);
                }
                return None;
            }
        }
        Some(outcomes)
    }

    /// Decides what needs a closer look.
    #[inline(never)]
    fn decide_each(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], at: Timestamp, asked: bool) -> Decision {
        let overridden = self.overridden(charges, locked, at.as_micros());
        if overridden.is_empty() {
            return self.decide_sized(locked, charges, at, asked);
        }
        let size = |charge: &Charge<'_>| limit_spec::find(charge.spec.index().into(), &overridden);
        let sized = charges.iter().map(|&charge| Charge { spec: size(&charge).unwrap_or(charge.spec), ..charge });
        let sized: SmallVec<[Charge<'_>; 4]> = sized.collect();
        self.decide_sized(locked, &sized, at, asked).overridden(&overridden)
    }

    /// The spec of all limits that have another size for their keys.
    fn overridden(&self, charges: &[Charge<'_>], locked: Locked<'_, '_>, now: u64) -> SmallVec<[Arc<LimitSpec>; 1]> {
        let mut overridden = SmallVec::new();
        for charge in charges.iter().filter(|charge| charge.spec.is_overridable()) {
            let print = charge.spec.print(charge.key);
            let kept = self.shard_among(locked, charge.key).overrides.get(print, now, &self.overrides);
            overridden.extend(kept.and_then(|kept| charge.spec.overridden(kept.size)).map(Arc::new));
        }
        overridden
    }

    fn decide_sized(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], at: Timestamp, asked: bool) -> Decision {
        let now = at.as_micros();
        let mut found: SmallVec<[(u128, Place, Availability); 4]> = SmallVec::new();
        let (mut take, mut is_new, mut is_penal) = (asked, false, false);
        // Whether one of the limits in quota mode has room, if there are any.
        let mut quota_has_room = None;
        for charge in charges {
            let print = charge.spec.print(charge.key);
            let shard = self.shard_among(locked, charge.key);
            let (place, mut room) = shard.peek(print, charge, now);
            if let Some(by) = charge.spec.penalty() {
                room = penalise::room(shard, charge, by, room, now);
                is_penal = true;
            }
            found.push((print, place, room));
            if charge.spec.is_quota() {
                quota_has_room = Some(quota_has_room.unwrap_or(false) || room.is_now());
            } else {
                take &= room.is_now() || !charge.spec.is_enforced();
            }
            is_new |= matches!(place, Place::Before(_));
        }
        take &= quota_has_room.unwrap_or(true);
        let is_new = take && is_new;
        let own = if is_new || is_penal { own_prints(charges) } else { SmallVec::new() };
        if is_new {
            self.make_room(charges, locked, &own, now);
        }
        // A new key moves those that were found, and so does a strike.
        let moves = is_new || is_penal;
        let mut decision = Decision::new(at, asked, charges.len());
        for (charge, &(print, place, room)) in charges.iter().zip(&found) {
            let shard = self.shard_among(locked, charge.key);
            let place = if moves { shard.find(print, charge) } else { place };
            let outcome = if take && room.is_now() && charge.cost > 0 {
                shard.take(print, place, charge, self.most, now)
            } else {
                shard.report(place, charge, room, now, asked)
            };
            decision.push(match charge.spec.penalty() {
                None => outcome,
                Some(by) => penalise::outcome(shard, charge, by, outcome, asked, &own, self.most, now),
            });
        }
        if quota_has_room.is_some() {
            decision.enforce_quotas(charges.iter().map(|charge| charge.spec.is_quota()));
        }
        decision
    }

    /// Evicts other keys for all that are new to a request, and none of the request's `own`.
    #[cold]
    fn make_room(&self, charges: &[Charge<'_>], locked: Locked<'_, '_>, own: &[u128], now: u64) {
        for (index, charge) in charges.iter().enumerate() {
            // Few stores are so full that the new keys have to be counted.
            if self.shard_among(locked, charge.key).keys() + index < self.most {
                continue;
            }
            let in_shard = |other: &&Charge<'_>| self.shard_of(other.key) == self.shard_of(charge.key);
            let shard = self.shard_among(locked, charge.key);
            let is_new = |other: &&Charge<'_>| leaves_something(other) && !shard.holds(other);
            let new = charges[..=index].iter().filter(in_shard).filter(is_new).count();
            shard.make_room(new, own, self.most, now);
        }
    }
}

/// Whether a charge of a new key is taken, and kept: one that is not enforced may never have room.
fn leaves_something(charge: &Charge<'_>) -> bool {
    (1..=charge.spec.capacity()).contains(&charge.cost)
}

/// The prints of everything that the store may remember of a request's keys.
fn own_prints(charges: &[Charge<'_>]) -> SmallVec<[u128; 8]> {
    let strikes = |charge: &Charge<'_>| charge.spec.penalty().map(|by| penalise::print(charge, by));
    charges.iter().flat_map(|charge| iter::once(charge.spec.print(charge.key)).chain(strikes(charge))).collect()
}
