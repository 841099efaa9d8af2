//! The states of a request's keys.

use smallvec::{SmallVec, smallvec};

use super::MemoryStore;
use super::rank::EvictionRank;
use super::shard::{EntryKey, Locked, Shard};
use super::table::Slot;
use crate::algorithm::{Availability, CompactState, KeyState, StateMut};
use crate::charge::Charge;
use crate::store::evaluation::KeyStates;

/// The states of a request's keys, in shards that are locked.
pub(super) struct RequestStates<'r, 's> {
    store: &'s MemoryStore,
    locked: &'r mut Locked<'s>,
    charges: &'r [Charge<'r>],
    /// The slot of each charge's key, if it is known.
    slots: SmallVec<[Option<Slot>; 8]>,
    /// The state that was last asked for, if its slot is vacant.
    new: KeyState,
    now: u64,
}

impl<'r, 's> RequestStates<'r, 's> {
    pub(super) fn new(store: &'s MemoryStore, locked: &'r mut Locked<'s>, charges: &'r [Charge<'r>], now: u64) -> Self {
        let new = KeyState::Compact(CompactState::UNUSED);
        Self { store, locked, charges, slots: smallvec![None; charges.len()], new, now }
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

    /// Forgets where entries are, after some have moved.
    fn moved(&mut self) {
        self.slots.fill(None);
    }

    /// Returns the fingerprints of all entries of the request, which are not evicted for each other.
    fn own(&self) -> SmallVec<[u128; 8]> {
        let entries = |charge| [Some(EntryKey::new(charge)), EntryKey::of_penalty(charge)];
        self.charges.iter().flat_map(entries).flatten().map(|key| key.fingerprint).collect()
    }
}

impl KeyStates for RequestStates<'_, '_> {
    fn state(&mut self, charge: usize) -> StateMut<'_> {
        let key = EntryKey::new(&self.charges[charge]);
        match self.slot(charge) {
            Slot::Occupied(slot) => self.shard(charge).entry_mut(key, slot).state,
            Slot::Vacant(_) => {
                self.new = self.charges[charge].spec.rule().deciding().unused();
                self.new.as_mut()
            }
        }
    }

    fn penalty(&mut self, charge: usize) -> CompactState {
        match EntryKey::of_penalty(&self.charges[charge]) {
            Some(key) => self.shard(charge).penalty(key),
            None => CompactState::UNUSED,
        }
    }

    fn before_commit(&mut self) {
        for (index, charge) in self.charges.iter().enumerate() {
            let (store, now) = (self.store, self.now);
            // Few shards are so full that the new keys have to be counted.
            if self.shard(index).keys() + index < store.most {
                continue;
            }
            let own = self.own();
            let shard = store.shard_among(self.locked, charge.key);
            // A charge beyond the capacity of a limit that is not enforced leaves no state.
            let is_new = |other: &&Charge<'_>| {
                store.shard_of(other.key) == store.shard_of(charge.key)
                    && (1..=other.spec.capacity()).contains(&other.cost)
                    && matches!(shard.find(EntryKey::new(other)), Slot::Vacant(_))
            };
            let new = self.charges[..=index].iter().filter(is_new).count();
            shard.make_room(new, &own, store.most, now);
            self.moved();
        }
    }

    fn charged(&mut self, charge: usize, remaining: u64) {
        let (key, most) = (EntryKey::new(&self.charges[charge]), self.store.most);
        let rank = EvictionRank::new(remaining, self.charges[charge].spec.capacity());
        match self.slot(charge) {
            Slot::Occupied(slot) => self.shard(charge).entry_mut(key, slot).fingerprint.set_rank(rank),
            Slot::Vacant(_) => {
                let new = std::mem::replace(&mut self.new, KeyState::Compact(CompactState::UNUSED));
                let shard = self.shard(charge);
                if new.expires_at() > 0 && shard.keys() < most {
                    shard.insert(key, new, rank);
                    self.moved();
                }
            }
        }
    }

    fn denied(&mut self, charge: usize) {
        if let Slot::Occupied(slot) = self.slot(charge) {
            let key = EntryKey::new(&self.charges[charge]);
            self.shard(charge).entry_mut(key, slot).fingerprint.set_rank(EvictionRank::DENIED);
        }
    }

    fn struck(&mut self, charge: usize, penalty: CompactState, availability: Availability) -> bool {
        let Some(key) = EntryKey::of_penalty(&self.charges[charge]) else { return false };
        // A key whose requests can never pass takes nothing from the limit. Its strikes are evicted first and displace
        // no denied key, or else a flood of such requests would lift the limits of others.
        let is_hopeless = availability == Availability::Never;
        let rank = if is_hopeless { EvictionRank::LOWEST } else { EvictionRank::DENIED };
        let (own, most, now) = (self.own(), self.store.most, self.now);
        let is_kept = self.shard(charge).set_penalty(key, penalty, rank, &own, most, now);
        self.moved();
        is_kept
    }
}
