//! A database with compare-and-swap, in memory.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tower_ratelimit::store::{CasStore, CompareAndSwap, Versioned};
use tower_ratelimit::{Clock, StoreError, Timestamp};

/// A map with compare-and-swap, and possibly a defect. Values expire by its clock.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) clock: Arc<dyn Clock>,
    /// The time at which a clock stands that stands still, in µs.
    pub(super) standing: OnceLock<u64>,
    pub(super) values: Arc<Mutex<HashMap<String, Row>>>,
    /// The version of the last write.
    pub(super) version: Arc<AtomicU64>,
    pub(super) fault: Fault,
    /// The results of the next reads and writes.
    pub(super) steps: Arc<Mutex<VecDeque<Step>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    value: Versioned,
    expires_at: Timestamp,
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
    /// Writes of keys without a value compare before they write.
    FirstWritesRace,
    /// A value expires as the first one of its key.
    KeepsFirstExpiry,
    /// Every second write conflicts.
    Conflicts,
    /// Writes are slow and do not compare versions.
    IgnoresVersions,
    /// Values expire at once.
    Forgets,
    /// The clock stands still.
    Stands,
    /// The clock counts milliseconds.
    CountsMillis,
    /// Two servers take turns, whose clocks differ by 5 ms.
    ClockGoesBack,
    /// The versions of a key start again after its removal.
    ReusesVersions,
    /// A value is cut at its first zero byte.
    CutsValues,
    /// `get` returns values that have expired.
    GetsExpired,
    GetsAllExpired,
    /// Values that have expired are compared with.
    ComparesExpired,
    /// `get` reads a value before its version.
    GetIsTorn,
    GetAllIsTorn,
    ReadsHang,
    WritesHang,
}

impl Map {
    pub(super) fn store(clock: impl Clock, fault: Fault) -> CasStore<Self> {
        CasStore::new(Self::new(clock, fault))
    }

    pub(super) fn new(clock: impl Clock, fault: Fault) -> Self {
        Self {
            clock: Arc::new(clock),
            standing: OnceLock::new(),
            values: Arc::default(),
            version: Arc::default(),
            fault,
            steps: Arc::default(),
        }
    }

    /// Returns the value of `key`. The fault `keeps` has it even if it has expired.
    fn find<'a>(&self, values: &'a HashMap<String, Row>, key: &str, keeps: Fault) -> Option<&'a Versioned> {
        let counts = |row: &&Row| self.clock.now() < row.expires_at || self.fault == keeps;
        values.get(key).filter(counts).map(|row| &row.value)
    }

    /// Reads the value of `key`. The fault `keeps` has it even if it has expired, and `tears` reads it before its
    /// version.
    async fn read(&self, key: &str, keeps: Fault, tears: Fault) -> Result<Option<Versioned>, StoreError> {
        tokio::task::yield_now().await;
        self.step(self.fault == Fault::ReadsHang).await?;
        let find = || self.find(&self.values.lock().unwrap(), key, keeps).cloned();
        let mut found = find();
        if let Some(found) = found.as_mut().filter(|_| self.fault == tears) {
            tokio::task::yield_now().await;
            found.version = find().map_or(0, |found| found.version);
        }
        Ok(found)
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
        self.read(key, Fault::GetsExpired, Fault::GetIsTorn).await
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let mut found = Vec::new();
        for key in keys {
            found.push(self.read(key, Fault::GetsAllExpired, Fault::GetAllIsTorn).await?);
        }
        Ok(found)
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
        let races = self.fault == Fault::FirstWritesRace
            && expected.is_none()
            && !self.values.lock().unwrap().contains_key(key);
        if races {
            tokio::task::yield_now().await;
        }
        let mut values = self.values.lock().unwrap();
        let version = self.find(&values, key, Fault::ComparesExpired).map(|found| found.version);
        if version != expected && self.fault != Fault::IgnoresVersions && !races {
            return Ok(false);
        }
        let next = match self.fault {
            Fault::ReusesVersions => version.unwrap_or(0) + 1,
            _ => self.version.fetch_add(1, Ordering::Relaxed) + 1,
        };
        if self.fault == Fault::Conflicts && next % 2 == 1 {
            // Another process has written the same value.
            if let Some(found) = values.get_mut(key) {
                found.value.version = next;
                return Ok(false);
            }
        }
        if self.fault != Fault::Forgets {
            let zero = value.iter().position(|byte| *byte == 0).filter(|_| self.fault == Fault::CutsValues);
            let value = value[..zero.unwrap_or(value.len())].to_vec();
            let kept = values.get(key).filter(|_| self.fault == Fault::KeepsFirstExpiry);
            let expires_at = kept.map_or_else(|| self.clock.now().saturating_add(ttl), |row| row.expires_at);
            values.insert(key.to_owned(), Row { value: Versioned { value, version: next }, expires_at });
        }
        Ok(true)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.values.lock().unwrap().remove(key);
        Ok(())
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let now = self.clock.now().as_micros();
        Ok(Timestamp::from_micros(match self.fault {
            Fault::Stands => *self.standing.get_or_init(|| now),
            Fault::CountsMillis => now / 1_000,
            Fault::ClockGoesBack => now - self.version.fetch_add(1, Ordering::Relaxed) % 2 * 5_000,
            _ => now,
        }))
    }
}
