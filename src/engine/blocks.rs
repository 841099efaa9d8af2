//! The blocks of tokens that a process has leased, and the demand for its keys.
//!
//! The table is bounded. A key that finds no room in it is decided by the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;
use tokio::sync::Semaphore;

use crate::algorithm::{CompactState, Size};
use crate::decision::{Charges, Outcome};
use crate::time::{Clock, SystemClock, Timestamp};

/// The number of sets of keys.
const SETS: usize = 4_096;

/// The keys of a set. A flood of new keys evicts those that have no block.
const KEYS: usize = 4;

/// The most blocks of a key, with those that are spent, to which tokens may be returned until their leases end.
const BLOCKS: usize = 16;

/// The longest time for which requests are denied because a call has left no tokens, in µs.
const LONGEST_DENIAL: u64 = 1_000_000;

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
    keys: Mutex<Vec<Key>>,
}

/// A key with demand.
struct Key {
    fingerprint: u128,
    demand: Demand,
    blocks: SmallVec<[Block; 1]>,
    call: Option<CallInProgress>,
    /// What the last call has left of the key.
    known: Option<Known>,
    /// Whether that took less than it wanted.
    is_tight: bool,
}

/// A call for the next block.
struct CallInProgress {
    done: Arc<Semaphore>,
    /// The tokens that it wants, less those that requests wait for.
    spare: u64,
}

/// Tokens that were charged by one call. All instants are in µs.
struct Block {
    /// Tells it apart from other blocks of the process.
    number: u64,
    left: u64,
    known: Known,
    /// The instant on the clock of this process at which the lease ends.
    ends_at: u64,
}

/// The state of a key after a call.
#[derive(Clone, Copy)]
struct Known {
    size: Size,
    mark: CompactState,
    /// The instant of the decision, on the clock of the store.
    at: u64,
    /// The instant of the answer, on that of this process.
    received: u64,
}

/// The tokens that were asked for in the present term and in the one before.
#[derive(Default)]
struct Demand {
    since: u64,
    present: u64,
    before: u64,
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
    /// The fingerprints, and the tokens that are wanted.
    keys: SmallVec<[(u128, u64); 2]>,
    done: Arc<Semaphore>,
    /// The instant before it is sent.
    sent: u64,
}

/// A block, and when its lease ends.
pub(super) struct Lease {
    pub(super) number: u64,
    pub(super) ends_at: u64,
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
    /// If only some have, their charges are answered, and are to be put back.
    pub(super) fn decide(&self, charges: &mut [Outcome]) -> Option<Timestamp> {
        let (sets, mut now, mut at) = (self.sets.get()?, None, 0);
        for outcome in charges {
            at = at.max(self.spend(sets, outcome, &mut now)?);
        }
        Some(Timestamp::from_micros(at))
    }

    /// Spends the cost of a charge, and answers it. Returns the instant of the decision. Reads the clock once.
    #[inline]
    fn spend(&self, sets: &[Set], outcome: &mut Outcome, now: &mut Option<u64>) -> Option<u64> {
        if !outcome.is_leasable() {
            return None;
        }
        let (fingerprint, cost) = (outcome.fingerprint(), outcome.cost());
        let set = &sets[set_of(fingerprint)];
        if set.blocks.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = *now.get_or_insert_with(|| self.now());
        let mut keys = set.lock();
        let key = keys.iter_mut().find(|key| key.fingerprint == fingerprint)?;
        let size = outcome.own_size;
        let mut blocks = key.blocks.iter_mut().rev();
        let block = blocks.find(|block| block.left >= cost && block.ends_at > now && block.known.size == size)?;
        block.left -= cost;
        if block.left == 0 {
            set.blocks.fetch_sub(1, Ordering::Relaxed);
        }
        key.demand.add(now, outcome.algorithm.term, cost);
        let at = block.known.at_store(now);
        outcome.answer_by_block(block.known.mark, at, block.left);
        Some(at)
    }

    /// Returns how to decide a request that no block has decided, and sets the blocks that its charges want.
    pub(super) fn ask(self: &Arc<Self>, charges: &mut Charges) -> Ask {
        // A block would not be used while another limit needs a call.
        if !charges.iter().all(Outcome::is_leasable) {
            return Ask::Store;
        }
        let sets = self.sets.get_or_init(|| (0..SETS).map(|_| Set::default()).collect());
        let now = self.now();
        let mut wanting = SmallVec::<[(u128, u64); 2]>::new();
        let is_one = charges.len() == 1;
        for outcome in charges.iter_mut() {
            let set = &sets[set_of(outcome.fingerprint())];
            let mut keys = set.lock();
            let Some(key) = set.find_or_add(&mut keys, outcome.fingerprint(), now) else { continue };
            let (term, size) = (outcome.algorithm.term, outcome.own_size);
            let wanted = key.demand.of_last_term(now, term);
            key.demand.add(now, term, outcome.cost());
            if is_one && let Some(known) = key.known.filter(|known| known.is_recent(now) && known.size == size) {
                let at = known.at_store(now);
                if outcome.is_denied_by(known.mark, known.at, at - known.at) {
                    return Ask::Denied(Timestamp::from_micros(at));
                }
            }
            if let Some(call) = &mut key.call {
                // A request that the block has no tokens for would have to call after the wait. If tokens are scarce, it takes
                // the denial of the call.
                if call.spare < outcome.cost() && !key.is_tight {
                    charges.want_no_blocks();
                    return Ask::Store;
                }
                call.spare = call.spare.saturating_sub(outcome.cost());
                return Ask::Wait(call.done.clone());
            }
            let has_enough = key.blocks.iter().any(|block| block.ends_at > now && block.left >= outcome.cost());
            if wanted > 0 && !has_enough && key.blocks.len() < BLOCKS {
                outcome.want_block(wanted);
                wanting.push((outcome.fingerprint(), wanted));
            }
        }
        if wanting.is_empty() {
            return Ask::Store;
        }
        let done = Arc::new(Semaphore::new(0));
        for &(fingerprint, spare) in &wanting {
            if let Some(key) = sets[set_of(fingerprint)].lock().iter_mut().find(|key| key.fingerprint == fingerprint) {
                key.call = Some(CallInProgress { done: done.clone(), spare });
            }
        }
        Ask::Lease(BlockCall { blocks: self.clone(), keys: wanting, done, sent: now })
    }

    /// Puts tokens back into the block that they were taken from. Returns whether it is still there.
    pub(super) fn put_back(&self, outcome: &Outcome) -> bool {
        let Some(set) = self.set(outcome) else { return false };
        let now = self.now();
        let mut keys = set.lock();
        let Some(key) = keys.iter_mut().find(|key| key.fingerprint == outcome.fingerprint()) else { return false };
        let mut blocks = key.blocks.iter_mut();
        let Some(block) = blocks.find(|block| block.known.mark == outcome.mark && block.ends_at > now) else {
            return false;
        };
        set.blocks.fetch_add(usize::from(block.left == 0), Ordering::Relaxed);
        block.left += outcome.cost();
        true
    }

    /// Ends the lease of a block. Returns the tokens that were not spent.
    pub(super) fn end(&self, outcome: &Outcome, number: u64) -> u64 {
        let Some(set) = self.set(outcome) else { return 0 };
        let mut keys = set.lock();
        let Some(key) = keys.iter_mut().find(|key| key.fingerprint == outcome.fingerprint()) else { return 0 };
        key.remove(set, |block| block.number == number)
    }

    /// Forgets how calls have left keys, because a refund or a reset changes that. A reset also ends their leases.
    pub(super) fn forget(&self, charges: &[Outcome], is_reset: bool) {
        for outcome in charges {
            let Some(set) = self.set(outcome) else { return };
            let mut keys = set.lock();
            if let Some(key) = keys.iter_mut().find(|key| key.fingerprint == outcome.fingerprint()) {
                key.known = None;
                if is_reset {
                    key.remove(set, |_| true);
                }
            }
        }
    }

    fn set(&self, outcome: &Outcome) -> Option<&Set> {
        Some(&self.sets.get()?[set_of(outcome.fingerprint())])
    }
}

fn set_of(fingerprint: u128) -> usize {
    (fingerprint >> 40) as usize % SETS
}

impl Set {
    fn lock(&self) -> MutexGuard<'_, Vec<Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a key, or adds it in place of the one that has not been asked for for longest. Returns `None` if all others
    /// have blocks.
    fn find_or_add<'k>(&self, keys: &'k mut Vec<Key>, fingerprint: u128, now: u64) -> Option<&'k mut Key> {
        let found = keys.iter().position(|key| key.fingerprint == fingerprint);
        let place = match found {
            Some(place) => place,
            None if keys.len() < KEYS => {
                keys.push(Key::new(fingerprint));
                keys.len() - 1
            }
            None => {
                // Their tasks may have ended with their runtimes.
                for key in keys.iter_mut() {
                    key.remove(self, |block| block.ends_at + 1_000_000 < now);
                }
                let idle = keys.iter().enumerate().filter(|(_, key)| key.blocks.is_empty() && key.call.is_none());
                let (place, _) = idle.min_by_key(|(_, key)| key.demand.since)?;
                keys[place] = Key::new(fingerprint);
                place
            }
        };
        Some(&mut keys[place])
    }
}

impl Key {
    fn new(fingerprint: u128) -> Self {
        Self {
            fingerprint,
            demand: Demand::default(),
            blocks: SmallVec::new(),
            call: None,
            known: None,
            is_tight: false,
        }
    }

    /// Removes blocks. Returns the tokens that they have left.
    fn remove(&mut self, set: &Set, is_removed: impl Fn(&Block) -> bool) -> u64 {
        let mut left = 0;
        self.blocks.retain(|block| {
            if is_removed(block) {
                left += block.left;
                set.blocks.fetch_sub(usize::from(block.left > 0), Ordering::Relaxed);
            }
            !is_removed(block)
        });
        left
    }
}

impl Known {
    /// Returns the instant `now` of this process on the clock of the store, which may be a little later.
    fn at_store(&self, now: u64) -> u64 {
        (self.at + now.saturating_sub(self.received)).min(Timestamp::MAX.as_micros())
    }

    /// Returns whether others have changed the state a short time ago at most.
    fn is_recent(&self, now: u64) -> bool {
        now.saturating_sub(self.received) < LONGEST_DENIAL
    }
}

impl Demand {
    fn add(&mut self, now: u64, term: u32, tokens: u64) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= u64::from(term) {
            let before = if elapsed < 2 * u64::from(term) { self.present } else { 0 };
            *self = Self { since: now, present: 0, before };
        }
        self.present = self.present.saturating_add(tokens);
    }

    /// Returns the tokens of the term that ends now, if those of the one before were evenly spread.
    fn of_last_term(&self, now: u64, term: u32) -> u64 {
        let (elapsed, term) = (now.saturating_sub(self.since), u64::from(term));
        match elapsed {
            _ if elapsed < term => {
                let part = u128::from(self.before) * u128::from(term - elapsed) / u128::from(term);
                self.present.saturating_add(part as u64)
            }
            _ if elapsed < 2 * term => {
                (u128::from(self.present) * u128::from(2 * term - elapsed) / u128::from(term)) as u64
            }
            _ => 0,
        }
    }
}

impl BlockCall {
    /// Keeps how the call has left a key, and the tokens of the block. Returns its lease, unless it is over or empty.
    pub(super) fn keep(&self, outcome: &Outcome, tokens: u64) -> Option<Lease> {
        let (blocks, now) = (&self.blocks, self.blocks.now());
        let set = blocks.set(outcome)?;
        let known = Known { size: outcome.own_size, mark: outcome.mark, at: outcome.instant(), received: now };
        let mut keys = set.lock();
        let key = keys.iter_mut().find(|key| key.fingerprint == outcome.fingerprint())?;
        key.known = Some(known);
        let wanted = self.keys.iter().find(|(fingerprint, _)| *fingerprint == outcome.fingerprint());
        key.is_tight = wanted.is_some_and(|(_, wanted)| tokens < *wanted);
        let span = outcome.algorithm.lease_of(&outcome.mark, known.at);
        // The clocks of two computers run at different rates, and instants are rounded.
        let ends_at = (self.sent + span).saturating_sub(span / 1_000 + 2);
        if tokens == 0 || ends_at <= now {
            return None;
        }
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed) as u64;
        set.blocks.fetch_add(1, Ordering::Relaxed);
        key.blocks.push(Block { number, left: tokens, known, ends_at });
        Some(Lease { number, ends_at })
    }
}

/// Ends the call: those who wait for it go on.
impl Drop for BlockCall {
    fn drop(&mut self) {
        let Some(sets) = self.blocks.sets.get() else { return };
        for (fingerprint, _) in &self.keys {
            let mut keys = sets[set_of(*fingerprint)].lock();
            let own = |key: &&mut Key| key.call.as_ref().is_some_and(|call| Arc::ptr_eq(&call.done, &self.done));
            keys.iter_mut().filter(own).for_each(|key| key.call = None);
        }
        self.done.close();
    }
}
