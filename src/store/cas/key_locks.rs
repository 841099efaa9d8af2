//! Locks by which the requests of one process for the same key take turns.
//!
//! Otherwise, their writes would conflict with each other. Those of other processes still can.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smallvec::SmallVec;
use tokio::sync::OwnedMutexGuard;

use crate::hash::KeyHash;

/// The locks of the keys in use. Each key has its own, so that a flood of requests for one delays no other.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<u128, Weak<tokio::sync::Mutex<()>>>>);

impl KeyLocks {
    /// Locks keys, once no other request of this process holds the lock of one of them.
    pub(super) async fn lock(&self, keys: impl Iterator<Item = KeyHash>) -> SmallVec<[OwnedMutexGuard<()>; 2]> {
        let mut keys: SmallVec<[u128; 4]> = keys.map(KeyHash::as_u128).collect();
        // In ascending order, so that no two requests wait for each other.
        keys.sort_unstable();
        keys.dedup();
        let mut guards = SmallVec::new();
        for key in keys {
            guards.push(self.of(key).lock_owned().await);
        }
        guards
    }

    fn of(&self, key: u128) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() == locks.capacity() {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::KeyHasher;

    #[tokio::test]
    async fn locks_that_are_no_longer_held_take_no_memory() {
        let locks = KeyLocks::default();
        for number in 0..100_000_u64 {
            let key = KeyHasher::with_secret([0; 16]).hash(&number.to_le_bytes());
            drop(locks.lock([key].into_iter()).await);
        }
        assert!(locks.0.lock().unwrap().capacity() < 10);
    }
}
