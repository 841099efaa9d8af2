//! Counts the changes that this process makes to keys.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of counters. Keys share them, so a change of one key may end the cached denials of others.
const COUNTERS: usize = 4_096;

#[derive(Debug)]
pub(super) struct Epochs(Box<[AtomicU64]>);

impl Epochs {
    pub(super) fn new() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the counter of the key with this fingerprint.
    pub(super) fn counter(fingerprint: u128) -> usize {
        (fingerprint >> 64) as usize % COUNTERS
    }

    /// Returns the current epoch of the key with this fingerprint.
    pub(super) fn current(&self, fingerprint: u128) -> u64 {
        self.0[Self::counter(fingerprint)].load(Ordering::Acquire)
    }

    /// Begins the next epoch of the keys that share a counter.
    pub(super) fn advance(&self, counter: usize) {
        self.0[counter].fetch_add(1, Ordering::Release);
    }
}
