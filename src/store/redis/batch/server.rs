//! The server that a queue sends its calls to.

use std::collections::BTreeMap;

use deadpool_redis::redis::{Cmd, Value, cmd};
use futures_util::future::join_all;

use crate::store::redis::connection::ConnectionPool;
use crate::store::redis::error::Fault;
use crate::store::redis::script::{Request, TimedReply};

#[derive(Debug)]
pub(in crate::store::redis) enum Server {
    /// A server that holds all keys, so that any requests can share a call.
    Single(ConnectionPool),
    /// A master of a Cluster, where only requests of one slot can share a call.
    Master(ConnectionPool),
}

impl Server {
    /// Connects, unless it is connected.
    pub(in crate::store::redis) async fn open(&self) -> Result<(), Fault> {
        self.connections().open().await
    }

    pub(in crate::store::redis) fn open_in_background(&self) {
        self.connections().open_in_background();
    }

    /// Has the script perform `requests`, in one round trip.
    pub(in crate::store::redis) async fn call(&self, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
        match self {
            Self::Single(connections) => call(connections, clock, requests).await,
            // Boxed, because this future is larger than that of a single server.
            Self::Master(connections) => Box::pin(call_by_slot(connections, clock, requests)).await,
        }
    }

    /// Has a master perform a request whose slot is being migrated to it.
    pub(in crate::store::redis) async fn call_asking(&self, clock: &[u8], request: &Request) -> TimedReply {
        let replies = self.connections().call_asking(clock, std::slice::from_ref(request)).await?;
        replies.timed().pop().unwrap_or(Err(Fault::Reply("expected more replies")))
    }

    /// Returns the reply to `CLUSTER SLOTS`, with `asking` after `ASKING`.
    pub(in crate::store::redis) async fn slots(&self, asking: bool) -> Result<Value, Fault> {
        self.query(cmd("CLUSTER").arg("SLOTS"), asking).await
    }

    /// Sends another command. With `asking`, the slot of its key may be one that is being migrated to this server.
    pub(in crate::store::redis) async fn query(&self, query: &Cmd, asking: bool) -> Result<Value, Fault> {
        self.connections().query(query, asking).await
    }

    fn connections(&self) -> &ConnectionPool {
        let (Self::Single(connections) | Self::Master(connections)) = self;
        connections
    }
}

async fn call(connections: &ConnectionPool, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
    match connections.call(clock, requests).await {
        Ok(replies) => replies.timed(),
        Err(fault) => vec![Err(fault); requests.len()],
    }
}

async fn call_by_slot(connections: &ConnectionPool, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
    let mut slots = BTreeMap::<_, Vec<usize>>::new();
    for (place, request) in requests.iter().enumerate() {
        slots.entry(request.slot()).or_default().push(place);
    }
    if slots.len() == 1 {
        return call_slot(connections, clock, requests).await;
    }
    let calls = slots.into_values().map(|places| async move {
        let together: Vec<_> = places.iter().map(|&place| requests[place].clone()).collect();
        (places, call_slot(connections, clock, &together).await)
    });
    let mut replies: Vec<TimedReply> = vec![Err(Fault::Reply("expected more replies")); requests.len()];
    for (places, slot_replies) in join_all(calls).await {
        for (place, reply) in places.into_iter().zip(slot_replies) {
            replies[place] = reply;
        }
    }
    replies
}

async fn call_slot(connections: &ConnectionPool, clock: &[u8], requests: &[Request]) -> Vec<TimedReply> {
    let replies = call(connections, clock, requests).await;
    // The keys of a slot that is being migrated are on two servers. If all requests were redirected together, keys that
    // have not been migrated yet would lose their state.
    if requests.len() > 1 && replies.iter().all(|reply| reply.as_ref().is_err_and(Fault::is_half_moved)) {
        let alone = requests.iter().map(|request| call(connections, clock, std::slice::from_ref(request)));
        return join_all(alone).await.into_iter().flatten().collect();
    }
    replies
}
