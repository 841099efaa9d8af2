//! Keys beyond the capacity of the store: their states are read from sketches, decided as any other, and written back.

use std::collections::{HashMap, HashSet};
use std::slice;
use std::sync::{Arc, PoisonError, Weak};

use super::MemoryStore;
use super::shard::{Locked, Shard};
use super::sketch::Sketch;
use super::sketches::OVERHEAD;
use crate::algorithm::{Algorithm, KeyState, Penalty};
use crate::decision::{Charge, Outcome};
use crate::error::ConfigError;
use crate::key::hash::KeyHash;
use crate::store::Preparation;

impl MemoryStore {
    /// Decides a request with a single limit whose key is not in the table, as [`decide_now`](Self::decide_now) does.
    #[cold]
    pub(super) fn decide_absent(&self, locked: &mut Locked<'_>, outcome: &mut Outcome, now: u64, takes: bool) {
        let [(_, shard)] = locked else { unreachable!("a request with a single limit has one shard") };
        let mut state = shard.peek_absent(outcome, now, takes);
        outcome.complete(&mut state, takes && outcome.is_allowed());
        if takes {
            self.add(locked, slice::from_ref(outcome), &[outcome.fingerprint()], [(0, state)]);
        }
    }

    /// Returns the memory of the [sketch](Sketch) of a limit, in bytes. 0 without a sketch, or for an algorithm that a
    /// sketch can't count.
    #[must_use]
    pub fn sketch_bytes(&self, algorithm: impl Into<Algorithm>) -> usize {
        let (Some(sketch), Some(windows)) = (self.overflow, algorithm.into().counted_windows()) else { return 0 };
        let counts = sketch.part(self.shards.len()).bytes();
        self.shards.len() * (windows * counts + OVERHEAD)
    }

    /// Allocates the sketch of a limit, unless there is one, and frees those that no limiter needs any more.
    pub(super) fn prepare_sketch(
        &self,
        sketch: &Sketch,
        limit: &Charge,
        penalty: Option<&Penalty>,
        depends_on_refunds: bool,
    ) -> Result<Preparation, ConfigError> {
        let Some(windows) = limit.algorithm().counted_windows() else {
            return Err(ConfigError::new(format!(
                "a sketch can't count {}: use a `FixedWindow`, a `CalendarWindow` or a `SlidingWindowCounter`, or a \
                 `MemoryStore` without a sketch",
                limit.algorithm()
            )));
        };
        if penalty.is_some() {
            return Err(ConfigError::new(
                "a sketch keeps no strikes: leave the penalty out, or use a `MemoryStore` without a sketch",
            ));
        }
        if depends_on_refunds && self.max_keys == 0 {
            return Err(ConfigError::new(
                "it depends on responses, but a sketch refunds nothing: keep keys in a table too, with \
                 `MemoryStore::overflow`",
            ));
        }
        let mut sketched = self.sketched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(in_use) = sketched.get(&limit.identity).and_then(Weak::upgrade) {
            return Ok(in_use);
        }
        let in_use = Arc::new(());
        sketched.insert(limit.identity, Arc::downgrade(&in_use));
        self.free_unused(&mut sketched);
        let dimensions = sketch.part(self.shards.len());
        for shard in 0..self.shards.len() {
            self.lock(shard).sketches.add(limit.identity, &dimensions, windows);
        }
        Ok(in_use)
    }

    /// Frees the sketches of limits that no limiter has any more, unless they count: a limit that is built again finds
    /// its counts.
    fn free_unused(&self, sketched: &mut HashMap<KeyHash, Weak<()>>) {
        let is_used = |in_use: &Weak<()>| in_use.strong_count() > 0;
        if sketched.values().all(is_used) {
            return;
        }
        let (now, mut kept) = (self.expiry_limit(), HashSet::new());
        for shard in 0..self.shards.len() {
            let has_limiter = |identity| sketched.get(&identity).is_some_and(is_used);
            kept.extend(self.lock(shard).sketches.retain(has_limiter, now));
        }
        sketched.retain(|identity, in_use| is_used(in_use) || kept.contains(identity));
    }
}

impl Shard {
    /// Returns the state of a key that is not in the table.
    #[cold]
    pub(super) fn absent(&self, charge: &Charge, now: u64) -> KeyState {
        self.sketches.get(charge, now).unwrap_or(KeyState::UNUSED)
    }

    /// Looks at the state of a key that is not in the table, and returns it. Leaves the outcome unanswered if its limit
    /// is not [prepared](crate::Store::prepare).
    #[cold]
    pub(super) fn peek_absent(&self, outcome: &mut Outcome, now: u64, takes: bool) -> KeyState {
        let state = self.sketches.get(outcome, now);
        match &state {
            Some(state) => outcome.peek(state, now, takes),
            None => outcome.set_unanswered(),
        }
        state.unwrap_or(KeyState::UNUSED)
    }
}
