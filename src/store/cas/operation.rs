//! How operations run: those of one process for the same key take turns, those that lose a race against another process
//! try again, for a bounded time, and those that have begun to write are completed although their callers give up.

use std::collections::{BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::error::StoreError;
use crate::time::random_up_to;

/// What operations for the same key share while one of them is under way.
#[derive(Debug)]
pub(crate) struct KeyMap<K, T>(Mutex<HashMap<K, Weak<T>>>);

/// The locks of the keys in use, by which operations for the same key take turns in the order of their calls. Each key
/// has its own, so that a flood of operations for one delays no other.
pub(super) type KeyLocks<K> = KeyMap<K, tokio::sync::Mutex<()>>;

impl<K, T> Default for KeyMap<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, T: Default> KeyMap<K, T> {
    /// Returns the value of a key, which is in use until all clones of it are dropped.
    pub(crate) fn of(&self, key: K) -> Arc<T> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = values.get(&key).and_then(Weak::upgrade) {
            return value;
        }
        if values.len() == values.capacity() {
            values.retain(|_, value| value.strong_count() > 0);
        }
        let value = Arc::default();
        values.insert(key, Arc::downgrade(&value));
        value
    }

    /// Returns the value of a key that is in use.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key)?.upgrade()
    }
}

impl<K: Copy + Ord + Hash> KeyLocks<K> {
    /// Locks keys, once no other operation holds the lock of one of them.
    pub(super) async fn lock(&self, keys: impl Iterator<Item = K>) -> Vec<OwnedMutexGuard<()>> {
        // In ascending order, so that no two operations wait for each other.
        let mut guards = Vec::new();
        for key in keys.collect::<BTreeSet<K>>() {
            guards.push(self.of(key).lock_owned().await);
        }
        guards
    }
}

/// The number of attempts that follow a lost race at once. Further ones follow after a pause.
const IMMEDIATE: u64 = 16;

/// The attempts of an operation to write values that others keep changing.
pub(super) struct Retries {
    attempts: u64,
    began: Instant,
    /// The time after which the operation stops retrying and waiting for a lock.
    longest: Duration,
}

impl Retries {
    /// Starts counting.
    ///
    /// # Errors
    ///
    /// Returns an error outside a Tokio runtime, whose timers pauses need.
    pub(super) fn new(longest: Duration) -> Result<Self, StoreError> {
        StoreError::check_runtime()?;
        Ok(Self { attempts: 0, began: Instant::now(), longest })
    }

    /// Returns the time that is left for attempts.
    pub(super) fn left(&self) -> Duration {
        self.longest.saturating_sub(self.began.elapsed())
    }

    /// Waits for the operation's turn among the requests of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if the time for attempts is over.
    pub(super) async fn wait<T>(&self, turn: impl Future<Output = T>) -> Result<T, StoreError> {
        timeout(self.left(), turn).await.map_err(|_| StoreError::contention())
    }

    /// Waits before each attempt but the first ones. The pause is random, up to a maximum that grows to 4 ms.
    ///
    /// # Errors
    ///
    /// Returns an error if the time for attempts is over.
    pub(super) async fn next_attempt(&mut self) -> Result<(), StoreError> {
        let pause = random_up_to(Duration::from_millis(self.attempts.saturating_sub(IMMEDIATE).min(4)));
        if self.attempts > 0 && self.began.elapsed() + pause >= self.longest {
            return Err(StoreError::contention());
        }
        self.attempts += 1;
        if !pause.is_zero() {
            sleep(pause).await;
        }
        Ok(())
    }
}

/// The longest time to complete an operation whose caller gave up. Otherwise, tasks would accumulate while a database
/// hangs. It is also the longest time to revert an operation, and to retry one without a deadline.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs an operation in a task of its own. If the caller gives up, for instance at a deadline, after the operation has
/// set `writes` because it begins to write, it is completed, and `undo` reverts its result.
///
/// Outside a Tokio runtime, the operation ends when its caller gives up.
pub(super) async fn complete<T, U>(
    operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    writes: Arc<AtomicBool>,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    U: Future<Output = ()> + Send,
{
    let Ok(runtime) = Handle::try_current() else { return operation.await };
    let (mut sender, result) = oneshot::channel();
    runtime.spawn(async move {
        let mut operation = pin!(operation);
        let finished = poll_fn(|context| match operation.as_mut().poll(context) {
            Poll::Ready(finished) => Poll::Ready(Some(finished)),
            Poll::Pending => sender.poll_closed(context).map(|()| None),
        });
        let finished = match finished.await {
            None if writes.load(Ordering::Relaxed) => timeout(TIMEOUT, operation).await.ok(),
            finished => finished,
        };
        if let Some(finished) = finished
            && let Err(Ok(unused)) = sender.send(finished)
        {
            let _ = timeout(TIMEOUT, undo(unused)).await;
        }
    });
    result.await.unwrap_or_else(|_| {
        Err(StoreError::of_one_request(
            "the task of the request has ended: its Tokio runtime has shut down, or the database's client has panicked",
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_use_until_all_its_locks_are_dropped() {
        let locks = KeyLocks::<_>::default();
        assert!(locks.get(&1).is_none());
        let [one, other] = [(); 2].map(|()| locks.of(1));
        drop(one);
        assert!(locks.get(&1).is_some() && locks.get(&2).is_none());
        drop(other);
        assert!(locks.get(&1).is_none());
    }

    #[tokio::test]
    async fn locks_that_are_no_longer_held_take_no_memory() {
        let locks = KeyLocks::default();
        for key in 0..100_000 {
            drop(locks.lock([key].into_iter()).await);
        }
        assert!(locks.0.lock().unwrap().capacity() < 10);
    }
}
