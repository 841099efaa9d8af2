//! The overrides of one shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::StoredOverride;

/// The overrides of a shard, by the fingerprint of the key.
#[allow(clippy::box_collection, reason = "most shards have none, and should be no larger for it")]
#[derive(Debug)]
pub(super) struct Overrides(Option<Box<HashMap<u128, StoredOverride>>>);

/// The number of overrides in all shards of a store, and its maximum.
#[derive(Debug)]
pub(super) struct OverrideCount {
    pub(super) max: usize,
    count: AtomicUsize,
}

impl OverrideCount {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }

    fn add(&self) -> bool {
        let one_more = |count| (count < self.max).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn subtract(&self, dropped: usize) {
        self.count.fetch_sub(dropped, Ordering::Relaxed);
    }
}

impl Overrides {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    /// Returns the override of a key, and removes it if it has expired.
    pub(super) fn get(&mut self, fingerprint: u128, now: u64, count: &OverrideCount) -> Option<StoredOverride> {
        let kept = *self.0.as_ref()?.get(&fingerprint)?;
        if kept.is_valid_at(now) {
            return Some(kept);
        }
        self.remove(fingerprint, count);
        None
    }

    /// Sets the override of a key. Returns whether there was room for it.
    pub(super) fn set(&mut self, fingerprint: u128, kept: StoredOverride, count: &OverrideCount) -> bool {
        let is_present = self.0.as_ref().is_some_and(|map| map.contains_key(&fingerprint));
        let has_room = is_present || count.add();
        if has_room {
            self.0.get_or_insert_default().insert(fingerprint, kept);
        }
        has_room
    }

    pub(super) fn remove(&mut self, fingerprint: u128, count: &OverrideCount) {
        let Some(map) = &mut self.0 else { return };
        count.subtract(map.remove(&fingerprint).into_iter().count());
        if map.is_empty() {
            self.0 = None;
        }
    }

    pub(super) fn remove_expired(&mut self, now: u64, count: &OverrideCount) {
        let Some(map) = &mut self.0 else { return };
        let before = map.len();
        map.retain(|_, kept| kept.is_valid_at(now));
        count.subtract(before - map.len());
        if map.is_empty() {
            self.0 = None;
        }
    }

    pub(super) fn heap(&self) -> usize {
        // The standard library's table has a byte of metadata for each entry.
        let map = |map: &HashMap<u128, StoredOverride>| {
            size_of_val(map) + map.capacity() * (size_of::<(u128, StoredOverride)>() + 1)
        };
        self.0.as_deref().map_or(0, map)
    }
}
