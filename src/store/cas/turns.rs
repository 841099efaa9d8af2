//! Turns: requests of one process for the same key read and write one after the other.
//!
//! Otherwise they would fail each other's writes. Requests of other processes still can.

use smallvec::SmallVec;
use tokio::sync::{Mutex, MutexGuard};

use crate::hash::KeyHash;

/// Locks, each for a part of all keys.
#[derive(Debug)]
pub(super) struct Turns(Box<[Mutex<()>]>);

const LOCKS: usize = 256;

impl Turns {
    pub(super) fn new() -> Self {
        Self((0..LOCKS).map(|_| Mutex::new(())).collect())
    }

    /// Waits until no other request of this process is writing to one of the keys.
    pub(super) async fn take(&self, keys: impl Iterator<Item = KeyHash>) -> SmallVec<[MutexGuard<'_, ()>; 2]> {
        let mut locks: SmallVec<[usize; 4]> = keys.map(|key| key.as_u128() as usize % LOCKS).collect();
        // In ascending order, so that no two requests wait for each other.
        locks.sort_unstable();
        locks.dedup();
        let mut turns = SmallVec::new();
        for lock in locks {
            turns.push(self.0[lock].lock().await);
        }
        turns
    }
}
