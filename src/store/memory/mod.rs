//! The store in this process's memory.

mod overrides;
mod penalise;
mod shard;
mod table;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use self::overrides::{Count, Kept};
use self::shard::{AllTaken, Shard};
use self::table::Place;
use super::{Answer, Charge, Override, Refund, Store, Terms, span};
use crate::algorithm::{Algorithm, Room};
use crate::decision::{Decision, Several};
use crate::error::{ConfigError, Fault, StoreError};
use crate::hash::{KeyHash, KeyHasher};
use crate::quota::checked;
use crate::terms;
use crate::time::{Clock, SystemClock, Timestamp, micros};

/// Remembers keys in this process: exact, bounded, and without a task in the background.
///
/// A key that is as if it had never been used is soon dropped: each charge looks at a few slots,
/// whoever's they are. At [`max_keys`](Self::max_keys), a key that is new displaces one that has
/// little to lose: of a few, the one that had used the least of its limit at its last request. A key
/// that was denied, and that a wait would help, goes only where all in its part of the store were
/// denied too; beyond that, new keys displace each other, and their limits with them.
///
/// What a [`Penalty`](crate::Penalty) remembers of a key counts as another one, which goes as late as one that
/// was denied while it is refused.
///
/// Under the limits that remember 16 bytes (see [`algorithm`](crate::algorithm)), a key takes 39 bytes
/// when there are a million. The store itself takes 64 KB, more than a few thousand keys do. A log
/// takes 16 bytes for each entry there is room for, which is up to twice what it has, and never fewer
/// than four entries; nothing but its limit bounds it.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, MemoryStore};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = MemoryStore::new().max_keys(100_000);
/// let limiter = Limiter::new([Limit::new("mails", FixedWindow::per_day(20))]).store(store);
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

    /// Bounds the keys that it remembers, from 1: a key counts once for each limit. It is divided among
    /// the parts of the store, of which some are full a little earlier than others.
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

    /// Replaces its clock, for tests.
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
    /// let careful = MemoryStore::new().hash_by(KeyHasher::random());
    /// # let _ = careful;
    /// ```
    #[must_use]
    pub fn hash_by(self, hasher: KeyHasher) -> Self {
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
        // Small enough to grow within microseconds, large enough to fill evenly.
        let shards = (keys / 2_048).clamp(1, 1_024).next_power_of_two();
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

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_among<'l>(&self, locked: Locked<'l, '_>, key: KeyHash) -> &'l mut Shard {
        if let [(_, shard)] = locked {
            return shard;
        }
        let shard = self.shard_of(key);
        let place = locked.iter().position(|(index, _)| *index == shard);
        &mut locked[place.expect("the shard of every key is locked")].1
    }

    fn decide(&self, charges: &[Charge<'_>], take: bool) -> Decision {
        match charges {
            [charge] if charge.terms.is_plain() => self.decide_one(charge, take),
            charges => self.decide_all(charges, take),
        }
    }

    /// Most requests have one limit, and need no more than one lock.
    #[inline]
    fn decide_one(&self, charge: &Charge<'_>, take: bool) -> Decision {
        let print = charge.terms.print(charge.key);
        let index = self.shard_of(charge.key);
        let mut locked = [(index, self.lock(index))];
        // Under the lock, so that no request comes with an instant of long ago.
        let at = self.clock.now();
        let due = locked[0].1.sweep_due();
        if due > 0 {
            self.sweep(&mut locked, due, at.as_micros());
        }
        // Last, so that the decision is written where it stays.
        locked[0].1.settle(print, charge, self.most, at, take)
    }

    #[inline(never)]
    fn decide_all(&self, charges: &[Charge<'_>], asked: bool) -> Decision {
        let shards = || charges.iter().map(|charge| self.shard_of(charge.key));
        let first = shards().next().unwrap_or(0);
        if shards().all(|shard| shard == first) {
            return self.decide_in(&mut [(first, self.lock(first))], charges, asked);
        }
        let mut shards: SmallVec<[usize; 8]> = shards().collect();
        shards.sort_unstable();
        shards.dedup();
        let mut locked: SmallVec<[_; 4]> = shards.into_iter().map(|shard| (shard, self.lock(shard))).collect();
        self.decide_in(&mut locked, charges, asked)
    }

    fn decide_in(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], asked: bool) -> Decision {
        let at = self.clock.now();
        let now = at.as_micros();
        let due = locked.iter_mut().map(|(_, shard)| shard.sweep_due()).sum();
        if due > 0 {
            self.sweep(locked, due, now);
        }
        if asked && let Some(outcomes) = self.take_all(locked, charges, now) {
            return Decision::of_several(at, outcomes);
        }
        let overridden = self.overridden(charges, locked, now);
        if overridden.is_empty() {
            return self.decide_sized(locked, charges, at, asked);
        }
        let size = |charge: &Charge<'_>| terms::of(charge.terms.index().into(), &overridden);
        let sized = charges.iter().map(|&charge| Charge { terms: size(&charge).unwrap_or(charge.terms), ..charge });
        let sized: SmallVec<[Charge<'_>; 4]> = sized.collect();
        self.decide_sized(locked, &sized, at, asked).overridden(&overridden)
    }

    /// Takes all charges, each at the price of one look-up, if all have room and are of keys that are known: as most
    /// are. If one is not, all is as it was.
    fn take_all(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], now: u64) -> Option<Several> {
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        for charge in charges {
            places.push(self.shard_among(locked, charge.key).likely(charge)?);
        }
        let mut outcomes = Several::spare();
        let mut taken = AllTaken::new();
        for (charge, place) in charges.iter().zip(places) {
            let shard = self.shard_among(locked, charge.key);
            if !shard.take_known(place, charge, now, &mut outcomes, &mut taken) {
                // The last first: of two charges of one key, the second has found what the first left.
                for (charge, taken) in charges.iter().zip(taken).rev() {
                    self.shard_among(locked, charge.key).put_back(taken);
                }
                return None;
            }
        }
        Some(outcomes)
    }

    /// The terms of all limits that have another size for their keys.
    fn overridden(&self, charges: &[Charge<'_>], locked: Locked<'_, '_>, now: u64) -> SmallVec<[Arc<Terms>; 1]> {
        let mut overridden = SmallVec::new();
        for charge in charges.iter().filter(|charge| charge.terms.is_overridable()) {
            let print = charge.terms.print(charge.key);
            let kept = self.shard_among(locked, charge.key).overrides.get(print, now, &self.overrides);
            overridden.extend(kept.and_then(|kept| charge.terms.overridden(kept.size)).map(Arc::new));
        }
        overridden
    }

    fn decide_sized(&self, locked: Locked<'_, '_>, charges: &[Charge<'_>], at: Timestamp, asked: bool) -> Decision {
        let now = at.as_micros();
        let mut found: SmallVec<[(u128, Place, Room); 4]> = SmallVec::new();
        let (mut take, mut is_new, mut is_penal) = (asked, false, false);
        for charge in charges {
            let print = charge.terms.print(charge.key);
            let shard = self.shard_among(locked, charge.key);
            let (place, mut room) = shard.peek(print, charge, now);
            if let Some(by) = charge.terms.penalty() {
                room = penalise::room(shard, charge, by, room, now);
                is_penal = true;
            }
            found.push((print, place, room));
            take &= room.is_now() || !charge.terms.is_enforced();
            is_new |= matches!(place, Place::Before(_));
        }
        let is_new = take && is_new;
        if is_new {
            self.make_room(charges, locked, now);
        }
        // A new key moves those that were found, and so does a strike.
        let moves = is_new || is_penal;
        let mut decision = Decision::new(at, asked, charges.len());
        for (charge, &(print, place, room)) in charges.iter().zip(&found) {
            let shard = self.shard_among(locked, charge.key);
            let place = if moves { shard.find(print, charge) } else { place };
            let outcome = if take && room.is_now() && charge.cost > 0 {
                shard.take(print, place, charge, now)
            } else {
                shard.report(place, charge, room, now, asked)
            };
            decision.push(match charge.terms.penalty() {
                None => outcome,
                Some(by) => penalise::outcome(shard, charge, by, outcome, asked, self.most, now),
            });
        }
        decision
    }

    /// Keeps an override, if there is room once what has expired is gone.
    fn keep(
        &self,
        terms: &Terms,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> Result<(), StoreError> {
        let keep = || {
            let mut shard = self.lock(self.shard_of(key));
            let now = self.clock.now().as_micros();
            let until = expires_after.map(|after| now + span(after));
            shard.overrides.set(terms.print(key), Kept { size: algorithm.size(), until }, &self.overrides)
        };
        if keep() {
            return Ok(());
        }
        let now = self.clock.now().as_micros();
        (0..self.shards.len()).for_each(|shard| self.lock(shard).overrides.drop_expired(now, &self.overrides));
        if keep() { Ok(()) } else { Err(StoreError::full(self.overrides.most)) }
    }

    /// Has other keys make way for all that are new to a request, before one of its own can be taken
    /// for one to go.
    #[cold]
    fn make_room(&self, charges: &[Charge<'_>], locked: Locked<'_, '_>, now: u64) {
        for (index, charge) in charges.iter().enumerate() {
            if !leaves_something(charge) || self.shard_among(locked, charge.key).keys() + index < self.most {
                continue;
            }
            let mut before = 0;
            for earlier in &charges[..index] {
                let shares = leaves_something(earlier) && self.shard_of(earlier.key) == self.shard_of(charge.key);
                before += usize::from(shares && !self.shard_among(locked, earlier.key).holds(earlier));
            }
            self.shard_among(locked, charge.key).make_room(charge, before, self.most, now);
        }
    }

    /// Drops what means nothing any more from the next `slots` of the next shard, unless someone else
    /// is at work there.
    #[cold]
    fn sweep(&self, locked: Locked<'_, '_>, slots: usize, now: u64) {
        let next = self.sweeper.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        if let Some((_, shard)) = locked.iter_mut().find(|(index, _)| *index == next) {
            shard.sweep(slots, now);
        } else if let Ok(mut shard) = self.shards[next].0.try_lock() {
            shard.sweep(slots, now);
        }
    }
}

/// Whether a charge of a new key is taken, and kept: one that is not enforced may never have room.
fn leaves_something(charge: &Charge<'_>) -> bool {
    (1..=charge.terms.capacity()).contains(&charge.cost)
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

    fn acquire(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        Answer::ready(Ok(self.decide(charges, true)))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        Answer::ready(Ok(self.decide(charges, false)))
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> Answer<()> {
        let now = self.clock.now().as_micros();
        for &Refund { terms, key, cost, mark } in refunds {
            let print = terms.print(key);
            let charge = Charge { terms, key, cost };
            self.lock(self.shard_of(key)).refund(print, &charge, mark, now);
        }
        Answer::ready(Ok(()))
    }

    fn reset(&self, keys: &[(&Arc<Terms>, KeyHash)]) -> Answer<()> {
        for &(terms, key) in keys {
            let print = terms.print(key);
            let mut shard = self.lock(self.shard_of(key));
            shard.forget(print);
            if let Some(penalised) = terms.penalty() {
                shard.forget(print ^ penalised.mask);
            }
        }
        Answer::ready(Ok(()))
    }

    fn set_override(
        &self,
        terms: &Arc<Terms>,
        key: KeyHash,
        algorithm: &Algorithm,
        expires_after: Option<Duration>,
    ) -> Answer<()> {
        Answer::ready(self.keep(terms, key, algorithm, expires_after))
    }

    fn get_override(&self, terms: &Arc<Terms>, key: KeyHash) -> Answer<Option<Override>> {
        let mut shard = self.lock(self.shard_of(key));
        let now = self.clock.now().as_micros();
        let kept = shard.overrides.get(terms.print(key), now, &self.overrides);
        let is = kept.and_then(|Kept { size, until }| {
            let expires_after = until.map(|until| micros((until - now).into()));
            Some(Override { algorithm: terms.algorithm().sized(size)?, expires_after })
        });
        Answer::ready(Ok(is))
    }

    fn remove_override(&self, terms: &Arc<Terms>, key: KeyHash) -> Answer<()> {
        self.lock(self.shard_of(key)).overrides.remove(terms.print(key), &self.overrides);
        Answer::ready(Ok(()))
    }
}
