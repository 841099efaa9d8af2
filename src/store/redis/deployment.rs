//! The server of a request: the only one, or one of a Cluster's masters.

use std::sync::Arc;

#[cfg(feature = "rules")]
use redis::{Cmd, Value};
use smallvec::smallvec;

use super::cluster::Cluster;
use super::error::Fault;
use super::queue::{Command, CommandReply};
use super::reply::Reply;
use super::request::Request;
use super::slot;
use super::workers::Workers;
use crate::key::hash::KeyHash;
use crate::store::node::Node;

#[derive(Clone)]
pub(super) enum Deployment {
    Single(Arc<Workers>),
    Cluster(Arc<Cluster>),
}

impl Deployment {
    /// Connects, and waits for the first attempt.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        match self {
            Self::Single(workers) => workers.open().await,
            Self::Cluster(cluster) => cluster.open().await,
        }
    }

    /// Connects in the background. Outside a Tokio runtime, the first request connects.
    pub(super) fn open_in_background(&self) {
        match self {
            Self::Single(workers) => drop(workers.start(usize::MAX)),
            Self::Cluster(cluster) => cluster.refresh(),
        }
    }

    /// Sends `request` to the script, to be decided by Redis' own clock or by the `clock` of a test. Returns its
    /// instant (in µs) and its reply.
    pub(super) async fn ask(&self, clock: Option<[u8; 16]>, request: Request) -> Result<(u64, Reply), Fault> {
        let slot = if self.is_cluster() { request.slot() } else { 0 };
        match self.send(slot, Command::Script(clock, smallvec![request])).await? {
            CommandReply::Script(now, reply) => Ok((now, reply)),
            CommandReply::Other(_) => Err(Fault::Reply("expected a reply of the script")),
        }
    }

    /// Sends another command, to the server of a slot.
    #[cfg(feature = "rules")]
    pub(super) async fn query(&self, slot: u16, query: &Cmd) -> Result<Value, Fault> {
        match self.send(slot, Command::Other(query.clone())).await? {
            CommandReply::Other(value) => Ok(value),
            CommandReply::Script(..) => Err(Fault::Reply("expected a reply to a query")),
        }
    }

    async fn send(&self, slot: u16, command: Command) -> Result<CommandReply, Fault> {
        match self {
            Self::Single(workers) => workers.send(slot, command, false).await,
            // Boxed, because this future is larger than that of a single server.
            Self::Cluster(cluster) => Box::pin(cluster.send(slot, command)).await,
        }
    }

    /// Returns the master of a Cluster that has the key, if it is known.
    pub(super) fn node(&self, key: KeyHash) -> Option<Node> {
        match self {
            Self::Single(_) => None,
            Self::Cluster(cluster) => cluster.node(slot::of_key(key)),
        }
    }

    /// Returns the number of requests that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Single(workers) => workers.waiting(),
            Self::Cluster(cluster) => cluster.waiting(),
        }
    }

    /// Returns whether keys have slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
