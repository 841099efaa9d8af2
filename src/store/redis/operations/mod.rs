//! Implements [`Store`] and [`OverrideStore`]: the operations on the keys of one slot or server, in one round trip.
//!
//! `decide` asks the script and fills in its answers, `cross_slot` decides requests with keys in several slots of a
//! Cluster.

mod cross_slot;
mod decide;

use std::slice;

use futures_util::future::join_all;

use self::cross_slot::CrossSlotRequest;
#[cfg(test)]
pub(super) use self::decide::answer;
use self::decide::{INVALID_OVERRIDE, next_override};
use super::script::{Request, Task, encode_clock};
use super::slot;
use super::store::RedisStore;
use crate::decision::Cell;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::store::lifetime_micros;
use crate::store::{Answer, Node, Override, OverrideStore, Purpose, Store, StoreFuture, StoreUsage};
use crate::time::Timestamp;

impl Store for RedisStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher.of_store_at(&format!("{} {}", self.name, self.prefix))
    }

    fn decide(&self, cells: &mut [Cell], purpose: Purpose) -> StoreFuture<Answer> {
        if let Some(at) = self.remembered(cells) {
            return StoreFuture::ready(Ok(Answer::new(at).from_memory()));
        }
        let change = self.denials.begin(cells, purpose);
        if self.is_cross_slot(cells) {
            let request = CrossSlotRequest::new(self.clone(), cells);
            return StoreFuture::pending(async move { Ok(request.decide(purpose, change).await?) });
        }
        let task = if purpose == Purpose::Take { Task::Acquire } else { Task::Peek };
        let (store, mut cells) = (self.clone(), cells.to_vec());
        StoreFuture::pending(async move {
            let (at, until) = store.ask(task, purpose, &mut cells).await?;
            change.decided(&cells, at, until);
            Ok(Answer::with_cells(Timestamp::from_micros(at), cells))
        })
    }

    fn refund(&self, cells: &[Cell]) -> StoreFuture<()> {
        self.change(cells, self.by_slot(cells, Request::refund))
    }

    fn reset(&self, cells: &[Cell]) -> StoreFuture<()> {
        self.change(cells, self.by_slot(cells, Request::reset))
    }

    fn remembered(&self, cells: &mut [Cell]) -> Option<Timestamp> {
        self.denials.answer(cells, self.test_clock())
    }

    fn has_readable_keys(&self) -> bool {
        true
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        self.deployment.node(key)
    }

    fn name(&self) -> Option<String> {
        Some(self.name.to_string())
    }

    fn usage(&self) -> StoreUsage {
        StoreUsage::default().queued(self.deployment.queued() as u64)
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        Some(self)
    }
}

impl OverrideStore for RedisStore {
    fn set(&self, cell: &Cell, size: Override) -> StoreFuture<()> {
        let Override { algorithm, expires_after } = size;
        let request = Request::set_override(&self.prefix, cell, algorithm.size(), expires_after.map(lifetime_micros));
        self.change(slice::from_ref(cell), vec![request])
    }

    fn get(&self, cell: &Cell) -> StoreFuture<Option<Override>> {
        let request = Request::of_override(Task::GetOverride, &self.prefix, cell);
        let (store, cell) = (self.clone(), cell.clone());
        StoreFuture::pending(async move {
            let (now, reply) = store.deployment.ask(store.test_clock().map(encode_clock), request).await?;
            let Some(stored) = next_override(&mut reply.states())? else { return Ok(None) };
            Ok(Some(stored.of(&cell, now).ok_or(INVALID_OVERRIDE)?))
        })
    }

    fn remove(&self, cell: &Cell) -> StoreFuture<()> {
        self.change(slice::from_ref(cell), vec![Request::of_override(Task::Reset, &self.prefix, cell)])
    }
}

impl RedisStore {
    /// Encodes one request for the cells of each slot.
    fn by_slot(&self, cells: &[Cell], encode: fn(&str, &[&Cell]) -> Request) -> Vec<Request> {
        let slots = match self.deployment.is_cluster() {
            true => slot::group(cells.iter().map(Cell::key)),
            false => vec![(0..cells.len()).collect()],
        };
        let slot = |slot: Vec<usize>| slot.into_iter().map(|position| &cells[position]).collect::<Vec<_>>();
        slots.into_iter().map(slot).filter(|slot| !slot.is_empty()).map(|slot| encode(&self.prefix, &slot)).collect()
    }

    /// Sends requests that change the states or overrides of cells, all at the same time.
    fn change(&self, cells: &[Cell], requests: Vec<Request>) -> StoreFuture<()> {
        if requests.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let change = self.denials.begin(cells, Purpose::Take);
        let (deployment, clock) = (self.deployment.clone(), self.test_clock().map(encode_clock));
        StoreFuture::pending(async move {
            let replies = join_all(requests.into_iter().map(|request| deployment.ask(clock, request))).await;
            drop(change);
            Ok(replies.into_iter().try_for_each(|reply| reply.map(drop))?)
        })
    }

    /// Returns whether cells may be in different slots of a Cluster: those of several subjects.
    fn is_cross_slot(&self, cells: &[Cell]) -> bool {
        self.deployment.is_cluster() && cells.iter().any(|cell| cell.key() != cells[0].key())
    }
}
