//! Where the keys are: on one server, or spread over the masters of a Cluster.

use std::sync::Arc;

use super::cluster::Cluster;
use super::queue::Queue;
use super::script::{Reply, Request};

#[derive(Clone, Debug)]
pub(super) enum Deployment {
    Single(Arc<Queue>),
    Cluster(Arc<Cluster>),
}

impl Deployment {
    /// What the script says of `request`, by Redis' own clock or one that is handed in.
    pub(super) async fn ask(&self, clock: Option<[u8; 24]>, request: Request) -> Reply {
        match self {
            Self::Single(queue) => queue.reply(clock, request).await,
            Self::Cluster(cluster) => cluster.ask(clock, request).await,
        }
    }

    /// Whether no call may carry keys of different slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
