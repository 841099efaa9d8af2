//! Stores that stand still, dawdle or fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture};
use tower_ratelimit::{Decision, ManualClock, MemoryStore, Store, StoreError, Timestamp};

/// Midnight of the first of January 2026: all windows up to a day start here.
pub(crate) const MIDNIGHT: u64 = 1_767_225_600;

/// A clock that stands at [`MIDNIGHT`].
pub(crate) fn midnight() -> ManualClock {
    ManualClock::new(Timestamp::from_micros(MIDNIGHT * 1_000_000))
}

/// A store whose clock stands at [`MIDNIGHT`].
pub(crate) fn still() -> MemoryStore {
    MemoryStore::new().clock(midnight())
}

/// Decides in memory, but tells it later, as a store behind a network does.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    memory: Arc<MemoryStore>,
    asked: Arc<AtomicUsize>,
}

impl Slow {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self { memory: Arc::new(memory), asked: Arc::default() }
    }

    /// How many requests it was asked about.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

async fn later<T: Unpin>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    tokio::task::yield_now().await;
    answer.await
}

impl Store for Slow {
    fn hasher(&self) -> KeyHasher {
        self.memory.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        StoreFuture::pending(later(self.memory.decide(charges)))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        StoreFuture::pending(later(self.memory.peek(charges)))
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        StoreFuture::pending(later(self.memory.refund(refunds)))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        StoreFuture::pending(later(self.memory.reset(keys)))
    }
}

/// Can't decide anything, at once or after a while.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Broken {
    AtOnce,
    Later,
}

impl Broken {
    fn answer<T: Send + Unpin + 'static>(self) -> StoreFuture<T> {
        let failed = StoreFuture::ready(Err(StoreError::new("redis://secret@10.0.0.7 refused the connection")));
        match self {
            Self::AtOnce => failed,
            Self::Later => StoreFuture::pending(later(failed)),
        }
    }
}

impl Store for Broken {
    fn hasher(&self) -> KeyHasher {
        KeyHasher::random()
    }

    fn decide(&self, _: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.answer()
    }

    fn peek(&self, _: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.answer()
    }

    fn refund(&self, _: &[Refund<'_>]) -> StoreFuture<()> {
        self.answer()
    }

    fn reset(&self, _: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.answer()
    }
}
