//! A database with compare-and-swap, in memory.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::store::{CasStore, CompareAndSwap, Versioned};
use tower_ratelimit::{Clock, ManualClock, StoreError, Timestamp};

/// A map with compare-and-swap, and possibly a fault. Values expire by its clock. Clones share it.
#[derive(Clone, Debug)]
pub struct Database<C = ManualClock> {
    pub clock: C,
    /// The time at which a clock stands that stands still, in µs.
    standing: Arc<OnceLock<u64>>,
    values: Arc<Mutex<HashMap<String, Row>>>,
    /// The version of the last write.
    version: Arc<AtomicU64>,
    fault: Arc<Mutex<Fault>>,
    /// The results of the next reads and writes.
    pub steps: Arc<Mutex<VecDeque<Step>>>,
    /// The number of the next writes that other processes precede.
    pub conflicts: Arc<AtomicU64>,
    /// Called for each of them.
    on_conflict: fn(&C),
    /// The time that each read and each write takes.
    latency: Duration,
    reads: Arc<AtomicU64>,
    readings: Arc<AtomicU64>,
    writes: Arc<Mutex<Vec<Instant>>>,
}

#[derive(Clone, Debug)]
struct Row {
    value: Versioned,
    expires_at: Timestamp,
}

/// The result of one read or write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Succeed,
    /// Another process has changed the value.
    Conflict,
    Fail,
    Hang,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
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
    /// The clock is not read at once, which is no defect.
    ClockIsRemote,
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

impl Default for Database {
    fn default() -> Self {
        Self::new(ManualClock::default(), Fault::None)
    }
}

impl<C: Clock> Database<C> {
    pub fn store(clock: C, fault: Fault) -> CasStore<Self> {
        CasStore::new(Self::new(clock, fault))
    }

    pub fn new(clock: C, fault: Fault) -> Self {
        Self {
            clock,
            standing: Arc::default(),
            values: Arc::default(),
            version: Arc::default(),
            fault: Arc::new(Mutex::new(fault)),
            steps: Arc::default(),
            conflicts: Arc::default(),
            on_conflict: |_| {},
            latency: Duration::ZERO,
            reads: Arc::default(),
            readings: Arc::default(),
            writes: Arc::default(),
        }
    }

    /// Returns the same database with another clock, as of another process.
    pub fn with_clock(&self, clock: C) -> Self
    where
        C: Clone,
    {
        Self { clock, ..self.clone() }
    }

    pub fn latency(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    pub fn on_conflict(self, on_conflict: fn(&C)) -> Self {
        Self { on_conflict, ..self }
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Returns the number of reads.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Returns how often the clock was read.
    pub fn clock_readings(&self) -> u64 {
        self.readings.load(Ordering::Relaxed)
    }

    /// Returns when each write began.
    pub fn writes(&self) -> Vec<Instant> {
        self.writes.lock().unwrap().clone()
    }

    fn has(&self, fault: Fault) -> bool {
        *self.fault.lock().unwrap() == fault
    }

    /// Returns the value of `key`. The fault `keeps` has it even if it has expired.
    fn find<'a>(&self, values: &'a HashMap<String, Row>, key: &str, keeps: Fault) -> Option<&'a Versioned> {
        let counts = |row: &&Row| self.clock.now() < row.expires_at || self.has(keeps);
        values.get(key).filter(counts).map(|row| &row.value)
    }

    /// Reads the value of `key`. The fault `keeps` has it even if it has expired, and `tears` reads it before its
    /// version.
    async fn read(&self, key: &str, keeps: Fault, tears: Fault) -> Result<Option<Versioned>, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.step(self.has(Fault::ReadsHang)).await?;
        let find = || self.find(&self.values.lock().unwrap(), key, keeps).cloned();
        let mut found = find();
        if let Some(found) = found.as_mut().filter(|_| self.has(tears)) {
            tokio::task::yield_now().await;
            found.version = find().map_or(0, |found| found.version);
        }
        Ok(found)
    }

    /// Returns the result of the next read or write.
    async fn step(&self, hangs: bool) -> Result<Step, StoreError> {
        tokio::task::yield_now().await;
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        let step = self.steps.lock().unwrap().pop_front().unwrap_or(Step::Succeed);
        match step {
            Step::Fail => Err(StoreError::new("a step that fails")),
            Step::Hang => pending().await,
            _ if hangs => pending().await,
            step => Ok(step),
        }
    }
}

impl<C: Clock> CompareAndSwap for Database<C> {
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
        self.writes.lock().unwrap().push(Instant::now());
        if self.step(self.has(Fault::WritesHang)).await? == Step::Conflict {
            return Ok(false);
        }
        let precede = |left: u64| left.checked_sub(1);
        if self.conflicts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, precede).is_ok() {
            (self.on_conflict)(&self.clock);
            return Ok(false);
        }
        let races =
            self.has(Fault::FirstWritesRace) && expected.is_none() && !self.values.lock().unwrap().contains_key(key);
        if races {
            tokio::task::yield_now().await;
        }
        let mut values = self.values.lock().unwrap();
        let version = self.find(&values, key, Fault::ComparesExpired).map(|found| found.version);
        if version != expected && !self.has(Fault::IgnoresVersions) && !races {
            return Ok(false);
        }
        let next = match *self.fault.lock().unwrap() {
            Fault::ReusesVersions => version.unwrap_or(0) + 1,
            _ => self.version.fetch_add(1, Ordering::Relaxed) + 1,
        };
        if self.has(Fault::Conflicts) && next % 2 == 1 {
            // Another process has written the same value.
            if let Some(found) = values.get_mut(key) {
                found.value.version = next;
                return Ok(false);
            }
        }
        if !self.has(Fault::Forgets) {
            let zero = value.iter().position(|byte| *byte == 0).filter(|_| self.has(Fault::CutsValues));
            let value = value[..zero.unwrap_or(value.len())].to_vec();
            let kept = values.get(key).filter(|_| self.has(Fault::KeepsFirstExpiry));
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
        self.readings.fetch_add(1, Ordering::Relaxed);
        if self.has(Fault::ClockIsRemote) {
            tokio::task::yield_now().await;
        }
        let now = self.clock.now().as_micros();
        Ok(Timestamp::from_micros(match *self.fault.lock().unwrap() {
            Fault::Stands => *self.standing.get_or_init(|| now),
            Fault::CountsMillis => now / 1_000,
            Fault::ClockGoesBack => now - self.version.fetch_add(1, Ordering::Relaxed) % 2 * 5_000,
            _ => now,
        }))
    }
}
