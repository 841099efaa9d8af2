//! A part of the store, behind one lock.

use std::mem;
use std::sync::MutexGuard;

use super::overrides::Overrides;
use super::table::{EvictionRank, Table};
use crate::algorithm::KeyState;

/// The locked shards of a request, each with its index.
pub(super) type Locked<'s> = [(usize, MutexGuard<'s, Shard>)];

/// A part of the store's keys: their states and their overrides.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: Table,
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

impl Shard {
    pub(super) fn new() -> Self {
        Self { table: Table::new(), overrides: Overrides::default(), due: 0, pace: IDLE_PACE }
    }

    /// Returns the bytes allocated on the heap.
    pub(super) fn heap(&self) -> usize {
        self.table.heap() + self.overrides.heap()
    }

    /// Adds an entry, in place of another one if there are `max_keys`, but none that is `spared`. An entry without a
    /// rank has the lowest one, and displaces no denied one. Returns whether there was room. Other entries may move.
    pub(super) fn add(
        &mut self,
        fingerprint: u128,
        state: KeyState,
        rank: Option<EvictionRank>,
        spared: &[u128],
        max_keys: usize,
        now: u64,
    ) -> bool {
        if self.table.len() >= max_keys {
            match self.table.candidate(spared, now) {
                Some(candidate) if rank.is_some() || candidate.rank < EvictionRank::DENIED => {
                    self.table.remove(candidate.slot);
                }
                _ => return false,
            }
        }
        self.due += NEW_KEY_PACE;
        self.table.insert(fingerprint, state).set_rank(rank.unwrap_or(EvictionRank::LOWEST));
        true
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

    /// Removes expired entries from the next `slots`. Returns whether there were any.
    pub(super) fn sweep(&mut self, slots: usize, now: u64) -> bool {
        let before = self.table.len();
        self.table.sweep(slots, now);
        self.table.len() < before
    }
}
