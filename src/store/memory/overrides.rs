//! The overrides of one shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::StoredOverride;

/// The overrides of a shard, by the fingerprint of the key.
#[derive(Debug, Default)]
pub(super) struct Overrides(HashMap<u128, StoredOverride>);

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
    /// Returns the override of a key, and removes it if it has expired.
    pub(super) fn get(&mut self, fingerprint: u128, now: u64, count: &OverrideCount) -> Option<StoredOverride> {
        let kept = *self.0.get(&fingerprint)?;
        if kept.is_valid_at(now) {
            return Some(kept);
        }
        self.remove(fingerprint, count);
        None
    }

    /// Sets the override of a key. Returns whether there was room for it.
    pub(super) fn set(&mut self, fingerprint: u128, kept: StoredOverride, count: &OverrideCount) -> bool {
        let has_room = self.0.contains_key(&fingerprint) || count.add();
        if has_room {
            self.0.insert(fingerprint, kept);
        }
        has_room
    }

    pub(super) fn remove(&mut self, fingerprint: u128, count: &OverrideCount) {
        count.subtract(self.0.remove(&fingerprint).into_iter().count());
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }

    pub(super) fn remove_expired(&mut self, now: u64, count: &OverrideCount) {
        let before = self.0.len();
        self.0.retain(|_, kept| kept.is_valid_at(now));
        count.subtract(before - self.0.len());
        self.0.shrink_to_fit();
    }

    pub(super) fn heap(&self) -> usize {
        // The standard library's table has a byte of metadata for each entry.
        self.0.capacity() * (size_of::<(u128, StoredOverride)>() + 1)
    }
}
