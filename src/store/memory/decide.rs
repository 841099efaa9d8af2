//! Decides requests.

use std::slice;
use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::MemoryStore;
use super::shard::{Locked, Shard};
use super::table::EvictionRank;
use crate::algorithm::{CompactState, KeyState, NEVER};
use crate::decision::{Charge, Charges, Outcome, Purpose, complete};
use crate::key::hash::KeyHash;
use crate::time::Timestamp;

impl MemoryStore {
    /// Decides a request. Most requests have one limit, and are decided without loops, which takes fewer instructions
    /// ("token bucket" in `.ci/instructions`).
    #[inline]
    pub(crate) fn decide_now(&self, charges: &mut Charges, purpose: Purpose) -> Timestamp {
        match charges.only_state() {
            Some(outcome) if !outcome.is_overridable() && purpose != Purpose::Preview => {
                self.decide_one(outcome, purpose)
            }
            _ => self.decide_all(charges, purpose),
        }
    }

    /// Decides a request with a single limit that has neither overrides nor a penalty.
    #[inline(always)]
    fn decide_one(&self, outcome: &mut Outcome, purpose: Purpose) -> Timestamp {
        let index = self.shard_of(outcome.key());
        let mut locked = [(index, self.lock(index))];
        self.sweep_if_due(&mut locked);
        let at = self.now_of(outcome);
        let [(_, shard)] = &mut locked;
        let (now, takes) = (at.as_micros(), purpose == Purpose::Take);
        match shard.table.find(outcome.fingerprint()) {
            Ok(slot) => {
                let entry = &mut shard.table.slots[slot];
                let mut state = entry.take_state();
                outcome.peek(&state, now, takes);
                outcome.complete(&mut state, takes && outcome.is_allowed());
                if takes || outcome.algorithm().keeps_log() {
                    entry.set_state(state);
                }
                if takes && let Some(rank) = rank(outcome) {
                    entry.set_rank(rank);
                }
            }
            Err(_) if self.overflow.is_some() => self.decide_absent(&mut locked, outcome, now, takes),
            Err(_) => {
                let mut state = KeyState::UNUSED;
                outcome.peek(&state, now, takes);
                outcome.complete(&mut state, takes && outcome.is_allowed());
                if takes {
                    self.add(&mut locked, slice::from_ref(outcome), &[outcome.fingerprint()], [(0, state)]);
                }
            }
        }
        at
    }

    /// Decides a request of any limits.
    fn decide_all(&self, charges: &mut Charges, purpose: Purpose) -> Timestamp {
        // All limits of one key are in one shard.
        if let [first, others @ ..] = &**charges
            && others.iter().all(|outcome| outcome.key() == first.key())
        {
            let shard = self.shard_of(first.key());
            return self.decide_locked(&mut [(shard, self.lock(shard))], charges, purpose);
        }
        self.decide_locked(&mut self.lock_all(charges), charges, purpose)
    }

    /// Decides a request whose shards are locked.
    #[inline(always)]
    fn decide_locked(&self, locked: &mut Locked<'_>, charges: &mut Charges, purpose: Purpose) -> Timestamp {
        self.sweep_if_due(locked);
        let now = self.clock.now().as_micros();
        let calendar_charge = charges.iter().find(|outcome| outcome.algorithm().is_calendar());
        // The same instant, but on the wall clock.
        let at = calendar_charge.map_or(Timestamp::from_micros(now), |outcome| self.now_of(outcome));
        let now_of = |outcome: &Charge| if outcome.algorithm().is_calendar() { at.as_micros() } else { now };
        let takes = purpose != Purpose::Peek;
        let mut slots: SmallVec<[_; 8]> = SmallVec::new();
        for outcome in charges.iter_mut() {
            if outcome.is_overridable() {
                let size = self.override_of(outcome, now).map_or(outcome.own_size, |kept| kept.size);
                outcome.charge.resize(size);
            }
            let shard = self.shard_among(locked, outcome.key());
            let slot = shard.table.find(outcome.fingerprint()).ok();
            match slot.map(|slot| &mut shard.table.slots[slot]) {
                Some(entry) => {
                    let state = entry.take_state();
                    outcome.peek(&state, now_of(outcome), takes);
                    entry.set_state(state);
                }
                None if self.overflow.is_some() => drop(shard.peek_absent(outcome, now_of(outcome), takes)),
                None => outcome.peek(&KeyState::UNUSED, now_of(outcome), takes),
            }
            if outcome.penalty().is_some() {
                self.peek_penalty(locked, outcome, now);
            }
            slots.push(slot);
        }
        let mut new: SmallVec<[_; 2]> = SmallVec::new();
        complete(charges, purpose, |outcome, index, takes| {
            let Some(slot) = slots[index] else {
                let mut state = match self.overflow {
                    Some(_) => self.shard_among(locked, outcome.key()).absent(outcome, now_of(outcome)),
                    None => KeyState::UNUSED,
                };
                outcome.complete(&mut state, takes);
                return new.push((index, state));
            };
            let entry = &mut self.shard_among(locked, outcome.key()).table.slots[slot];
            let mut state = entry.take_state();
            let before = (purpose == Purpose::Preview).then(|| state.clone());
            outcome.complete(&mut state, takes);
            entry.set_state(before.unwrap_or(state));
            if purpose == Purpose::Take
                && let Some(rank) = rank(outcome)
            {
                entry.set_rank(rank);
            }
        });
        if purpose == Purpose::Take && !new.is_empty() {
            self.add(locked, charges, &own_fingerprints(charges), new);
        }
        if purpose == Purpose::Take && charges.have_penalties() {
            self.keep_strikes(locked, charges);
        }
        at
    }

    /// Looks at the state of a penalty.
    #[cold]
    fn peek_penalty(&self, locked: &mut Locked<'_>, outcome: &mut Outcome, now: u64) {
        let table = &mut self.shard_among(locked, outcome.key()).table;
        let slot = table.find(outcome.penalty_fingerprint());
        let state = slot.map_or(CompactState::UNUSED, |slot| table.slots[slot].compact_state());
        outcome.peek_penalty(state, now);
    }

    /// Keeps the strikes of a request. One for which there is no room has no effect.
    #[cold]
    fn keep_strikes(&self, locked: &mut Locked<'_>, charges: &mut Charges) {
        let own = own_fingerprints(charges);
        for outcome in charges.iter_mut().filter(|outcome| outcome.penalty().is_some() && outcome.limit_wait() > 0) {
            let (fingerprint, rank) = (outcome.penalty_fingerprint(), rank(outcome));
            let struck = outcome.struck().map(KeyState::Compact);
            let shard = self.shard_among(locked, outcome.key());
            match (shard.table.find(fingerprint), struck) {
                (Ok(slot), struck) => {
                    let entry = &mut shard.table.slots[slot];
                    struck.into_iter().for_each(|state| entry.set_state(state));
                    rank.into_iter().for_each(|rank| entry.set_rank(rank));
                }
                (Err(_), Some(state)) => {
                    if !shard.add(fingerprint, state, rank, &own, self.max_keys, || self.expiry_limit()) {
                        outcome.undo_strike();
                    }
                }
                (Err(_), None) => {}
            }
        }
    }

    /// Locks the shards of a request's keys.
    #[inline]
    fn lock_all(&self, outcomes: &[Outcome]) -> SmallVec<[(usize, MutexGuard<'_, Shard>); 4]> {
        let mut shards: SmallVec<[usize; 8]> = outcomes.iter().map(|outcome| self.shard_of(outcome.key())).collect();
        // In ascending order, so that no two requests wait for each other.
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.lock(shard))).collect()
    }

    /// Sweeps a part of the store if that is due.
    #[inline]
    fn sweep_if_due(&self, locked: &mut Locked<'_>) {
        let due = locked.iter_mut().map(|(_, shard)| shard.sweep_due()).sum();
        if due > 0 {
            self.sweep(due, locked);
        }
    }

    /// Reads the clock by which a charge is decided: the wall clock for calendars.
    ///
    /// Called while the locks are held, so that the wait for them does not make the instant stale.
    #[inline]
    pub(super) fn now_of(&self, charge: &Charge) -> Timestamp {
        if charge.algorithm().is_calendar() { self.clock.wall_time() } else { self.clock.now() }
    }

    /// Adds the states of new keys, by the positions of their charges, unless they are unused: to the table, or to a
    /// sketch if the table has no room.
    #[inline(never)]
    pub(super) fn add(
        &self,
        locked: &mut Locked<'_>,
        outcomes: &[Outcome],
        own: &[u128],
        new: impl IntoIterator<Item = (usize, KeyState)>,
    ) {
        for (index, state) in new.into_iter().filter(|(_, state)| state.expires_at() > 0) {
            let outcome = &outcomes[index];
            let shard = self.shard_among(locked, outcome.key());
            if self.overflow.is_some() && shard.is_full(self.max_keys) {
                shard.add_to_sketch(outcome, &state);
            } else {
                let fingerprint = outcome.fingerprint();
                shard.add(fingerprint, state, rank(outcome), own, self.max_keys, || self.expiry_limit());
            }
        }
    }

    /// Returns the shard of a key, which is locked.
    #[inline]
    fn shard_among<'l>(&self, locked: &'l mut Locked<'_>, key: KeyHash) -> &'l mut Shard {
        if let [(_, shard)] = locked {
            return shard;
        }
        let shard = self.shard_of(key);
        let place = locked.iter().position(|(index, _)| *index == shard);
        &mut locked[place.expect("the shard of every key is locked")].1
    }
}

/// Returns the fingerprints of all states of a request, which it never evicts.
fn own_fingerprints(charges: &Charges) -> SmallVec<[u128; 8]> {
    charges.fingerprints().collect()
}

/// Returns the rank of a key after a decision, or `None` to leave it: a cost beyond the capacity, or of 0, says nothing
/// about how much the key has used.
///
/// Strikes rank as the denials that they count. Requests that can never pass take nothing from the limit, so their
/// strikes are evicted first and displace no denied key: otherwise, a flood of such requests would lift the limits of
/// other keys.
#[inline]
fn rank(outcome: &Outcome) -> Option<EvictionRank> {
    match outcome.limit_wait() {
        0 if outcome.cost > 0 => Some(EvictionRank::new(outcome.used, outcome.algorithm().hard_capacity())),
        0 | NEVER => None,
        _ => Some(EvictionRank::DENIED),
    }
}
