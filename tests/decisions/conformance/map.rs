//! A database with compare-and-swap, in memory.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::store::{CasStore, CompareAndSwap, Versioned};
use tower_ratelimit::{Clock, ManualClock, StoreError, Timestamp};

/// A map with compare-and-swap, and possibly a defect.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) clock: ManualClock,
    pub(super) values: Arc<Mutex<HashMap<String, Versioned>>>,
    /// The version of the last write.
    pub(super) version: Arc<AtomicU64>,
    pub(super) fault: Fault,
    /// The results of the next reads and writes.
    pub(super) steps: Arc<Mutex<VecDeque<Step>>>,
}

/// The result of one read or write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Succeed,
    /// Another process has changed the value.
    Conflict,
    Fail,
    Hang,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    None,
    /// Every second write conflicts.
    Conflicts,
    /// Writes are slow and do not compare versions.
    IgnoresVersions,
    /// Values expire at once.
    Forgets,
    /// The clock stands still.
    Stands,
    /// The versions of a key start again after its removal.
    ReusesVersions,
    /// A value is cut at its first zero byte.
    CutsValues,
    ReadsHang,
    WritesHang,
}

impl Map {
    pub(super) fn store(clock: ManualClock, fault: Fault) -> CasStore<Self> {
        CasStore::new(Self::new(clock, fault))
    }

    pub(super) fn new(clock: ManualClock, fault: Fault) -> Self {
        Self { clock, values: Arc::default(), version: Arc::default(), fault, steps: Arc::default() }
    }

    /// Returns the result of the next read or write.
    async fn step(&self, hangs: bool) -> Result<Step, StoreError> {
        let step = self.steps.lock().unwrap().pop_front().unwrap_or(Step::Succeed);
        match step {
            Step::Fail => Err(StoreError::new("a step that fails")),
            Step::Hang => pending().await,
            _ if hangs => pending().await,
            step => Ok(step),
        }
    }
}

impl CompareAndSwap for Map {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        tokio::task::yield_now().await;
        self.step(self.fault == Fault::ReadsHang).await?;
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        assert!(ttl > Duration::ZERO);
        tokio::task::yield_now().await;
        if self.step(self.fault == Fault::WritesHang).await? == Step::Conflict {
            return Ok(false);
        }
        let mut values = self.values.lock().unwrap();
        let version = values.get(key).map(|value| value.version);
        if version != expected && self.fault != Fault::IgnoresVersions {
            return Ok(false);
        }
        let next = match self.fault {
            Fault::ReusesVersions => version.unwrap_or(0) + 1,
            _ => self.version.fetch_add(1, Ordering::Relaxed) + 1,
        };
        if self.fault == Fault::Conflicts && next % 2 == 1 {
            // Another process has written the same value.
            if let Some(found) = values.get_mut(key) {
                found.version = next;
                return Ok(false);
            }
        }
        if self.fault != Fault::Forgets {
            let zero = value.iter().position(|byte| *byte == 0).filter(|_| self.fault == Fault::CutsValues);
            let value = value[..zero.unwrap_or(value.len())].to_vec();
            values.insert(key.to_owned(), Versioned { value, version: next });
        }
        Ok(true)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.values.lock().unwrap().remove(key);
        Ok(())
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(if self.fault == Fault::Stands { Timestamp::from_micros(1) } else { self.clock.now() })
    }
}
