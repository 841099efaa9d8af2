//! The state of each connection of a pool.

use std::sync::Arc;

use tokio::sync::watch;

use super::pooled::PooledConnection;
use crate::store::redis::error::Fault;

#[derive(Debug)]
pub(super) struct Slots(watch::Sender<Vec<Slot>>);

#[derive(Debug)]
pub(super) enum Slot {
    /// It was never needed, or the runtime that was to open it has ended.
    Idle,
    Open(PooledConnection),
    /// An attempt is under way.
    Opening,
    /// The last attempt failed, and another one is scheduled.
    Down(Arc<Fault>),
}

impl Slot {
    pub(super) fn connection(&self) -> Option<&PooledConnection> {
        match self {
            Self::Open(connection) => Some(connection),
            _ => None,
        }
    }

    fn fault(&self) -> Option<Fault> {
        match self {
            Self::Down(fault) => Some(Fault::Connect(fault.clone())),
            _ => None,
        }
    }

    fn is_opening(&self) -> bool {
        matches!(self, Self::Opening)
    }
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self(watch::Sender::new((0..count).map(|_| Slot::Idle).collect()))
    }

    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn connection(&self, slot: usize) -> Option<PooledConnection> {
        self.0.borrow()[slot].connection().cloned()
    }

    /// Returns the connection whose `turn` it is, if it is open and not suspect.
    pub(super) fn healthy(&self, turn: usize) -> Option<PooledConnection> {
        let slots = self.0.borrow();
        slots[turn % slots.len()].connection().filter(|connection| !connection.is_suspect()).cloned()
    }

    /// Returns any connection, preferably one that is not suspect. If there is none, waits for the attempts that are
    /// under way, but not for those that are scheduled.
    pub(super) async fn any(&self) -> Result<PooledConnection, Fault> {
        let is_settled = |slots: &Vec<Slot>| {
            slots.iter().any(|slot| slot.connection().is_some()) || !slots.iter().any(Slot::is_opening)
        };
        let mut changes = self.0.subscribe();
        let slots = changes.wait_for(is_settled).await.map_err(|_| Fault::NoRuntime)?;
        let connection = slots.iter().filter_map(Slot::connection).min_by_key(|connection| connection.is_suspect());
        connection.cloned().ok_or_else(|| slots.iter().find_map(Slot::fault).unwrap_or(Fault::NoRuntime))
    }

    /// Returns the connection of a slot, after the attempt that is under way.
    pub(super) async fn wait(&self, slot: usize) -> Result<PooledConnection, Fault> {
        let mut changes = self.0.subscribe();
        let slots = changes.wait_for(|slots| !slots[slot].is_opening()).await.map_err(|_| Fault::NoRuntime)?;
        slots[slot].connection().cloned().ok_or_else(|| slots[slot].fault().unwrap_or(Fault::NoRuntime))
    }

    pub(super) fn set(&self, slot: usize, next: Slot) {
        self.set_if(slot, next, |_| true);
    }

    /// Changes a slot that is in an expected state. Returns whether it was.
    pub(super) fn set_if(&self, slot: usize, next: Slot, is_expected: impl Fn(&Slot) -> bool) -> bool {
        self.0.send_if_modified(|slots| {
            let is_expected = is_expected(&slots[slot]);
            if is_expected {
                slots[slot] = next;
            }
            is_expected
        })
    }
}
