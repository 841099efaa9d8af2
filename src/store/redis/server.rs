//! What a queue's calls go to.

use std::collections::BTreeMap;

use deadpool_redis::redis::{Cmd, Value, cmd};
use futures_util::future::join_all;

use super::connection::Connections;
use super::error::Fault;
use super::script::{Request, TimedReply};

#[derive(Debug)]
pub(super) enum Server {
    /// One that holds all keys: what leaves together is one call.
    Single(Connections),
    /// A master of a Cluster, whose calls may carry keys of one slot each.
    Master(Connections),
}

impl Server {
    /// Connects, if that was not done yet.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        self.connections().open().await
    }

    pub(super) fn open_in_background(&self) {
        self.connections().open_in_background();
    }

    /// Has the script decide `requests`, which takes one round trip.
    pub(super) async fn call(&self, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
        match self {
            Self::Single(connections) => one(connections, clock, requests).await,
            // Boxed, or else whoever asks a single server would have room for it.
            Self::Master(connections) => Box::pin(by_slot(connections, clock, requests)).await,
        }
    }

    /// Has a master decide a request whose slot another one is moving to it.
    pub(super) async fn call_asking(&self, clock: &[u8], request: &Request) -> TimedReply {
        let replies = self.connections().call_asking(clock, std::slice::from_ref(request)).await?;
        replies.timed().pop().unwrap_or(Err(Fault::Reply("nothing")))
    }

    /// Which masters a Cluster has, as one of them sees it.
    pub(super) async fn slots(&self) -> Result<Value, Fault> {
        self.query(cmd("CLUSTER").arg("SLOTS")).await
    }

    /// What it answers to something else.
    pub(super) async fn query(&self, query: &Cmd) -> Result<Value, Fault> {
        self.connections().query(query).await
    }

    fn connections(&self) -> &Connections {
        let (Self::Single(connections) | Self::Master(connections)) = self;
        connections
    }
}

async fn one(connections: &Connections, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
    match connections.call(clock, requests).await {
        Ok(replies) => replies.timed(),
        Err(fault) => vec![Err(fault); requests.len()],
    }
}

async fn by_slot(connections: &Connections, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
    let mut slots = BTreeMap::<_, Vec<usize>>::new();
    for (place, request) in requests.iter().enumerate() {
        slots.entry(request.slot()).or_default().push(place);
    }
    if slots.len() == 1 {
        return of_slot(connections, clock, requests).await;
    }
    let calls = slots.into_values().map(|places| async move {
        let together: Vec<_> = places.iter().map(|&place| requests[place].clone()).collect();
        (places, of_slot(connections, clock, &together).await)
    });
    let mut replies: Vec<TimedReply> = vec![Err(Fault::Reply("nothing")); requests.len()];
    for (places, of_slot) in join_all(calls).await {
        for (place, reply) in places.into_iter().zip(of_slot) {
            replies[place] = reply;
        }
    }
    replies
}

async fn of_slot(connections: &Connections, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
    let replies = one(connections, clock, requests).await;
    // A slot that is being moved has keys in two places, but each key in one. Were all redirected together, those that
    // have not left yet would begin anew at their new place.
    if requests.len() > 1 && replies.iter().all(|reply| reply.as_ref().is_err_and(Fault::is_half_moved)) {
        let alone = requests.iter().map(|request| one(connections, clock, std::slice::from_ref(request)));
        return join_all(alone).await.into_iter().flatten().collect();
    }
    replies
}
