//! The store in this process's memory.

mod decide;
mod overrides;
mod penalise;
mod settle;
mod shard;
mod table;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use std::{fmt, hint};

use self::overrides::{Count, Kept};
use self::shard::Shard;
use super::{Charge, LimitSpec, Override, Refund, Store, StoreFuture, span};
use crate::algorithm::Algorithm;
use crate::decision::Decision;
use crate::error::{ConfigError, Fault, StoreError};
use crate::hash::{KeyHash, KeyHasher};
use crate::quota::checked;
use crate::time::{Clock, SystemClock, micros};

/// Remembers keys in this process: exact, bounded, and without a task in the background.
///
/// A key that is as if it had never been used is soon dropped: each request looks at a quarter of a slot, whoever's it
/// is, or at two where such a look has just found something to drop, and at four more for each key that it adds.
///
/// At [`max_keys`](Self::max_keys), a new key evicts the least valuable of a sample: an expired key if there is one, or
/// else the key that had used the least of its limit at its last request, or that expires first among equals. A sample
/// holds 16 keys, or 24 if the first 16 were all denied; a key that was denied, and that a wait would help, is evicted
/// only if the whole sample was. In a store that is full of denied keys, new keys displace each other, and lift each
/// other's limits. Whatever the store holds, an eviction takes a constant amount of work.
///
/// What a [`Penalty`](crate::Penalty) remembers of a key, strikes and refusals, counts as another key, which is evicted
/// as late as one that was denied.
///
/// Under the limits that remember 16 bytes (see [`algorithm`](crate::algorithm)), a key takes 39 bytes
/// when there are a million. The store itself takes 32 KB (128 KB if it is for more than four million keys). A log
/// takes 78 bytes with its first entry, and 12 for each further one there is room for, which is up to about twice what
/// it has, and never fewer than four; nothing but its limit bounds it.
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
    /// The most keys in a shard.
    most: usize,
    /// Which shard is swept next.
    sweeper: AtomicUsize,
    overrides: Count,
    clock: Box<dyn Clock>,
    hasher: KeyHasher,
}

/// The most overrides that it keeps, unless it is told otherwise.
const OVERRIDES: usize = 100_000;

/// How often somebody asks for a lock before it sleeps: some microseconds in all.
const PAUSES: u32 = 7;

/// A lock on cache lines of its own, so that two cores at work on two shards don't wait for each
/// other. (Processors fetch lines in pairs.)
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// The shards of a request, locked in ascending order, so that no two requests wait for each other.
type Locked<'l, 's> = &'l mut [(usize, MutexGuard<'s, Shard>)];

impl MemoryStore {
    /// A store of at most a million keys, on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::sized(1_000_000)
    }

    /// Bounds the keys that it remembers, from 1: a key counts once for each limit, and once more for its strikes if
    /// the limit has a [`Penalty`](crate::Penalty). The store never holds more. The bound is divided among the parts
    /// of the store, of which some are full a little earlier than others.
    ///
    /// A request never evicts its own keys. If it has more than fit, the last ones are not remembered, so that their
    /// limits are not enforced: allow for many times more keys than a request has.
    ///
    /// # Panics
    ///
    /// When `keys` is 0. [`try_max_keys`](Self::try_max_keys) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn max_keys(self, keys: usize) -> Self {
        checked!(self.bounded(keys))
    }

    /// Like [`max_keys`](Self::max_keys), for a number that is not known to be right.
    ///
    /// # Errors
    ///
    /// When `keys` is 0.
    pub fn try_max_keys(self, keys: usize) -> Result<Self, ConfigError> {
        Ok(self.bounded(keys)?)
    }

    fn bounded(self, keys: usize) -> Result<Self, Fault> {
        if keys == 0 {
            return Err(Fault::NoKeys);
        }
        Ok(Self { clock: self.clock, hasher: self.hasher, overrides: self.overrides, ..Self::sized(keys) })
    }

    /// Bounds the [overrides](crate::Overrides) that it keeps: 100,000, unless this says otherwise. One takes
    /// some 50 bytes, until it is removed or has expired. At the bound another one is refused; none ever makes way.
    #[must_use]
    pub fn max_overrides(self, overrides: usize) -> Self {
        Self { overrides: Count::new(overrides), ..self }
    }

    /// Replaces its clock, which is the [`SystemClock`] at first: by a [`ManualClock`](crate::ManualClock) for tests,
    /// or by one that is cheaper to read (`CycleClock`, with the feature `cycle-clock`).
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Box::new(clock), ..self }
    }

    /// Replaces its hasher, which is [`KeyHasher::fast`] at first.
    ///
    /// ```
    /// use tower_ratelimit::MemoryStore;
    /// use tower_ratelimit::store::KeyHasher;
    ///
    /// let careful = MemoryStore::new().set_hasher(KeyHasher::random());
    /// # let _ = careful;
    /// ```
    #[must_use]
    pub fn set_hasher(self, hasher: KeyHasher) -> Self {
        Self { hasher, ..self }
    }

    /// How many keys it remembers.
    #[must_use]
    pub fn keys(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.lock(shard).keys()).sum()
    }

    /// How many bytes it has allocated for them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let shards = size_of_val(&*self.shards);
        shards + (0..self.shards.len()).map(|shard| self.lock(shard).heap()).sum::<usize>()
    }

    fn sized(keys: usize) -> Self {
        // Large enough to fill evenly, and as few as can be that seldom have to wait for each other, as what all their
        // keys need is then in the processor's caches; of many keys more, so that none takes long to grow.
        let shards = (keys / 2_048).min(256).max(keys / 8_192).clamp(1, 1_024).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| Padded(Mutex::new(Shard::new()))).collect(),
            most: keys / shards,
            sweeper: AtomicUsize::new(0),
            overrides: Count::new(OVERRIDES),
            clock: Box::new(SystemClock::new()),
            hasher: KeyHasher::fast(),
        }
    }

    /// By the key alone, whatever the limit: most requests have one key, and need one lock.
    fn shard_of(&self, key: KeyHash) -> usize {
        // Not the leading bits, which order the shard's table; and of one word, as one that lies across two that
        // were just written would have to wait for both.
        (key.as_u128() as u64 >> 8) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let lock = &self.shards[shard].0;
        try_lock(lock).unwrap_or_else(|| wait_for(lock))
    }

    #[inline]
    fn shard_among<'l>(&self, locked: Locked<'l, '_>, key: KeyHash) -> &'l mut Shard {
        if let [(_, shard)] = locked {
            return shard;
        }
        let shard = self.shard_of(key);
        let place = locked.iter().position(|(index, _)| *index == shard);
        &mut locked[place.expect("the shard of every key is locked")].1
    }

    /// Keeps an override, if there is room once what has expired is gone.
    fn keep(
        &self,
        spec: &LimitSpec,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> Result<(), StoreError> {
        let keep = || {
            let mut shard = self.lock(self.shard_of(key));
            let now = self.clock.now().as_micros();
            let until = expires_after.map(|after| now + span(after));
            shard.overrides.set(spec.print(key), Kept { size: algorithm.size(), until }, &self.overrides)
        };
        if keep() {
            return Ok(());
        }
        let now = self.clock.now().as_micros();
        (0..self.shards.len()).for_each(|shard| self.lock(shard).overrides.drop_expired(now, &self.overrides));
        if keep() { Ok(()) } else { Err(StoreError::full(self.overrides.most)) }
    }

    /// Drops what means nothing any more from the next `slots` of the next shard, unless someone else
    /// is at work there. Whether there was something.
    #[cold]
    fn sweep<'s>(&self, slots: usize, now: u64, locked: impl FnOnce(usize) -> Option<&'s mut Shard>) -> bool {
        let next = self.sweeper.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        if let Some(shard) = locked(next) {
            return shard.sweep(slots, now);
        }
        try_lock(&self.shards[next].0).is_some_and(|mut shard| shard.sweep(slots, now))
    }
}

/// Takes a lock that nobody holds. Who panicked with it in hand, in a clock, had not begun to change anything.
#[inline]
fn try_lock(lock: &Mutex<Shard>) -> Option<MutexGuard<'_, Shard>> {
    match lock.try_lock() {
        Ok(locked) => Some(locked),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits for a lock: nobody holds one for long, so that to be put to sleep, and woken, mostly takes longer than to ask
/// again after some pauses, each twice as long as the one before.
#[cold]
fn wait_for(lock: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    for pauses in (0..PAUSES).map(|doubled| 1 << doubled) {
        (0..pauses).for_each(|_| hint::spin_loop());
        if let Some(locked) = try_lock(lock) {
            return locked;
        }
    }
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("max_keys", &(self.most * self.shards.len()))
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn acquire(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.take(charges)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.look(charges)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let now = self.clock.now().as_micros();
        for &Refund { spec, key, cost, mark } in refunds {
            let print = spec.print(key);
            let charge = Charge { spec, key, cost };
            self.lock(self.shard_of(key)).refund(print, &charge, mark, now);
        }
        StoreFuture::ready(Ok(()))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        for &(spec, key) in keys {
            let print = spec.print(key);
            let mut shard = self.lock(self.shard_of(key));
            shard.forget(print);
            if let Some(penalised) = spec.penalty() {
                shard.forget(print ^ penalised.mask);
            }
        }
        StoreFuture::ready(Ok(()))
    }

    fn set_override(
        &self,
        spec: &Arc<LimitSpec>,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> StoreFuture<()> {
        StoreFuture::ready(self.keep(spec, key, algorithm, expires_after))
    }

    fn get_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<Option<Override>> {
        let mut shard = self.lock(self.shard_of(key));
        let now = self.clock.now().as_micros();
        let kept = shard.overrides.get(spec.print(key), now, &self.overrides);
        let is = kept.and_then(|Kept { size, until }| {
            let expires_after = until.map(|until| micros((until - now).into()));
            Some(Override { algorithm: spec.algorithm().sized(size)?, expires_after })
        });
        StoreFuture::ready(Ok(is))
    }

    fn remove_override(&self, spec: &Arc<LimitSpec>, key: KeyHash) -> StoreFuture<()> {
        self.lock(self.shard_of(key)).overrides.remove(spec.print(key), &self.overrides);
        StoreFuture::ready(Ok(()))
    }
}
