//! Decides requests.

use std::sync::MutexGuard;
use std::{mem, slice};

use smallvec::SmallVec;

use super::MemoryStore;
use super::shard::{EntryKey, EntryMut, Locked, Shard};
use super::table::{Entry, EvictionRank};
use crate::algorithm::{CompactState, KeyState, NEVER, State};
use crate::decision::Cell;
use crate::key::hash::KeyHash;
use crate::store::Purpose;
use crate::store::decide::{States, decide};
use crate::time::Timestamp;

impl MemoryStore {
    /// Decides a request. Most requests have one limit, which needs no look at the states of others: that takes half
    /// the instructions ("token bucket" in `.ci/instructions`).
    #[inline]
    pub(super) fn decide_now(&self, cells: &mut [Cell], purpose: Purpose) -> Timestamp {
        match cells {
            [cell] if !cell.is_overridable() => self.decide_one(cell, purpose),
            _ => self.decide_all(cells, purpose),
        }
    }

    /// Decides a cell by the state of its key alone.
    #[inline]
    fn decide_one(&self, cell: &mut Cell, purpose: Purpose) -> Timestamp {
        let index = self.shard_of(cell.key());
        let mut locked = [(index, self.lock(index))];
        let at = self.begin(&mut locked);
        let [(_, shard)] = &mut locked;
        let (now, key) = (at.as_micros(), EntryKey::new(cell));
        match shard.find(key).map(|slot| shard.entry_mut(key.keeps_log, slot)) {
            Some(EntryMut::Compact(entry)) => decide_entry(cell, entry, now, purpose),
            Some(EntryMut::Log(entry)) => decide_entry(cell, entry, now, purpose),
            None => {
                let mut state = KeyState::unused(cell.algorithm());
                decide(slice::from_mut(cell), slice::from_mut(&mut state), now, purpose);
                if purpose == Purpose::Take && state.as_state().expires_at() > 0 {
                    shard.add(key, state, Some(share_in_use(cell)), &[], self.max_keys, now);
                }
            }
        }
        at
    }

    /// Decides a request of any limits.
    fn decide_all(&self, cells: &mut [Cell], purpose: Purpose) -> Timestamp {
        if let [first, others @ ..] = &*cells
            && others.iter().all(|cell| cell.key() == first.key())
        {
            let shard = self.shard_of(first.key());
            return self.decide_locked(&mut [(shard, self.lock(shard))], cells, purpose);
        }
        self.decide_locked(&mut self.lock_all(cells), cells, purpose)
    }

    /// Decides a request whose shards are locked.
    fn decide_locked(&self, locked: &mut Locked<'_>, cells: &mut [Cell], purpose: Purpose) -> Timestamp {
        let at = self.begin(locked);
        let now = at.as_micros();
        let mut slots: SmallVec<[Option<usize>; 8]> = SmallVec::new();
        for cell in cells.iter_mut() {
            let shard = self.shard_among(locked, cell.key());
            if cell.is_overridable()
                && let Some(kept) = shard.overrides.get(cell.fingerprint(), now, &self.overrides)
            {
                cell.resize(kept.size);
            }
            slots.push(shard.find(EntryKey::new(cell)));
        }
        let mut entries = Entries { store: self, locked, slots, new: SmallVec::new(), purpose };
        decide(cells, &mut entries, now, purpose);
        if purpose == Purpose::Take {
            entries.keep(cells, now);
        }
        at
    }

    /// Locks the shards of a request's keys.
    #[inline]
    fn lock_all(&self, cells: &[Cell]) -> SmallVec<[(usize, MutexGuard<'_, Shard>); 4]> {
        let mut shards: SmallVec<[usize; 8]> = cells.iter().map(|cell| self.shard_of(cell.key())).collect();
        // In ascending order, so that no two requests wait for each other.
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.lock(shard))).collect()
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
    fn shard_among<'l>(&self, locked: &'l mut Locked<'_>, key: KeyHash) -> &'l mut Shard {
        if let [(_, shard)] = locked {
            return shard;
        }
        let shard = self.shard_of(key);
        let place = locked.iter().position(|(index, _)| *index == shard);
        &mut locked[place.expect("the shard of every key is locked")].1
    }
}

/// The entries of a request's keys, in locked shards.
struct Entries<'r, 's> {
    store: &'r MemoryStore,
    locked: &'r mut Locked<'s>,
    slots: SmallVec<[Option<usize>; 8]>,
    /// The states of new keys.
    new: SmallVec<[(usize, KeyState); 1]>,
    purpose: Purpose,
}

impl Entries<'_, '_> {
    #[inline]
    fn shard(&mut self, cell: &Cell) -> &mut Shard {
        self.store.shard_among(self.locked, cell.key())
    }

    /// Returns the entry of a cell, unless its key is new.
    #[inline]
    fn entry(&mut self, index: usize, cell: &Cell) -> Option<EntryMut<'_>> {
        let slot = self.slots[index]?;
        Some(self.shard(cell).entry_mut(cell.algorithm().keeps_log(), slot))
    }

    /// Sets the ranks of known keys, and adds new ones.
    fn keep(mut self, cells: &mut [Cell], now: u64) {
        for index in 0..cells.len() {
            if let Some(rank) = rank(cells, index)
                && let Some(mut entry) = self.entry(index, &cells[index])
            {
                entry.set_rank(rank);
            }
        }
        if self.new.is_empty() {
            return;
        }
        // A request never evicts its own keys.
        let own: SmallVec<[u128; 8]> = cells.iter().map(Cell::fingerprint).collect();
        for (index, state) in mem::take(&mut self.new) {
            let (rank, max_keys) = (rank(cells, index), self.store.max_keys);
            let cell = &mut cells[index];
            let is_kept = self.shard(cell).add(EntryKey::new(cell), state, rank, &own, max_keys, now);
            if !is_kept && cell.is_of_penalty() {
                // A strike that is not kept has no effect.
                *cell = cell.asked_again(cell.cost());
                cell.complete(&mut CompactState::UNUSED.clone(), now, false);
            }
        }
    }
}

/// Accesses the tables directly: an [`EntryMut`] in between takes another 60 instructions ("two limits" in
/// `.ci/instructions`).
impl States for Entries<'_, '_> {
    #[inline]
    fn peek(&mut self, index: usize, cell: &mut Cell, now: u64) {
        match self.slots[index] {
            None => cell.peek(KeyState::unused(cell.algorithm()).as_state(), now),
            Some(slot) if cell.algorithm().keeps_log() => {
                cell.peek(&self.shard(cell).logs.entry_mut(slot).state, now);
            }
            Some(slot) => cell.peek(&self.shard(cell).states.entry_mut(slot).state, now),
        }
    }

    #[inline]
    fn complete(&mut self, index: usize, cell: &mut Cell, now: u64, takes: bool) {
        let (is_log, is_preview) = (cell.algorithm().keeps_log(), self.purpose == Purpose::Preview);
        match self.slots[index] {
            None => {
                let mut new = KeyState::unused(cell.algorithm());
                cell.complete(new.as_state_mut(), now, takes);
                if new.as_state().expires_at() > 0 {
                    self.new.push((index, new));
                }
            }
            Some(slot) if is_preview => {
                let entry = self.shard(cell).entry_mut(is_log, slot);
                cell.complete(entry.copy().as_state_mut(), now, takes);
            }
            Some(slot) if is_log => cell.complete(&mut self.shard(cell).logs.entry_mut(slot).state, now, takes),
            Some(slot) => cell.complete(&mut self.shard(cell).states.entry_mut(slot).state, now, takes),
        }
    }
}

/// Decides a cell by the entry of its key.
#[inline]
fn decide_entry<S: State + Default + Clone>(cell: &mut Cell, entry: &mut Entry<S>, now: u64, purpose: Purpose) {
    cell.peek(&entry.state, now);
    match purpose {
        Purpose::Take => {
            cell.complete(&mut entry.state, now, cell.is_allowed());
            if let Some(rank) = rank(slice::from_ref(cell), 0) {
                entry.set_rank(rank);
            }
        }
        Purpose::Peek => cell.complete(&mut entry.state, now, false),
        Purpose::Preview => cell.complete(&mut entry.state.clone(), now, cell.is_allowed()),
    }
}

/// Returns the rank of a key after a decision, or `None` to leave it: a cost beyond the capacity, or of 0, says nothing
/// about how much the key has used.
///
/// Strikes rank as the denials that they count. Requests that can never pass take nothing from the limit, so their
/// strikes are evicted first and displace no denied key: otherwise, a flood of such requests would lift the limits of
/// other keys.
#[inline]
fn rank(cells: &[Cell], index: usize) -> Option<EvictionRank> {
    let cell = &cells[index];
    let is_strike = cell.is_of_penalty();
    match if is_strike { &cells[index - 1] } else { cell }.wait {
        0 if cell.cost > 0 && !is_strike => Some(share_in_use(cell)),
        0 | NEVER => None,
        _ => Some(EvictionRank::DENIED),
    }
}

fn share_in_use(cell: &Cell) -> EvictionRank {
    EvictionRank::new(cell.used(), cell.algorithm().hard_capacity())
}
