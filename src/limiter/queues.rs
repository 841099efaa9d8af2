//! The queues of operations that wait for their turn, one for each key.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::hash::KeyHash;

/// The queues of a limiter. A queue without places is removed.
#[derive(Clone, Default)]
pub(super) struct Queues(Arc<Mutex<Places>>);

/// Queues, each with the number of places that are taken.
type Places = BTreeMap<QueueId, (usize, Arc<Queue>)>;

/// The address of the client, which waiting operations keep alive, and the key.
pub(super) type QueueId = (usize, KeyHash);

/// Gives turns in the order of arrival. The value is the number of tokens that were left after the last turn.
type Queue = tokio::sync::Mutex<u64>;

/// A place in a queue. Dropping it leaves the queue.
pub(super) struct Place<'a> {
    queues: &'a Queues,
    id: QueueId,
    pub(super) queue: Arc<Queue>,
}

impl Queues {
    /// Returns whether operations are in a queue.
    pub(super) fn has(&self, id: QueueId) -> bool {
        self.lock().contains_key(&id)
    }

    /// Enters a queue.
    pub(super) fn enter(&self, id: QueueId) -> Place<'_> {
        let mut queues = self.lock();
        let (places, queue) = queues.entry(id).or_default();
        *places += 1;
        Place { queues: self, id, queue: queue.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut queue) = self.queues.lock().entry(self.id) {
            match queue.get_mut() {
                (1, _) => drop(queue.remove()),
                (places, _) => *places -= 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::hash::KeyHasher;

    /// A place is left before the memory that it shares is released, and another one may be left between.
    #[test]
    fn a_queue_is_removed_once_its_last_place_is_left() {
        let (queues, id) = (Queues::default(), (0, KeyHasher::with_secret([0; 16]).hash(b"key")));
        let [one, other] = [(); 2].map(|()| queues.enter(id));
        let shared = one.queue.clone();
        drop(one);
        assert!(queues.has(id));
        drop(other);
        assert!(!queues.has(id));
        drop(shared);
    }
}
