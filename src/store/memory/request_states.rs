//! The states of a request's keys.

use smallvec::{SmallVec, smallvec};

use super::MemoryStore;
use super::rank::EvictionRank;
use super::shard::{EntryKey, Locked, Shard};
use super::table::Slot;
use crate::algorithm::{Availability, CompactState, KeyState, State, StoredKey};
use crate::charge::Charge;
use crate::store::evaluation::KeyStates;
use crate::store::evaluation::preview::CopiedStates;

/// The states of a request's keys, in shards that are locked.
pub(super) struct RequestStates<'r, 's> {
    store: &'s MemoryStore,
    locked: &'r mut Locked<'s>,
    charges: &'r [Charge<'r>],
    /// The slot of each charge's key, if it is known.
    slots: SmallVec<[Option<Slot>; 8]>,
    /// The state that [`state`](KeyStates::state) returned last, if its slot is vacant.
    new: KeyState,
    now: u64,
}

impl<'r, 's> RequestStates<'r, 's> {
    pub(super) fn new(store: &'s MemoryStore, locked: &'r mut Locked<'s>, charges: &'r [Charge<'r>], now: u64) -> Self {
        let new = KeyState::Compact(CompactState::UNUSED);
        Self { store, locked, charges, slots: smallvec![None; charges.len()], new, now }
    }

    /// Copies the states.
    pub(super) fn copy(&mut self) -> CopiedStates {
        CopiedStates((0..self.charges.len()).map(|charge| self.copy_of(charge)).collect())
    }

    fn copy_of(&mut self, charge: usize) -> StoredKey {
        let key = EntryKey::new(&self.charges[charge]);
        let state = match self.slot(charge) {
            Slot::Occupied(slot) => self.shard(charge).copy(key, slot),
            Slot::Vacant(_) => KeyState::unused(self.charges[charge].spec.algorithm()),
        };
        StoredKey { state, penalty: self.penalty(charge) }
    }

    fn shard(&mut self, charge: usize) -> &mut Shard {
        self.store.shard_among(self.locked, self.charges[charge].key)
    }

    fn slot(&mut self, charge: usize) -> Slot {
        if let Some(slot) = self.slots[charge] {
            return slot;
        }
        let key = EntryKey::new(&self.charges[charge]);
        *self.slots[charge].insert(self.store.shard_among(self.locked, self.charges[charge].key).find(key))
    }

    /// Forgets the slots of entries, because some entries may have moved.
    fn forget_slots(&mut self) {
        self.slots.fill(None);
    }

    /// Returns the fingerprints of the request's own entries, which it never evicts.
    fn own_fingerprints(&self) -> SmallVec<[u128; 8]> {
        let entries = |charge| [Some(EntryKey::new(charge)), EntryKey::of_penalty(charge)];
        self.charges.iter().flat_map(entries).flatten().map(|key| key.fingerprint).collect()
    }
}

impl KeyStates for RequestStates<'_, '_> {
    fn state(&mut self, charge: usize) -> &mut dyn State {
        let key = EntryKey::new(&self.charges[charge]);
        match self.slot(charge) {
            Slot::Occupied(slot) => self.shard(charge).entry_mut(key, slot).state,
            Slot::Vacant(_) => {
                self.new = KeyState::unused(self.charges[charge].spec.algorithm());
                self.new.as_state_mut()
            }
        }
    }

    fn penalty(&mut self, charge: usize) -> CompactState {
        match EntryKey::of_penalty(&self.charges[charge]) {
            Some(key) => self.shard(charge).penalty(key),
            None => CompactState::UNUSED,
        }
    }

    fn make_room(&mut self) {
        for (index, charge) in self.charges.iter().enumerate() {
            let (store, now) = (self.store, self.now);
            // New keys are counted only if the shard is nearly full.
            if self.shard(index).keys() + index < store.max_keys {
                continue;
            }
            let own = self.own_fingerprints();
            let shard = store.shard_among(self.locked, charge.key);
            // A charge beyond the capacity of a limit that is not enforced leaves no state.
            let is_new = |other: &&Charge<'_>| {
                store.shard_of(other.key) == store.shard_of(charge.key)
                    && (1..=other.spec.capacity()).contains(&other.cost)
                    && matches!(shard.find(EntryKey::new(other)), Slot::Vacant(_))
            };
            let new = self.charges[..=index].iter().filter(is_new).count();
            shard.make_room(new, &own, store.max_keys, now);
            self.forget_slots();
        }
    }

    fn store(&mut self, charge: usize, remaining: u64) {
        let (key, max_keys) = (EntryKey::new(&self.charges[charge]), self.store.max_keys);
        let rank = EvictionRank::new(remaining, self.charges[charge].spec.capacity());
        match self.slot(charge) {
            Slot::Occupied(slot) => self.shard(charge).entry_mut(key, slot).fingerprint.set_rank(rank),
            Slot::Vacant(_) => {
                let new = std::mem::replace(&mut self.new, KeyState::Compact(CompactState::UNUSED));
                let shard = self.shard(charge);
                if new.as_state().expires_at() > 0 && shard.keys() < max_keys {
                    shard.insert(key, new, rank);
                    self.forget_slots();
                }
            }
        }
    }

    fn mark_denied(&mut self, charge: usize) {
        if let Slot::Occupied(slot) = self.slot(charge) {
            let key = EntryKey::new(&self.charges[charge]);
            self.shard(charge).entry_mut(key, slot).fingerprint.set_rank(EvictionRank::DENIED);
        }
    }

    fn store_penalty(&mut self, charge: usize, penalty: CompactState, availability: Availability) -> bool {
        let Some(key) = EntryKey::of_penalty(&self.charges[charge]) else { return false };
        // Requests that can never pass take nothing from the limit. Their strikes are evicted first and displace no
        // denied key: otherwise, a flood of such requests would lift the limits of other keys.
        let can_never_pass = availability == Availability::Never;
        let rank = if can_never_pass { EvictionRank::LOWEST } else { EvictionRank::DENIED };
        let (own, max_keys, now) = (self.own_fingerprints(), self.store.max_keys, self.now);
        let is_kept = self.shard(charge).set_penalty(key, penalty, rank, &own, max_keys, now);
        self.forget_slots();
        is_kept
    }
}
