//! Where the keys are: on one server, or spread over the masters of a Cluster.

use std::sync::Arc;

#[cfg(feature = "rules")]
use deadpool_redis::redis::{Cmd, Value};
use futures_util::future::Either;

use super::cluster::Cluster;
use super::error::Fault;
use super::queue::Queue;
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
    /// Connects.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        match self {
            Self::Single(queue) => queue.server().open().await,
            Self::Cluster(cluster) => cluster.open().await,
        }
    }

    /// The same in the background.
    pub(super) fn open_in_background(&self) {
        match self {
            Self::Single(queue) => queue.server().open_in_background(),
            Self::Cluster(cluster) => cluster.open_in_background(),
        }
    }

    /// What the script says of `request`, by Redis' own clock or one that is handed in.
    pub(super) fn ask(
        &self,
        clock: Option<[u8; 24]>,
        request: Request,
    ) -> impl Future<Output = TimedReply> + Send + '_ {
        match self {
            Self::Single(queue) => Either::Left(queue.ask(clock, request)),
            // Boxed, or else those who ask a single server would have room for it.
            Self::Cluster(cluster) => Either::Right(Box::pin(cluster.ask(clock, request))),
        }
    }

    /// What is said of something else about a slot.
    #[cfg(feature = "rules")]
    pub(super) async fn query(&self, slot: u16, query: &Cmd) -> Result<Value, Fault> {
        match self {
            Self::Single(queue) => queue.server().query(query).await,
            Self::Cluster(cluster) => cluster.query(slot, query).await,
        }
    }

    /// The master of a Cluster that has the key, if that is known.
    pub(super) fn node(&self, key: KeyHash) -> Option<Node> {
        match self {
            Self::Single(_) => None,
            Self::Cluster(cluster) => cluster.node(slot::of_key(key)),
        }
    }

    /// Whether no call may carry keys of different slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
