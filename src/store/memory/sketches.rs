//! The counts of the keys for which a shard's table has no room: a sketch for each limit and each of its windows.
//!
//! The windows of a sketch are those of all its keys, so they begin and end together. As for a key, they never go back:
//! if the clock does, time stands still for the sketch until the clock has caught up.

use std::mem;

use super::sketch::{Counts, Dimensions};
use crate::algorithm::{Algorithm, CompactState, KeyState};
use crate::decision::Charge;
use crate::key::hash::KeyHash;
use crate::time::Timestamp;

/// The sketches of a shard, by the identities of their limits, in order.
#[derive(Debug, Default)]
pub(super) struct Sketches(Vec<(KeyHash, LimitSketch)>);

/// The memory that a sketch takes besides its counts, in bytes.
pub(super) const OVERHEAD: usize = size_of::<(KeyHash, LimitSketch)>();

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
    /// Adds a sketch for a limit, unless there is one.
    pub(super) fn add(&mut self, identity: KeyHash, dimensions: &Dimensions, windows: usize) {
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
    #[cold]
    pub(super) fn get(&self, charge: &Charge, now: u64) -> Option<KeyState> {
        let (_, sketch) = &self.0[self.find(charge.identity).ok()?];
        Some(KeyState::Compact(sketch.get(charge, now)))
    }

    /// Returns whether a key has a count that is not over.
    pub(super) fn has_count(&self, charge: &Charge, now: u64) -> bool {
        self.get(charge, now).is_some_and(|state| state.expires_at() > 0)
    }

    /// Stores the state of a key after a decision.
    pub(super) fn set(&mut self, charge: &Charge, state: &KeyState) {
        if let (Ok(position), KeyState::Compact(state)) = (self.find(charge.identity), state) {
            self.0[position].1.set(charge, state);
        }
    }

    /// Removes the sketches that are not in use and don't count any more. Returns the limits of the others.
    pub(super) fn retain(&mut self, is_used: impl Fn(KeyHash) -> bool, now: u64) -> impl Iterator<Item = KeyHash> {
        self.0.retain(|(identity, sketch)| is_used(*identity) || sketch.counts_at(now));
        self.0.iter().map(|(identity, _)| *identity)
    }

    /// Returns the memory that the sketches have allocated, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let counts = self.0.iter().flat_map(|(_, sketch)| [Some(&sketch.current), sketch.previous.as_ref()]).flatten();
        self.0.capacity() * OVERHEAD + counts.map(Counts::bytes).sum::<usize>()
    }
}

impl LimitSketch {
    /// Returns whether a window still counts.
    fn counts_at(&self, now: u64) -> bool {
        let windows_after = u64::from(self.previous.is_some());
        now < self.end + windows_after * (self.end - self.start)
    }

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
