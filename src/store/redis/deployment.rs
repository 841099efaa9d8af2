//! The server of a request: the only one, or one of a Cluster's masters.

use std::sync::Arc;

#[cfg(feature = "rules")]
use deadpool_redis::redis::{Cmd, Value};
use futures_util::future::Either;

use super::batch::Queue;
use super::cluster::Cluster;
use super::error::Fault;
use super::script::{Request, TimedReply};
use super::slot;
use crate::hash::KeyHash;
use crate::node::Node;

#[derive(Clone, Debug)]
pub(super) enum Deployment {
    Single(Arc<Queue>),
    Cluster(Arc<Cluster>),
}

impl Deployment {
    /// Connects, and waits for the first attempt.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        match self {
            Self::Single(queue) => queue.server().open().await,
            Self::Cluster(cluster) => cluster.open().await,
        }
    }

    /// Connects in the background.
    pub(super) fn open_in_background(&self) {
        match self {
            Self::Single(queue) => queue.server().open_in_background(),
            Self::Cluster(cluster) => cluster.open_in_background(),
        }
    }

    /// Sends `request` to the script, to be decided by Redis' own clock or by the `clock` of a test. Returns the reply.
    pub(super) fn ask(
        &self,
        clock: Option<[u8; 16]>,
        request: Request,
    ) -> impl Future<Output = TimedReply> + Send + '_ {
        match self {
            Self::Single(queue) => Either::Left(queue.ask(clock, request)),
            // Boxed, because this future is larger than that of a single server.
            Self::Cluster(cluster) => Either::Right(Box::pin(cluster.ask(clock, request))),
        }
    }

    /// Sends another command, to the server of a slot.
    #[cfg(feature = "rules")]
    pub(super) async fn query(&self, slot: u16, query: &Cmd) -> Result<Value, Fault> {
        match self {
            Self::Single(queue) => queue.server().query(query, false).await,
            Self::Cluster(cluster) => cluster.query(slot, query).await,
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
            Self::Single(queue) => queue.waiting(),
            Self::Cluster(cluster) => cluster.queued(),
        }
    }

    /// Returns whether keys have slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
