//! A database that decides by the clock of the checks.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::store::{CasStore, CompareAndSwap, Versioned};
use crate::time::{Clock, ManualClock, Timestamp};

/// The time for which values are kept after they have expired by the clock of the checks, because that of the database
/// advances meanwhile.
const TTL_MARGIN: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Clocked<B> {
    database: Arc<B>,
    clock: ManualClock,
}

/// Creates a store that decides by `clock`.
pub(super) fn store<B: CompareAndSwap>(database: &Arc<B>, clock: ManualClock) -> CasStore<Clocked<B>> {
    CasStore::new(Clocked { database: database.clone(), clock }).ttl_margin(TTL_MARGIN)
}

impl<B: CompareAndSwap> CompareAndSwap for Clocked<B> {
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Versioned>, StoreError>> + Send {
        self.database.get(key)
    }

    fn get_all(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Option<Versioned>>, StoreError>> + Send {
        self.database.get_all(keys)
    }

    fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        self.database.compare_and_swap(key, expected, value, ttl)
    }

    fn delete(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.database.delete(key)
    }

    fn now(&self) -> impl Future<Output = Result<Timestamp, StoreError>> + Send {
        ready(Ok(self.clock.now()))
    }
}
