//! The store in this process's memory.

mod decide;
mod overflow;
mod shard;
mod sketch;
mod sketches;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use self::shard::Shard;
pub use self::sketch::Sketch;
use self::table::EvictionRank;
use super::{
    Answer, Override, OverrideOperation, Preparation, Purpose, Store, StoreFuture, StoreUsage, StoredOverride,
    random_identity,
};
use crate::algorithm::Penalty;
use crate::decision::{Charge, Charges, Outcome};
use crate::error::{ConfigError, StoreError};
use crate::key::hash::{KeyHash, KeyHasher};
use crate::time::{Clock, SystemClock, Timestamp};

/// Keeps the state of keys in this process: exact, bounded, and without a background task.
///
/// The state of an unused key is soon dropped: each request pays for the inspection of a quarter of a slot of the
/// table, or of two slots while inspections find expired keys, and of four more for each key that it adds, and each
/// request that it counts in a sketch.
///
/// At [`max_keys`](Self::max_keys), a new key evicts the least valuable of a sample: an expired key if there is one, or
/// else the key that had used the least of its limit at its last request, or that expires first among equals. A sample
/// holds 16 keys, or 24 if the first 16 were all denied. A key that was denied, and whose wait is finite, is evicted
/// only if all keys of the sample are of this kind. So in a store that is full of denied keys, new keys evict each
/// other and start anew. An eviction takes a constant amount of work. With an [`overflow`](Self::overflow), the store
/// evicts no key.
///
/// The strikes and lockouts of a key under a [`Penalty`] count as another key, which is evicted as late as one that was
/// denied.
///
/// Under limits with a state of 24 bytes (see [`algorithm`](crate::algorithm)), a key takes 49 bytes when there are a
/// million. The store itself takes 32 KB by default, and at most 128 KB. A log takes 97 bytes. Several entries are in a
/// buffer of 12 bytes for each: for two at first, and twice as many whenever it is full. Only the limit bounds the
/// length of a log.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, MemoryStore};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = MemoryStore::new().max_keys(100_000);
/// let limiter = Limiter::builder([Limit::new("mails", FixedWindow::per_day(20))]).store(store).build();
/// assert!(limiter.acquire("ann@example.org", 1).await.unwrap().is_allowed());
/// # });
/// ```
pub struct MemoryStore {
    shards: Box<[Padded]>,
    /// The maximum number of keys in a shard.
    max_keys: usize,
    /// The sketch of each limit for the keys beyond `max_keys`, if none are evicted.
    overflow: Option<Sketch>,
    /// The limits that have sketches, by their identities, as long as limiters have them.
    sketched: Mutex<HashMap<KeyHash, Weak<()>>>,
    /// The shard to be swept next.
    sweeper: AtomicUsize,
    /// By the fingerprint of the key. Only decisions of limits that have overrides read them.
    overrides: RwLock<HashMap<u128, StoredOverride>>,
    max_overrides: usize,
    clock: Box<dyn Clock>,
    hasher: KeyHasher,
    identity: u32,
}

/// The default of [`MemoryStore::max_overrides`].
const MAX_OVERRIDES: usize = 100_000;

/// The time for which a state is kept after its expiry, in µs: a clock that steps back by less finds it again.
const KEPT_LONGER: u64 = 1_000_000;

/// A lock on cache lines of its own, so that two cores that work on two shards do not wait for each other. (Processors
/// fetch lines in pairs.)
#[repr(align(128))]
struct Padded(Mutex<Shard>);

impl MemoryStore {
    /// Creates a store of at most a million keys, on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::sized(1_000_000)
    }

    /// Creates a store that counts all keys in a sketch. [Fixed memory](crate::guide::performance#fixed-memory)
    /// describes what it can count.
    #[must_use]
    pub fn sketch(sketch: Sketch) -> Self {
        Self { max_keys: 0, overflow: Some(sketch), ..Self::sized(sketch.keys as usize) }
    }

    /// Sets the most keys that the store holds, from 1. A key counts once for each limit, and once more for its strikes
    /// if the limit has a [`Penalty`]. The bound is divided among the shards of the store, of which some are full a
    /// little earlier than others.
    ///
    /// A request never evicts its own keys. If it has more than fit, the last ones are not stored, so that their
    /// limits are not enforced: allow for many times more keys than a request has.
    ///
    /// # Panics
    ///
    /// Panics if `keys` is 0.
    #[must_use]
    #[track_caller]
    pub fn max_keys(self, keys: usize) -> Self {
        assert!(keys > 0, "max_keys is 0: remember at least 1 key");
        let Self { shards, max_keys, .. } = Self::sized(keys);
        Self { shards, max_keys, ..self }
    }

    /// Counts new keys in a sketch while the store holds [`max_keys`](Self::max_keys), instead of evicting others.
    /// Defaults to evictions. [Fixed memory](crate::guide::performance#fixed-memory) describes what a sketch can count.
    #[must_use]
    #[doc(alias = "fixed memory")]
    pub fn overflow(self, sketch: Sketch) -> Self {
        Self { overflow: Some(sketch), ..self }
    }

    /// Sets the most [overrides](crate::LimitHandle#overrides) that the store holds. Defaults to 100,000. One takes
    /// some 50 bytes, until it is removed, or has expired and another one needs its place. Beyond the bound, setting
    /// another one is an error; none is evicted.
    #[must_use]
    pub fn max_overrides(self, overrides: usize) -> Self {
        Self { max_overrides: overrides, ..self }
    }

    /// Sets the clock: a [`ManualClock`](crate::ManualClock) for tests, or one that is cheaper to read (`CycleClock`,
    /// with the feature `cycle-clock`). Defaults to the [`SystemClock`].
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Box::new(clock), ..self }
    }

    /// Sets the hasher of keys. Defaults to [`KeyHasher::fast`].
    ///
    /// ```
    /// use tower_ratelimit::MemoryStore;
    /// use tower_ratelimit::store::KeyHasher;
    ///
    /// let careful = MemoryStore::new().with_hasher(KeyHasher::random());
    /// # let _ = careful;
    /// ```
    #[must_use]
    pub fn with_hasher(self, hasher: KeyHasher) -> Self {
        Self { hasher, ..self }
    }

    /// Returns the number of keys that the store holds.
    #[must_use]
    pub fn keys(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).table.len()).sum()
    }

    /// Returns the memory that the store has allocated, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let heap = |shard: MutexGuard<'_, Shard>| shard.table.heap() + shard.sketches.bytes();
        let shards: usize = (0..self.shards.len()).map(|shard| heap(self.lock(shard))).sum();
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner).capacity();
        // The standard library's table has a byte of metadata for each entry.
        size_of_val(&*self.shards) + shards + overrides * (size_of::<(u128, StoredOverride)>() + 1)
    }

    fn sized(keys: usize) -> Self {
        // Shards are large enough to fill evenly. There are only so many that requests rarely wait for each other,
        // because more would occupy the processor's caches. Large stores have more, so that growing one is quick.
        let shards = (keys / 2_048).min(256).max(keys / 8_192).clamp(1, 1_024).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new()))).collect(),
            max_keys: keys / shards,
            overflow: None,
            sketched: Mutex::default(),
            sweeper: AtomicUsize::new(0),
            overrides: RwLock::default(),
            max_overrides: MAX_OVERRIDES,
            clock: Box::new(SystemClock::new()),
            hasher: KeyHasher::fast(),
            identity: random_identity(),
        }
    }

    /// Returns the shard of a key. It is the same under all limits: most requests have one key, and need one lock.
    fn shard_of(&self, key: KeyHash) -> usize {
        // Not by the leading bits, which order the table of a shard.
        (key.as_u128() as u64 >> 8) as usize & (self.shards.len() - 1)
    }

    /// Locks a shard. A panic while it was locked, in a clock, has not changed it: the clock is read before any state.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes expired entries from some slots of the next shard, unless another request has locked it, and adapts how
    /// much the `locked` shards sweep.
    #[cold]
    fn sweep(&self, slots: usize, locked: &mut [(usize, MutexGuard<'_, Shard>)]) {
        let now = self.expiry_limit();
        let next = self.sweeper.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        let has_removed = match locked.iter_mut().find(|(index, _)| *index == next) {
            Some((_, shard)) => shard.table.sweep(slots, now),
            None => self.shards[next].0.try_lock().is_ok_and(|mut shard| shard.table.sweep(slots, now)),
        };
        locked.iter_mut().for_each(|(_, shard)| shard.set_pace(has_removed));
    }

    /// Returns the override of a charge, if it has one that is valid at `now` (in µs).
    fn override_of(&self, charge: &Charge, now: u64) -> Option<StoredOverride> {
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        overrides.get(&charge.fingerprint()).copied().filter(|kept| kept.is_valid_at(now))
    }

    /// Returns the instant (in µs) up to which states that have expired can be dropped, whatever their clock.
    fn expiry_limit(&self) -> u64 {
        self.clock.now().min(self.clock.wall_time()).as_micros().saturating_sub(KEPT_LONGER)
    }

    /// Refunds a charge, as far as it still counts. Returns whether the key is not in a sketch.
    fn refund_one(&self, outcome: &Outcome) -> bool {
        let now = self.now_of(outcome).as_micros();
        let (shard, algorithm) = (&mut self.lock(self.shard_of(outcome.key())), outcome.algorithm());
        let Ok(slot) = shard.table.find(outcome.fingerprint()) else {
            return !shard.sketches.has_count(outcome, now);
        };
        let table = &mut shard.table;
        let entry = &mut table.slots[slot];
        let mut state = entry.take_state();
        state.refund(algorithm, outcome.mark, now, outcome.cost());
        if state.expires_at() == 0 {
            table.remove(slot);
        } else {
            entry.set_rank(EvictionRank::new(state.used(algorithm, now), algorithm.hard_capacity()));
            entry.set_state(state);
        }
        true
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("max_keys", &(self.max_keys * self.shards.len()))
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        StoreFuture::ready(Ok(Answer::new(self.decide_now(charges, purpose))))
    }

    #[inline]
    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        Some(self.decide_now(charges, purpose))
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        let refunded = charges.iter().filter(|outcome| self.refund_one(outcome)).count();
        StoreFuture::ready(if refunded == charges.len() { Ok(()) } else { Err(StoreError::counted_in_sketch()) })
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        let mut is_in_sketch = false;
        for ((position, _), fingerprint) in charges.states().zip(charges.fingerprints()) {
            let charge = &charges[position];
            let mut shard = self.lock(self.shard_of(charge.key()));
            if let Ok(slot) = shard.table.find(fingerprint) {
                shard.table.remove(slot);
            }
            is_in_sketch |= shard.sketches.has_count(charge, self.now_of(charge).as_micros());
        }
        StoreFuture::ready(if is_in_sketch { Err(StoreError::counted_in_sketch()) } else { Ok(()) })
    }

    fn renew(&self, _: &Charges) -> Option<StoreFuture<Answer>> {
        None
    }

    fn prepare(
        &self,
        limit: &Charge,
        penalty: Option<&Penalty>,
        depends_on_refunds: bool,
    ) -> Result<Option<Preparation>, ConfigError> {
        let prepare = |sketch| self.prepare_sketch(&sketch, limit, penalty, depends_on_refunds);
        self.overflow.map(prepare).transpose()
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn identity(&self) -> u32 {
        self.identity
    }

    fn name(&self) -> Option<String> {
        Some("memory".to_owned())
    }

    fn usage(&self) -> StoreUsage {
        StoreUsage { keys: Some(self.keys() as u64), bytes: Some(self.bytes() as u64), queued: None }
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (charge, now, max) = (&charges[0], self.clock.now().as_micros(), self.max_overrides);
        if operation == OverrideOperation::Get {
            return StoreFuture::ready(Ok(self.override_of(charge, now).and_then(|kept| kept.of(charge, now))));
        }
        let mut overrides = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
        overrides.remove(&charge.fingerprint());
        if let OverrideOperation::Set(size) = operation {
            if overrides.len() >= max {
                overrides.retain(|_, kept| kept.is_valid_at(now));
            }
            if overrides.len() >= max {
                return StoreFuture::ready(Err(StoreError::full(max)));
            }
            overrides.insert(charge.fingerprint(), StoredOverride::new(size, now));
        } else if overrides.is_empty() {
            overrides.shrink_to_fit();
        }
        StoreFuture::ready(Ok(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;

    #[test]
    fn a_refund_that_empties_an_entry_keeps_the_others_findable() {
        // Few enough keys for one shard, whose entries move when one is removed.
        let store = MemoryStore::new().max_keys(1_000);
        let charge = Charge::new(0, "limit", TokenBucket::per_hour(10).into(), &store.hasher());
        let decide = |key: u32| {
            let mut charges = Charges::of([charge.with_key(store.hasher().hash(&key.to_le_bytes()), 1)]);
            store.decide_now(&mut charges, Purpose::Take);
            charges
        };
        let charged: Vec<_> = (0..500).map(decide).collect();
        for charges in charged.iter().step_by(2) {
            store.refund(charges).into_ready().unwrap().unwrap();
        }
        assert!(store.keys() <= 250);
        for key in 0..500 {
            let expected = if key % 2 == 0 { 9 } else { 8 };
            assert_eq!(decide(key)[0].remaining(), expected, "of key {key}");
        }
    }
}
