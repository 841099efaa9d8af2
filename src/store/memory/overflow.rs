//! The keys for which a table has no room: their counts in sketches, one for each limit and each of its windows.
//!
//! A shard reads the state of such a key from the sketch, decides by it as by any other, and writes the new count back.
//! The windows of a sketch are those of all its keys, so they begin and end together. As for a key, they never go back:
//! if the clock does, time stands still for the sketch until the clock has caught up.

use std::collections::HashSet;
use std::mem;
use std::slice;
use std::sync::{Arc, PoisonError};

use super::MemoryStore;
use super::shard::{Locked, Shard};
use super::sketch::{Counts, Dimensions, Sketch};
use crate::algorithm::{Algorithm, CompactState, KeyState};
use crate::decision::{Charge, Outcome};
use crate::error::ConfigError;
use crate::key::hash::KeyHash;
use crate::store::Preparation;
use crate::time::Timestamp;

/// The sketches of a shard, by the identities of their limits, in order.
#[derive(Debug, Default)]
pub(super) struct Sketches(Vec<(KeyHash, LimitSketch)>);

/// The counts of a limit: those of the current window, and of the previous one for algorithms that need it.
#[derive(Debug)]
struct LimitSketch {
    /// The current window, in µs.
    start: u64,
    end: u64,
    current: Counts,
    previous: Option<Counts>,
}

impl Sketches {
    /// Adds a sketch for a limit, unless there is one, and removes those of others than `identities`.
    fn add(&mut self, identity: KeyHash, dimensions: &Dimensions, windows: usize, identities: &HashSet<KeyHash>) {
        self.0.retain(|(identity, _)| identities.contains(identity));
        if let Err(position) = self.find(identity) {
            let previous = (windows > 1).then(|| Counts::new(dimensions));
            let sketch = LimitSketch { start: 0, end: 0, current: Counts::new(dimensions), previous };
            self.0.reserve_exact(1);
            self.0.insert(position, (identity, sketch));
        }
    }

    fn find(&self, identity: KeyHash) -> Result<usize, usize> {
        self.0.binary_search_by_key(&identity, |(identity, _)| *identity)
    }

    /// Returns the state of a key, or `None` if its limit has no sketch.
    fn get(&self, charge: &Charge, now: u64) -> Option<CompactState> {
        let (_, sketch) = &self.0[self.find(charge.identity).ok()?];
        Some(sketch.get(charge, now))
    }

    /// Stores the state of a key after a decision.
    pub(super) fn set(&mut self, charge: &Charge, state: &KeyState) {
        if let (Ok(position), KeyState::Compact(state)) = (self.find(charge.identity), state) {
            self.0[position].1.set(charge, state);
        }
    }

    /// Returns the memory that the sketches have allocated, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let counts = self.0.iter().flat_map(|(_, sketch)| [Some(&sketch.current), sketch.previous.as_ref()]).flatten();
        self.0.capacity() * size_of::<(KeyHash, LimitSketch)>() + counts.map(Counts::bytes).sum::<usize>()
    }
}

impl LimitSketch {
    fn get(&self, charge: &Charge, now: u64) -> CompactState {
        let fingerprint = charge.fingerprint();
        let previous = self.previous.as_ref().map_or(0, |counts| counts.get(fingerprint));
        let current = self.current.get(fingerprint);
        let has_begun = self.start <= now;
        // As for a key: a window without charges leaves no trace, unless time stands still in it.
        let state = match current {
            0 if has_begun => CompactState::of_counts(charge.algorithm(), self.start, [0, previous]),
            _ => CompactState::of_counts(charge.algorithm(), self.end, [previous, current]),
        };
        let is_unused = has_begun && state.detail == 0 || state.expires_at <= now;
        if is_unused { CompactState::UNUSED } else { state }
    }

    fn set(&mut self, charge: &Charge, state: &CompactState) {
        let (end, count) = state.current_count(charge.algorithm());
        if end > self.end {
            self.begin(charge.algorithm(), end);
        }
        // The count of the previous window is final.
        if end == self.end {
            self.current.raise(charge.fingerprint(), count);
        }
    }

    /// Begins the window that ends at `end`.
    #[cold]
    fn begin(&mut self, algorithm: &Algorithm, end: u64) {
        let last = Timestamp::from_micros((end - 1).min(Timestamp::MAX.as_micros()));
        // The first week of a calendar begins before the epoch.
        let start = end.saturating_sub(algorithm.window_at(last).as_micros() as u64);
        if let Some(previous) = &mut self.previous {
            mem::swap(previous, &mut self.current);
            if start != self.end {
                previous.clear();
            }
        }
        self.current.clear();
        (self.start, self.end) = (start, end);
    }
}

impl MemoryStore {
    /// Decides a request with a single limit whose key is not in the table, as [`decide_now`](Self::decide_now) does.
    #[cold]
    pub(super) fn decide_absent(&self, locked: &mut Locked<'_>, outcome: &mut Outcome, now: u64, takes: bool) {
        let [(_, shard)] = locked else { unreachable!("a request with a single limit has one shard") };
        let Some(mut state) = self.absent_state(shard, outcome, now) else { return outcome.set_unanswered() };
        outcome.peek(&state, now, takes);
        outcome.complete(&mut state, takes && outcome.is_allowed());
        if takes {
            self.add(locked, slice::from_ref(outcome), &[outcome.fingerprint()], [(0, state)]);
        }
    }

    /// Returns the state of a key that is not in the table of its shard. `None` if its limit is not
    /// [prepared](crate::Store::prepare).
    #[inline]
    pub(super) fn absent_state(&self, shard: &Shard, charge: &Charge, now: u64) -> Option<KeyState> {
        if self.overflow.is_none() { Some(KeyState::UNUSED) } else { shard.sketched_state(charge, now) }
    }

    /// Returns the memory of the sketch of a limit, in bytes, which is taken when a limiter is built or its limits are
    /// replaced. 0 without a sketch, or for an algorithm that a sketch can't count.
    #[must_use]
    pub fn sketch_bytes(&self, algorithm: impl Into<Algorithm>) -> usize {
        let (Some(sketch), Some(windows)) = (self.overflow, algorithm.into().counted_windows()) else { return 0 };
        let counts = sketch.part(self.shards.len()).bytes();
        self.shards.len() * (windows * counts + size_of::<(KeyHash, LimitSketch)>())
    }

    /// Allocates the sketch of a limit, unless there is one, and frees those of limits that no limiter has any more.
    pub(super) fn prepare_sketch(
        &self,
        sketch: &Sketch,
        limit: &Outcome,
        depends_on_refunds: bool,
    ) -> Result<Preparation, ConfigError> {
        sketch.check()?;
        let Some(windows) = limit.algorithm().counted_windows() else {
            return Err(ConfigError::new(format!(
                "a sketch can't count {}: use a `FixedWindow`, a `CalendarWindow` or a `SlidingWindowCounter`, or a \
                 `MemoryStore` without a sketch",
                limit.algorithm()
            )));
        };
        if limit.penalty().is_some() {
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
        let dimensions = sketch.part(self.shards.len());
        let in_use = Arc::new(());
        let mut sketched = self.sketched.lock().unwrap_or_else(PoisonError::into_inner);
        sketched.retain(|(_, in_use)| in_use.strong_count() > 0);
        sketched.push((limit.identity, Arc::downgrade(&in_use)));
        let identities: HashSet<_> = sketched.iter().map(|(identity, _)| *identity).collect();
        for shard in 0..self.shards.len() {
            self.lock(shard).sketches.add(limit.identity, &dimensions, windows, &identities);
        }
        Ok(Some(in_use))
    }
}

impl Shard {
    #[cold]
    fn sketched_state(&self, charge: &Charge, now: u64) -> Option<KeyState> {
        self.sketches.get(charge, now).map(KeyState::Compact)
    }
}
