//! Implements [`Store`]: the operations on the keys of one slot or server, in one round trip.
//!
//! [`cross_slot`](super::cross_slot) decides requests with keys in several slots of a Cluster.

#[cfg(feature = "rules")]
use std::hash::{BuildHasher, RandomState};
use std::slice;

use futures_util::future::join_all;

use super::cross_slot::CrossSlotRequest;
use super::error::Fault;
use super::reply::INVALID_OVERRIDE;
use super::request::{Request, encode_clock};
use super::script::Task;
use super::slot;
use super::store::RedisStore;
use crate::algorithm::Kind;
#[cfg(feature = "rules")]
use crate::error::StoreError;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::store::decision::Cell;
use crate::store::{Answer, Node, Override, OverrideOperation, Purpose, Store, StoreFuture, StoreUsage};
use crate::time::Timestamp;
#[cfg(feature = "rules")]
use crate::time::{Clock, SystemClock};
#[cfg(feature = "rules")]
use redis::{Value, cmd};

/// The maximum number of round trips that fail because Redis' clock is in none of the calendar windows of the request:
/// two, if Redis' clock is set in between.
const MAX_CLOCK_CORRECTIONS: usize = 2;

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
        StoreUsage { queued: Some(self.deployment.queued() as u64), ..StoreUsage::default() }
    }

    fn access_override(&self, cell: &Cell, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        let (request, purpose) = match operation {
            OverrideOperation::Get => (Request::of_override(Task::GetOverride, &self.prefix, cell), Purpose::Peek),
            OverrideOperation::Set(size) => (Request::set_override(&self.prefix, cell, size), Purpose::Take),
            OverrideOperation::Remove => (Request::of_override(Task::Reset, &self.prefix, cell), Purpose::Take),
        };
        let change = self.denials.begin(slice::from_ref(cell), purpose);
        let (store, cell) = (self.clone(), cell.clone());
        StoreFuture::pending(async move {
            let _change = change;
            let (now, reply) = store.deployment.ask(store.test_clock().map(encode_clock), request).await?;
            let Some(stored) = reply.stored_override()? else { return Ok(None) };
            Ok(Some(stored.of(&cell, now).ok_or(INVALID_OVERRIDE)?))
        })
    }
}

impl RedisStore {
    /// Lets the script decide cells, and fills in their answers. If Redis' clock is in another calendar window, the
    /// script decides nothing, and this corrects and repeats the request. Returns the instant of the decision, and that
    /// from which other overrides may apply, in µs.
    pub(super) async fn ask(&self, task: Task, purpose: Purpose, cells: &mut [Cell]) -> Result<(u64, u64), Fault> {
        let clock = self.test_clock();
        let has_calendar = cells.iter().any(|cell| matches!(cell.algorithm().kind, Kind::Window(Some(_))));
        let mut now = if has_calendar { clock.unwrap_or_else(|| self.local_now()) } else { 0 };
        let mut corrections = 0..MAX_CLOCK_CORRECTIONS;
        loop {
            let request = Request::decide(&self.prefix, task, now, cells);
            match self.deployment.ask(clock.map(encode_clock), request).await {
                Ok((at, reply)) => return Ok((at, reply.answer(task, purpose, cells, at)?)),
                Err(fault) => match fault.redis_clock().filter(|_| corrections.next().is_some()) {
                    Some(redis_clock) => now = redis_clock,
                    None => return Err(fault),
                },
            }
        }
    }

    /// Encodes one request for the cells of each slot.
    fn by_slot(&self, cells: &[Cell], encode: fn(&str, &[&Cell]) -> Request) -> Vec<Request> {
        let slots = match self.deployment.is_cluster() {
            true => slot::group(cells.iter().map(Cell::key)),
            false => vec![(0..cells.len()).collect()],
        };
        let slot = |slot: Vec<usize>| slot.into_iter().map(|position| &cells[position]).collect::<Vec<_>>();
        slots.into_iter().map(slot).filter(|slot| !slot.is_empty()).map(|slot| encode(&self.prefix, &slot)).collect()
    }

    /// Sends requests that change the states of cells, all at the same time.
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

/// Documents that all instances share, stored without expiry: the text at `prefix:name`, and at `prefix:name:version` a
/// version that differs for each published text.
#[cfg(feature = "rules")]
impl RedisStore {
    /// Replaces a text. Writes the version last, so that a reader that sees it also sees the text.
    pub(crate) async fn publish(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let random = RandomState::new().hash_one(text);
        let version = format!("{:x}-{random:016x}", SystemClock::new().now().as_micros());
        for (key, value) in [(self.text_key(name), text), (self.version_key(name), &version)] {
            self.deployment.query(slot::of(&key), cmd("SET").arg(&key).arg(value)).await?;
        }
        Ok(())
    }

    /// Returns the version of the current text.
    pub(crate) async fn version(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(self.version_key(name)).await
    }

    /// Returns the current text.
    pub(crate) async fn text(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(self.text_key(name)).await
    }

    async fn get(&self, key: String) -> Result<Option<Vec<u8>>, StoreError> {
        match self.deployment.query(slot::of(&key), cmd("GET").arg(&key)).await? {
            Value::Nil => Ok(None),
            Value::BulkString(text) => Ok(Some(text)),
            _ => Err(Fault::Reply("expected a text").into()),
        }
    }

    fn text_key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    fn version_key(&self, name: &str) -> String {
        format!("{}:{name}:version", self.prefix)
    }
}
