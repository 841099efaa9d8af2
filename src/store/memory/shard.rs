//! A part of the store, behind one lock.

use std::cmp::Ordering;
use std::mem;
use std::sync::MutexGuard;

use super::eviction::Candidate;
use super::overrides::Overrides;
use super::table::{Entry, EvictionRank, Slot, Table};
use crate::algorithm::{CompactState, KeyState, Log, State};
use crate::decision::Cell;

/// The locked shards of a request, each with its index.
pub(super) type Locked<'s> = [(usize, MutexGuard<'s, Shard>)];

/// A part of the store's keys: a table for each type of state, and their overrides.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) states: Table<CompactState>,
    pub(super) logs: Table<Log>,
    pub(super) overrides: Overrides,
    /// The slots to be swept next, in quarters of a slot.
    due: u32,
    /// The amount that each request adds to `due`, in quarters of a slot.
    pace: u32,
}

/// The minimum number of slots that a sweep inspects, in quarters of a slot.
const MIN_SWEEP: u32 = 4 * 64;

/// The number of slots to be swept that each request adds, in quarters of a slot, after a sweep that removed nothing.
/// It is small because entries that another core has just written take long to read.
const IDLE_PACE: u32 = 1;

/// The same, after a sweep that removed an entry.
const BUSY_PACE: u32 = 8;

/// The number of slots to be swept that each new key adds, in quarters of a slot: several, so that a store in which all
/// states soon expire is not much larger than its current states.
const NEW_KEY_PACE: u32 = 16;

/// Identifies an entry: its fingerprint, and the table that holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryKey {
    pub(super) fingerprint: u128,
    pub(super) keeps_log: bool,
}

impl EntryKey {
    /// Returns the entry of a cell.
    #[inline]
    pub(super) fn new(cell: &Cell) -> Self {
        Self { fingerprint: cell.fingerprint(), keeps_log: cell.algorithm().keeps_log() }
    }
}

/// The entry to evict, and the table that holds it.
enum Victim {
    State(Candidate),
    Log(Candidate),
}

impl Victim {
    fn rank(&self) -> EvictionRank {
        match self {
            Self::State(candidate) | Self::Log(candidate) => candidate.rank,
        }
    }
}

impl Shard {
    pub(super) const fn new() -> Self {
        Self { states: Table::new(), logs: Table::new(), overrides: Overrides::new(), due: 0, pace: IDLE_PACE }
    }

    pub(super) fn keys(&self) -> usize {
        self.states.len() + self.logs.len()
    }

    /// Returns the bytes allocated on the heap.
    pub(super) fn heap(&self) -> usize {
        self.states.heap() + self.logs.heap() + self.overrides.heap() + self.logs.states().map(Log::heap).sum::<usize>()
    }

    /// Returns the slot of an entry, if there is one.
    #[inline]
    pub(super) fn find(&self, key: EntryKey) -> Option<usize> {
        match if key.keeps_log { self.logs.find(key.fingerprint) } else { self.states.find(key.fingerprint) } {
            Slot::Occupied(slot) => Some(slot),
            Slot::Vacant(_) => None,
        }
    }

    /// Returns the entry in an occupied slot of the table of logs, or of the other one.
    #[inline]
    pub(super) fn entry_mut(&mut self, keeps_log: bool, slot: usize) -> EntryMut<'_> {
        match keeps_log {
            true => EntryMut::Log(self.logs.entry_mut(slot)),
            false => EntryMut::Compact(self.states.entry_mut(slot)),
        }
    }

    /// Adds an entry, in place of another one if there are `max_keys`, but none that is `spared`. An entry without a
    /// rank has the lowest one, and displaces no denied one. Returns whether there was room. Other entries may move.
    pub(super) fn add(
        &mut self,
        key: EntryKey,
        state: KeyState,
        rank: Option<EvictionRank>,
        spared: &[u128],
        max_keys: usize,
        now: u64,
    ) -> bool {
        if self.keys() >= max_keys {
            match self.victim(spared, now) {
                Some(victim) if rank.is_none() && victim.rank() == EvictionRank::DENIED => return false,
                Some(Victim::State(candidate)) => self.states.remove(candidate.slot),
                Some(Victim::Log(candidate)) => self.logs.remove(candidate.slot),
                None => return false,
            }
        }
        self.due += NEW_KEY_PACE;
        let rank = rank.unwrap_or(EvictionRank::LOWEST);
        match state {
            KeyState::Compact(state) => self.states.insert(key.fingerprint, state).set_rank(rank),
            KeyState::Log(log) => self.logs.insert(key.fingerprint, log).set_rank(rank),
        }
        true
    }

    /// Removes the entry in an occupied slot. Other entries may move.
    pub(super) fn remove(&mut self, key: EntryKey, slot: usize) {
        if key.keeps_log { self.logs.remove(slot) } else { self.states.remove(slot) }
    }

    /// Chooses the entry to evict from a sample of each table. Among equals, one of the larger table.
    fn victim(&mut self, spared: &[u128], now: u64) -> Option<Victim> {
        match (self.states.candidate(spared, now), self.logs.candidate(spared, now)) {
            (Some(state), Some(log)) => {
                let evicts_state = match state.value().cmp(&log.value()) {
                    Ordering::Less => true,
                    Ordering::Equal => self.states.len() >= self.logs.len(),
                    Ordering::Greater => false,
                };
                Some(if evicts_state { Victim::State(state) } else { Victim::Log(log) })
            }
            (state, log) => state.map(Victim::State).or(log.map(Victim::Log)),
        }
    }

    /// Counts a request. Every few requests, returns how many slots of the store are to be swept, and 0 otherwise.
    pub(super) fn sweep_due(&mut self) -> usize {
        self.due += self.pace;
        if self.due < MIN_SWEEP { 0 } else { mem::take(&mut self.due) as usize / 4 }
    }

    /// Sets how much its requests sweep, by whether the last sweep has removed an entry.
    pub(super) fn set_pace(&mut self, has_removed: bool) {
        self.pace = if has_removed { BUSY_PACE } else { IDLE_PACE };
    }

    /// Removes expired entries from the next `slots` of each table. Returns whether there were any.
    pub(super) fn sweep(&mut self, slots: usize, now: u64) -> bool {
        let before = self.keys();
        self.states.sweep(slots, now);
        self.logs.sweep(slots, now);
        self.keys() < before
    }
}

/// An entry of either table.
pub(super) enum EntryMut<'a> {
    Compact(&'a mut Entry<CompactState>),
    Log(&'a mut Entry<Log>),
}

impl EntryMut<'_> {
    pub(super) fn state(&mut self) -> &mut dyn State {
        match self {
            Self::Compact(entry) => &mut entry.state,
            Self::Log(entry) => &mut entry.state,
        }
    }

    pub(super) fn copy(&self) -> KeyState {
        match self {
            Self::Compact(entry) => KeyState::Compact(entry.state),
            Self::Log(entry) => KeyState::Log(entry.state.clone()),
        }
    }

    #[inline]
    pub(super) fn set_rank(&mut self, rank: EvictionRank) {
        match self {
            Self::Compact(entry) => entry.set_rank(rank),
            Self::Log(entry) => entry.set_rank(rank),
        }
    }
}
