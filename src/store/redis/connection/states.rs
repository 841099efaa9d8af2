//! The state of each connection of a pool.

use std::sync::Arc;

use tokio::sync::watch;

use super::pooled::PooledConnection;
use crate::store::redis::error::Fault;

#[derive(Debug)]
pub(super) struct ConnectionStates(watch::Sender<Vec<ConnectionState>>);

#[derive(Debug)]
pub(super) enum ConnectionState {
    /// It was never needed, or its runtime has ended.
    Idle,
    Open(PooledConnection),
    /// An attempt is under way.
    Opening,
    /// The last attempt failed, and another one is scheduled.
    Down(Arc<Fault>),
}

impl ConnectionState {
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

impl ConnectionStates {
    pub(super) fn new(count: usize) -> Self {
        Self(watch::Sender::new((0..count).map(|_| ConnectionState::Idle).collect()))
    }

    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn connection(&self, index: usize) -> Option<PooledConnection> {
        self.0.borrow()[index].connection().cloned()
    }

    /// Returns the connection whose `turn` it is, if it is open and not suspect.
    pub(super) fn healthy(&self, turn: usize) -> Option<PooledConnection> {
        let states = self.0.borrow();
        states[turn % states.len()].connection().filter(|connection| !connection.is_suspect()).cloned()
    }

    /// Returns any connection, preferably one that is not suspect. If there is none, waits for the attempts that are
    /// under way, but not for those that are scheduled.
    pub(super) async fn any(&self) -> Result<PooledConnection, Fault> {
        let is_settled = |states: &Vec<ConnectionState>| {
            states.iter().any(|index| index.connection().is_some()) || !states.iter().any(ConnectionState::is_opening)
        };
        let mut changes = self.0.subscribe();
        let states = changes.wait_for(is_settled).await.map_err(|_| Fault::NoRuntime)?;
        let connection =
            states.iter().filter_map(ConnectionState::connection).min_by_key(|connection| connection.is_suspect());
        connection.cloned().ok_or_else(|| states.iter().find_map(ConnectionState::fault).unwrap_or(Fault::NoRuntime))
    }

    /// Returns a connection, after the attempt that is under way.
    pub(super) async fn wait(&self, index: usize) -> Result<PooledConnection, Fault> {
        let mut changes = self.0.subscribe();
        let states = changes.wait_for(|states| !states[index].is_opening()).await.map_err(|_| Fault::NoRuntime)?;
        states[index].connection().cloned().ok_or_else(|| states[index].fault().unwrap_or(Fault::NoRuntime))
    }

    pub(super) fn set(&self, index: usize, next: ConnectionState) {
        self.set_if(index, next, |_| true);
    }

    /// Changes the state of a connection if it is an expected one. Returns whether it was.
    pub(super) fn set_if(
        &self,
        index: usize,
        next: ConnectionState,
        is_expected: impl Fn(&ConnectionState) -> bool,
    ) -> bool {
        self.0.send_if_modified(|states| {
            let is_expected = is_expected(&states[index]);
            if is_expected {
                states[index] = next;
            }
            is_expected
        })
    }
}
