//! Decisions, from one that a limit makes alone to one that many make of keys in several parts of the store.

use std::hint;
use std::sync::Arc;

use smallvec::SmallVec;

use super::shard::Known;
use super::table::Place;
use super::{Locked, MemoryStore, penalise};
use crate::algorithm::Room;
use crate::decision::{Decision, Several};
use crate::store::{Charge, Terms};
use crate::terms;
use crate::time::Timestamp;

impl MemoryStore {
    pub(super) fn decide(&self, charges: &[Charge<'_>], take: bool) -> Decision {
        match charges {
            [charge] if charge.terms.is_plain() => self.decide_one(charge, take),
            charges => self.decide_all(charges, take),
        }
    }

    /// Most requests have one limit, and need no more than one lock.
    #[inline]
    fn decide_one(&self, charge: &Charge<'_>, take: bool) -> Decision {
        let print = charge.terms.print(charge.key);
        let index = self.shard_of(charge.key);
        let mut locked = [(index, self.lock(index))];
        // Under the lock, so that no request comes with an instant of long ago.
        let at = self.clock.now();
        let due = locked[0].1.sweep_due();
        if due > 0 {
            self.sweep(&mut locked, due, at.as_micros());
        }
        // Last, so that the decision is written where it stays.
        locked[0].1.settle(print, charge, self.most, at, take)
    }

    #[inline(never)]
    fn decide_all(&self, charges: &[Charge<'_>], asked: bool) -> Decision {
        let shards = || charges.iter().map(|charge| self.shard_of(charge.key));
        let first = shards().next().unwrap_or(0);
        if shards().all(|shard| shard == first) {
            return self.decide_in(&mut [(first, self.lock(first))], charges, asked);
        }
        let mut shards: SmallVec<[usize; 8]> = shards().collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[_; 8]> = shards.into_iter().map(|shard| (shard, self.lock(shard))).collect();
        self.decide_in(&mut locked, charges, asked)
    }

    fn decide_in(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], asked: bool) -> Decision {
        let at = self.clock.now();
        let now = at.as_micros();
        let due = locked.iter_mut().map(|(_, shard)| shard.sweep_due()).sum();
        if due > 0 {
            self.sweep(locked, due, now);
        }
        if asked && let Some(outcomes) = self.take_all(locked, charges, now) {
            return Decision::of_several(at, outcomes);
        }
        let overridden = self.overridden(charges, locked, now);
        if overridden.is_empty() {
            return self.decide_sized(locked, charges, at, asked);
        }
        let size = |charge: &Charge<'_>| terms::of(charge.terms.index().into(), &overridden);
        let sized = charges.iter().map(|&charge| Charge { terms: size(&charge).unwrap_or(charge.terms), ..charge });
        let sized: SmallVec<[Charge<'_>; 4]> = sized.collect();
        self.decide_sized(locked, &sized, at, asked).overridden(&overridden)
    }

    /// Takes all charges, each at the price of one look-up, if all have room and are of keys that are known: as most
    /// are. If one is not, all is as it was.
    fn take_all(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], now: u64) -> Option<Several> {
        // What lies in memory is read first, with nothing that depends on it: the processor then waits for all at
        // once, rather than for one look-up after the other.
        let touched = charges.iter().map(|charge| self.shard_among(locked, charge.key).touch(charge));
        hint::black_box(touched.fold(0, |all, one| all ^ one));
        let mut keys: SmallVec<[Known; 8]> = SmallVec::new();
        for charge in charges {
            keys.push(self.shard_among(locked, charge.key).likely(charge)?);
        }
        let mut outcomes = Several::spare();
        let mut each = charges.iter().zip(&keys);
        let take = |(charge, key): (&Charge<'_>, &Known)| {
            self.shard_among(locked, charge.key).take_known(key, charge, now, &mut outcomes)
        };
        if each.all(take) {
            return Some(outcomes);
        }
        for (charge, key) in charges.iter().zip(&keys) {
            self.shard_among(locked, charge.key).put_back(key);
        }
        None
    }

    /// The terms of all limits that have another size for their keys.
    fn overridden(&self, charges: &[Charge<'_>], locked: Locked<'_, '_>, now: u64) -> SmallVec<[Arc<Terms>; 1]> {
        let mut overridden = SmallVec::new();
        for charge in charges.iter().filter(|charge| charge.terms.is_overridable()) {
            let print = charge.terms.print(charge.key);
            let kept = self.shard_among(locked, charge.key).overrides.get(print, now, &self.overrides);
            overridden.extend(kept.and_then(|kept| charge.terms.overridden(kept.size)).map(Arc::new));
        }
        overridden
    }

    fn decide_sized(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], at: Timestamp, asked: bool) -> Decision {
        let now = at.as_micros();
        let mut found: SmallVec<[(u128, Place, Room); 4]> = SmallVec::new();
        let (mut take, mut is_new, mut is_penal) = (asked, false, false);
        for charge in charges {
            let print = charge.terms.print(charge.key);
            let shard = self.shard_among(locked, charge.key);
            let (place, mut room) = shard.peek(print, charge, now);
            if let Some(by) = charge.terms.penalty() {
                room = penalise::room(shard, charge, by, room, now);
                is_penal = true;
            }
            found.push((print, place, room));
            take &= room.is_now() || !charge.terms.is_enforced();
            is_new |= matches!(place, Place::Before(_));
        }
        let is_new = take && is_new;
        if is_new {
            self.make_room(charges, locked, now);
        }
        // A new key moves those that were found, and so does a strike.
        let moves = is_new || is_penal;
        let mut decision = Decision::new(at, asked, charges.len());
        for (charge, &(print, place, room)) in charges.iter().zip(&found) {
            let shard = self.shard_among(locked, charge.key);
            let place = if moves { shard.find(print, charge) } else { place };
            let outcome = if take && room.is_now() && charge.cost > 0 {
                shard.take(print, place, charge, now)
            } else {
                shard.report(place, charge, room, now, asked)
            };
            decision.push(match charge.terms.penalty() {
                None => outcome,
                Some(by) => penalise::outcome(shard, charge, by, outcome, asked, self.most, now),
            });
        }
        decision
    }

    /// Has other keys make way for all that are new to a request, before one of its own can be taken
    /// for one to go.
    #[cold]
    fn make_room(&self, charges: &[Charge<'_>], locked: Locked<'_, '_>, now: u64) {
        for (index, charge) in charges.iter().enumerate() {
            if !leaves_something(charge) || self.shard_among(locked, charge.key).keys() + index < self.most {
                continue;
            }
            let mut before = 0;
            for earlier in &charges[..index] {
                let shares = leaves_something(earlier) && self.shard_of(earlier.key) == self.shard_of(charge.key);
                before += usize::from(shares && !self.shard_among(locked, earlier.key).holds(earlier));
            }
            self.shard_among(locked, charge.key).make_room(charge, before, self.most, now);
        }
    }
}

/// Whether a charge of a new key is taken, and kept: one that is not enforced may never have room.
fn leaves_something(charge: &Charge<'_>) -> bool {
    (1..=charge.terms.capacity()).contains(&charge.cost)
}
