//! A key with demand: its blocks, the call for the next one, and what the last call has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::sync::Semaphore;

use crate::algorithm::{CompactState, Size};
use crate::decision::Charge;
use crate::time::Timestamp;

/// The most blocks of a key, with those that are spent, to which tokens may be returned until their leases end.
const BLOCKS: usize = 16;

/// The longest time for which requests are denied because a call has left no tokens, in µs.
const LONGEST_DENIAL: u64 = 1_000_000;

/// A key with demand.
pub(super) struct LeasedKey {
    pub(super) fingerprint: u128,
    pub(super) demand: Demand,
    pub(super) blocks: SmallVec<[Block; 1]>,
    /// The call for the next block.
    pub(super) call: Option<CallInProgress>,
    /// What the last call has left of the key.
    pub(super) known: Option<Known>,
    /// Whether that was nothing.
    pub(super) is_exhausted: bool,
    /// Whether that has brought no block, although there were tokens for one: the store does not take any.
    pub(super) has_no_block: bool,
}

/// A call for the next block.
pub(super) struct CallInProgress {
    pub(super) done: Arc<Semaphore>,
    /// The tokens that it wants, less those that requests wait for.
    pub(super) spare: u64,
    /// The instant before it is sent, in µs.
    pub(super) sent: u64,
}

/// Tokens that were charged by one call. All instants are in µs.
pub(super) struct Block {
    pub(super) left: u64,
    pub(super) known: Known,
    /// The instant on the clock of this process at which the lease ends.
    pub(super) ends_at: u64,
}

/// The state of a key after a call.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) size: Size,
    pub(super) mark: CompactState,
    /// The instant of the decision, on the clock of the store.
    pub(super) at: u64,
    /// The instant of the answer, on that of this process.
    pub(super) received: u64,
}

/// The tokens of allowed requests in the present term and in the one before.
#[derive(Default)]
pub(super) struct Demand {
    pub(super) since: u64,
    pub(super) present: u64,
    pub(super) before: u64,
}

impl LeasedKey {
    pub(super) fn new(fingerprint: u128) -> Self {
        Self {
            fingerprint,
            demand: Demand::default(),
            blocks: SmallVec::new(),
            call: None,
            known: None,
            is_exhausted: false,
            has_no_block: false,
        }
    }

    /// Returns whether there is room for another block. A spent one goes, so that tokens of it are returned to the store.
    pub(super) fn has_room(&mut self, now: u64, blocks: &AtomicUsize) -> bool {
        self.drop_ended(now, blocks);
        if self.blocks.len() == BLOCKS
            && let Some(spent) = self.blocks.iter().position(|block| block.left == 0)
        {
            self.blocks.remove(spent);
        }
        self.blocks.len() < BLOCKS
    }

    /// Removes blocks that ended a second ago. A task that ended with its runtime returns none.
    pub(super) fn drop_ended(&mut self, now: u64, blocks: &AtomicUsize) {
        self.remove(blocks, |block| block.ends_at + 1_000_000 < now);
    }

    /// Removes blocks. `blocks` is the number of those in the set that have tokens. Returns the tokens of the removed ones.
    pub(super) fn remove(&mut self, blocks: &AtomicUsize, is_removed: impl Fn(&Block) -> bool) -> u64 {
        let mut left = 0;
        self.blocks.retain(|block| {
            if is_removed(block) {
                left += block.left;
                blocks.fetch_sub(usize::from(block.left > 0), Ordering::Relaxed);
            }
            !is_removed(block)
        });
        left
    }
}

impl Block {
    /// Returns whether a charge can be taken from the block.
    pub(super) fn has(&self, charge: &Charge, now: u64) -> bool {
        self.left >= charge.cost() && self.ends_at > now && self.known.size == charge.own_size
    }
}

impl Known {
    /// Returns the instant `now` of this process on the clock of the store, which may be a little later.
    pub(super) fn at_store(&self, now: u64) -> u64 {
        (self.at + now.saturating_sub(self.received)).min(Timestamp::MAX.as_micros())
    }

    /// Returns whether the answer is recent: it misses later charges and refunds of other processes.
    pub(super) fn is_recent(&self, now: u64) -> bool {
        now.saturating_sub(self.received) < LONGEST_DENIAL
    }
}

impl Demand {
    pub(super) fn add(&mut self, now: u64, term: u32, tokens: u64) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= u64::from(term) {
            let before = if elapsed < 2 * u64::from(term) { self.present } else { 0 };
            *self = Self { since: now, present: 0, before };
        }
        self.present = self.present.saturating_add(tokens);
    }

    /// Returns the tokens of the term that ends now, if those of the one before were evenly spread.
    pub(super) fn of_last_term(&self, now: u64, term: u32) -> u64 {
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
