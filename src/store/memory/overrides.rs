//! Other sizes of limits, for some keys.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::algorithm::Size;

/// Those of a part of the store. Most parts have none.
#[allow(clippy::box_collection, reason = "most parts have none, and should be no larger for it")]
#[derive(Debug)]
pub(super) struct Overrides(Option<Box<HashMap<u128, Kept>>>);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Kept {
    pub(super) size: Size,
    /// The instant at which it expires, in µs, if it does.
    pub(super) until: Option<u64>,
}

/// How many all parts of a store have, and how many they may have.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) most: usize,
    kept: AtomicUsize,
}

impl Count {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, kept: AtomicUsize::new(0) }
    }

    fn add(&self) -> bool {
        let one_more = |kept| (kept < self.most).then_some(kept + 1);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn subtract(&self, dropped: usize) {
        self.kept.fetch_sub(dropped, Ordering::Relaxed);
    }
}

impl Overrides {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    /// What is kept for a key. What has expired is dropped.
    pub(super) fn get(&mut self, print: u128, now: u64, count: &Count) -> Option<Kept> {
        let kept = *self.0.as_ref()?.get(&print)?;
        if kept.holds(now) {
            return Some(kept);
        }
        self.remove(print, count);
        None
    }

    /// Whether there was room for it.
    pub(super) fn set(&mut self, print: u128, kept: Kept, count: &Count) -> bool {
        let is_there = self.0.as_ref().is_some_and(|map| map.contains_key(&print));
        let has_room = is_there || count.add();
        if has_room {
            self.0.get_or_insert_default().insert(print, kept);
        }
        has_room
    }

    pub(super) fn remove(&mut self, print: u128, count: &Count) {
        let Some(map) = &mut self.0 else { return };
        count.subtract(map.remove(&print).into_iter().count());
        if map.is_empty() {
            self.0 = None;
        }
    }

    pub(super) fn drop_expired(&mut self, now: u64, count: &Count) {
        let Some(map) = &mut self.0 else { return };
        let before = map.len();
        map.retain(|_, kept| kept.holds(now));
        count.subtract(before - map.len());
        if map.is_empty() {
            self.0 = None;
        }
    }

    pub(super) fn heap(&self) -> usize {
        // A byte for each place, as the standard library's table has it.
        let map = |map: &HashMap<u128, Kept>| size_of_val(map) + map.capacity() * (size_of::<(u128, Kept)>() + 1);
        self.0.as_deref().map_or(0, map)
    }
}

impl Kept {
    fn holds(&self, now: u64) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
