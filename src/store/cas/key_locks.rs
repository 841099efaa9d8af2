//! Locks by which the requests of one process for the same key take turns.
//!
//! Otherwise, their writes would conflict with each other. Those of other processes still can.

use smallvec::SmallVec;
use tokio::sync::{Mutex, MutexGuard};

use crate::hash::KeyHash;

/// Locks, each for a part of the keys.
#[derive(Debug)]
pub(super) struct KeyLocks(Box<[Mutex<()>]>);

const LOCKS: usize = 256;

impl KeyLocks {
    pub(super) fn new() -> Self {
        Self((0..LOCKS).map(|_| Mutex::new(())).collect())
    }

    /// Locks keys, once no other request of this process holds the lock of one of them.
    pub(super) async fn lock(&self, keys: impl Iterator<Item = KeyHash>) -> SmallVec<[MutexGuard<'_, ()>; 2]> {
        let mut locks: SmallVec<[usize; 4]> = keys.map(|key| key.as_u128() as usize % LOCKS).collect();
        // In ascending order, so that no two requests wait for each other.
        locks.sort_unstable();
        locks.dedup();
        let mut guards = SmallVec::new();
        for lock in locks {
            guards.push(self.0[lock].lock().await);
        }
        guards
    }
}
