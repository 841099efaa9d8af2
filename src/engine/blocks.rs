//! The blocks of tokens that a process has leased, and the demand for its keys.
//!
//! The table is bounded. A key that finds no room in it is decided by the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;
use tokio::sync::Semaphore;

use super::leased_key::{Block, CallInProgress, Known, LeasedKey};
use crate::decision::{Charges, Outcome};
use crate::time::{Clock, SystemClock, Timestamp};

/// The number of sets of keys.
const SETS: usize = 4_096;

/// The keys of a set. A flood of new keys evicts those that have no block.
const KEYS: usize = 4;

/// The leased blocks of an engine's limits.
pub(super) struct Blocks {
    /// On Linux, it goes on while the machine is suspended, as the store's clock does.
    clock: SystemClock,
    /// Allocated by the first request.
    sets: OnceLock<Box<[Set]>>,
}

#[derive(Default)]
struct Set {
    /// The number of blocks that have tokens, so that a request that finds none takes no lock.
    blocks: AtomicUsize,
    keys: Mutex<Vec<LeasedKey>>,
}

/// How a request is decided that no block has decided.
pub(super) enum Ask {
    /// By the store, without a lease.
    Store,
    /// By the store, with a lease.
    Lease(BlockCall),
    /// When the call for a block has ended: until then, the semaphore is open.
    Wait(Arc<Semaphore>),
    /// As the last call has left the key, which has no room.
    Denied(Timestamp),
}

/// A call for blocks, until it is dropped.
pub(super) struct BlockCall {
    blocks: Arc<Blocks>,
    /// The fingerprints of the keys.
    keys: SmallVec<[u128; 2]>,
    done: Arc<Semaphore>,
    /// The instant before it is sent.
    sent: u64,
}

impl Blocks {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::new(), sets: OnceLock::new() })
    }

    /// Returns the present instant on the clock of this process, in µs.
    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Decides a request by blocks, if these have enough tokens for all of its charges. Returns the instant of the decision.
    /// If only some have, their charges are answered, and the caller puts them back.
    pub(super) fn decide(&self, charges: &mut [Outcome]) -> Option<Timestamp> {
        let (sets, mut now, mut at) = (self.sets.get()?, None, 0);
        if !charges.iter().all(Outcome::is_leasable) {
            return None;
        }
        for outcome in charges {
            at = at.max(self.spend(sets, outcome, &mut now)?);
        }
        Some(Timestamp::from_micros(at))
    }

    /// Spends the cost of a charge, and answers it. Returns the instant of the decision. Reads the clock once.
    #[inline]
    fn spend(&self, sets: &[Set], outcome: &mut Outcome, now: &mut Option<u64>) -> Option<u64> {
        let fingerprint = outcome.fingerprint();
        let set = &sets[set_of(fingerprint)];
        if set.blocks.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = *now.get_or_insert_with(|| self.now());
        let mut keys = set.lock();
        let key = keys.iter_mut().find(|key| key.fingerprint == fingerprint)?;
        let block = key.blocks.iter_mut().find(|block| block.has(outcome, now))?;
        block.left -= outcome.cost();
        if block.left == 0 {
            set.blocks.fetch_sub(1, Ordering::Relaxed);
        }
        key.demand.add(now, outcome.algorithm.term, outcome.cost());
        let at = block.known.at_store(now);
        outcome.answer_by_block(block.known.mark, at, block.left);
        Some(at)
    }

    /// Counts the tokens of a request that the store has allowed.
    pub(super) fn count(&self, outcomes: &[Outcome]) {
        let (sets, now) = (self.sets(), self.now());
        for outcome in outcomes.iter().filter(|outcome| outcome.is_leasable()) {
            let set = &sets[set_of(outcome.fingerprint())];
            if let Some(key) = set.find_or_add(&mut set.lock(), outcome.fingerprint(), now) {
                key.demand.add(now, outcome.algorithm.term, outcome.cost());
            }
        }
    }

    /// Returns how to decide a request that no block has decided. For a lease, sets the blocks that its charges want.
    pub(super) fn ask(self: &Arc<Self>, charges: &mut Charges) -> Ask {
        // A block would not be used while another limit needs a call.
        if !charges.iter().all(Outcome::is_leasable) {
            return Ask::Store;
        }
        let (now, is_one) = (self.now(), charges.len() == 1);
        let mut wanting = SmallVec::<[(usize, u64); 2]>::new();
        for (position, outcome) in charges.iter_mut().enumerate() {
            let set = &self.sets()[set_of(outcome.fingerprint())];
            let mut keys = set.lock();
            let Some(key) = keys.iter_mut().find(|key| key.fingerprint == outcome.fingerprint()) else { continue };
            if is_one
                && let Some(known) = key.known.filter(|known| known.is_recent(now) && known.size == outcome.own_size)
            {
                let at = known.at_store(now);
                if outcome.is_denied_by(known.mark, known.at, at - known.at) {
                    return Ask::Denied(Timestamp::from_micros(at));
                }
            }
            let term = outcome.algorithm.term;
            // A runtime that stands still does not end its calls.
            if let Some(call) = key.call.as_mut().filter(|call| now.saturating_sub(call.sent) < term.into()) {
                // A request that the block has no tokens for would have to call after the wait. If there are none, it takes
                // the denial of the call.
                if call.spare < outcome.cost() && !key.is_exhausted {
                    return Ask::Store;
                }
                call.spare = call.spare.saturating_sub(outcome.cost());
                return Ask::Wait(call.done.clone());
            }
            let wanted = key.demand.of_last_term(now, term);
            if wanted > 0 && !key.blocks.iter().any(|block| block.has(outcome, now)) && key.has_room(now, &set.blocks) {
                wanting.push((position, wanted));
            }
        }
        if wanting.is_empty() {
            return Ask::Store;
        }
        let (mut keys, done) = (SmallVec::new(), Arc::new(Semaphore::new(0)));
        for (position, wanted) in wanting {
            let outcome = &mut charges[position];
            outcome.want_block(wanted);
            keys.push(outcome.fingerprint());
            self.with_key(outcome, |key, _| {
                let spare = if key.has_no_block { 0 } else { wanted };
                key.call = Some(CallInProgress { done: done.clone(), spare, sent: now });
            });
        }
        Ask::Lease(BlockCall { blocks: self.clone(), keys, done, sent: now })
    }

    /// Puts tokens back into the block that they were taken from. Returns whether it is still there.
    pub(super) fn put_back(&self, outcome: &Outcome) -> bool {
        let now = self.now();
        let is_there = self.with_key(outcome, |key, set| {
            let mut blocks = key.blocks.iter_mut();
            let block = blocks.find(|block| block.known.mark == outcome.mark && block.ends_at > now)?;
            set.blocks.fetch_add(usize::from(block.left == 0), Ordering::Relaxed);
            block.left += outcome.cost();
            key.demand.present = key.demand.present.saturating_sub(outcome.cost());
            Some(())
        });
        is_there.flatten().is_some()
    }

    /// Ends the lease of a block. Returns the tokens that were not spent.
    pub(super) fn end(&self, outcome: &Outcome) -> u64 {
        self.with_key(outcome, |key, set| key.remove(&set.blocks, |block| block.known.mark == outcome.mark))
            .unwrap_or(0)
    }

    /// Forgets how calls have left keys, which a refund changes.
    pub(super) fn forget(&self, charges: &[Outcome]) {
        for outcome in charges {
            self.with_key(outcome, |key, _| key.known = None);
        }
    }

    /// Drops the blocks of keys, and those that calls in progress bring.
    pub(super) fn reset(&self, charges: &[Outcome]) {
        for outcome in charges {
            self.with_key(outcome, |key, set| {
                key.remove(&set.blocks, |_| true);
                (key.known, key.call) = (None, None);
            });
        }
    }

    fn sets(&self) -> &[Set] {
        self.sets.get_or_init(|| (0..SETS).map(|_| Set::default()).collect())
    }

    /// Calls `change` with the key of a charge and its set, if the key has demand.
    fn with_key<T>(&self, outcome: &Outcome, change: impl FnOnce(&mut LeasedKey, &Set) -> T) -> Option<T> {
        let set = &self.sets.get()?[set_of(outcome.fingerprint())];
        let mut keys = set.lock();
        Some(change(keys.iter_mut().find(|key| key.fingerprint == outcome.fingerprint())?, set))
    }
}

fn set_of(fingerprint: u128) -> usize {
    (fingerprint >> 40) as usize % SETS
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, Vec<LeasedKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a key, or adds it in place of the one whose term began first. Returns `None` if all others have blocks.
    fn find_or_add<'k>(&self, keys: &'k mut Vec<LeasedKey>, fingerprint: u128, now: u64) -> Option<&'k mut LeasedKey> {
        let found = keys.iter().position(|key| key.fingerprint == fingerprint);
        let place = match found {
            Some(place) => place,
            None if keys.len() < KEYS => {
                keys.push(LeasedKey::new(fingerprint));
                keys.len() - 1
            }
            None => {
                keys.iter_mut().for_each(|key| key.drop_ended(now, &self.blocks));
                let idle = keys.iter().enumerate().filter(|(_, key)| key.blocks.is_empty() && key.call.is_none());
                let (place, _) = idle.min_by_key(|(_, key)| key.demand.since)?;
                keys[place] = LeasedKey::new(fingerprint);
                place
            }
        };
        Some(&mut keys[place])
    }
}

impl BlockCall {
    /// Keeps how the call has left a key, and the tokens of the block. Returns the instant at which the lease ends, in µs,
    /// or `None` if that is over. A block of the time before a reset is dropped.
    pub(super) fn keep(&self, outcome: &Outcome, tokens: u64) -> Option<u64> {
        let now = self.blocks.now();
        let known = Known { size: outcome.own_size, mark: outcome.mark, at: outcome.now, received: now };
        let span = outcome.algorithm.lease_of(&outcome.mark, known.at);
        // The clocks of two computers run at different rates, and instants are rounded.
        let ends_at = (self.sent + span).saturating_sub(span / 1_000 + 2);
        let kept = self.blocks.with_key(outcome, |key, set| {
            if !key.call.as_ref().is_some_and(|call| Arc::ptr_eq(&call.done, &self.done)) {
                return Some(now);
            }
            // The marks of other stores tell nothing of a key.
            key.known = (!outcome.has_given_report()).then_some(known);
            key.is_exhausted = outcome.remaining() == 0;
            key.has_no_block = tokens == 0 && !key.is_exhausted;
            if tokens == 0 || ends_at <= now {
                return None;
            }
            set.blocks.fetch_add(1, Ordering::Relaxed);
            key.blocks.push(Block { left: tokens, known, ends_at });
            Some(ends_at)
        });
        kept.flatten()
    }
}

/// Ends the call: those who wait for it go on.
impl Drop for BlockCall {
    fn drop(&mut self) {
        let Some(sets) = self.blocks.sets.get() else { return };
        for fingerprint in &self.keys {
            let mut keys = sets[set_of(*fingerprint)].lock();
            let own = |key: &&mut LeasedKey| key.call.as_ref().is_some_and(|call| Arc::ptr_eq(&call.done, &self.done));
            keys.iter_mut().filter(own).for_each(|key| key.call = None);
        }
        self.done.close();
    }
}
