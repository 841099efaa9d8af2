//! Sends requests to the masters of their slots, and follows redirections.

use std::sync::Arc;

#[cfg(feature = "rules")]
use deadpool_redis::redis::{Cmd, Value};
use futures_util::future::join_all;

use super::seeds::Seeds;
use super::topology::Topology;
use crate::node::Node;
use crate::store::redis::error::{Fault, Redirect};
use crate::store::redis::script::{Request, TimedReply};

/// The maximum number of redirections of a request. A slot that moves causes one or two.
const MAX_REDIRECTS: usize = 5;

#[derive(Debug)]
pub(in crate::store::redis) struct Cluster(Arc<Topology>);

impl Cluster {
    pub(in crate::store::redis) fn new(seeds: Seeds) -> Arc<Self> {
        Arc::new(Self(Topology::new(seeds)))
    }

    /// Loads the topology from one of the seeds, and connects to all masters.
    pub(in crate::store::redis) async fn open(&self) -> Result<(), Fault> {
        self.0.load().await?;
        let masters = self.0.masters();
        let checks = masters.iter().map(|master| async move {
            let server = master.queue.server();
            server.open().await?;
            // `ASKING` is needed only while slots move.
            server.slots(true).await.map(drop)
        });
        for (master, check) in masters.iter().zip(join_all(checks).await) {
            // A master that does not answer now may do so when it is needed.
            if let Err(fault) = check
                && fault.is_denied()
            {
                return Err(Fault::At(master.node.clone(), Box::new(fault)));
            }
        }
        Ok(())
    }

    /// Loads the topology in the background. Outside a Tokio runtime, the first request loads it.
    pub(in crate::store::redis) fn open_in_background(&self) {
        self.0.refresh();
    }

    /// Returns the number of requests that wait to be sent.
    pub(in crate::store::redis) fn queued(&self) -> usize {
        self.0.masters().iter().map(|master| master.queue.waiting()).sum()
    }

    /// Sends `request` to the script on the master of its slot, and returns the reply.
    ///
    /// The request is sent to another master only if the first one redirected it or it could not be sent, so that it
    /// cannot have run.
    pub(in crate::store::redis) async fn ask(&self, clock: Option<[u8; 16]>, request: Request) -> TimedReply {
        let slot = request.slot();
        let mut in_flight = InFlightGuard { topology: Some(&self.0) };
        let mut master = self.0.find_owner(slot).await?;
        let mut asking = false;
        let mut redirects = 0;
        let reply = loop {
            let reply = if asking {
                master.queue.ask_importing(clock, &request).await
            } else {
                master.queue.ask(clock, request.clone()).await
            };
            let Err(fault) = &reply else { break reply };
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                break reply;
            }
            (master, asking) = match fault.redirect() {
                Some(Redirect::Moved(address)) => {
                    let master = self.0.set_owner(slot, address, &master)?;
                    // Other slots of this master may have moved too.
                    self.0.refresh();
                    (master, false)
                }
                Some(Redirect::Ask(address)) => (self.0.master(address, &master)?, true),
                None if !fault.concerns_server() => break reply,
                None => {
                    let refreshed = self.0.refresh();
                    if !fault.is_unsent() {
                        break reply;
                    }
                    if let Some(mut refreshed) = refreshed {
                        let _ = refreshed.changed().await;
                    }
                    match self.0.owner(slot) {
                        Some(owner) if !Arc::ptr_eq(&owner, &master) => (owner, false),
                        _ => break reply,
                    }
                }
            };
        };
        in_flight.topology = None;
        reply.map_err(|fault| Fault::At(master.node.clone(), Box::new(fault)))
    }

    /// Returns the master of a slot, if it is known.
    pub(in crate::store::redis) fn node(&self, slot: u16) -> Option<Node> {
        Some(self.0.owner(slot)?.node.clone())
    }

    /// Sends another command to the master of a slot. Follows redirections.
    #[cfg(feature = "rules")]
    pub(in crate::store::redis) async fn query(&self, slot: u16, query: &Cmd) -> Result<Value, Fault> {
        let mut master = self.0.find_owner(slot).await?;
        let mut asking = false;
        let mut redirects = 0;
        loop {
            let reply = master.queue.server().query(query, asking).await;
            let Err(fault) = &reply else { return reply };
            redirects += 1;
            match fault.redirect() {
                Some(Redirect::Moved(address)) if redirects <= MAX_REDIRECTS => {
                    (master, asking) = (self.0.set_owner(slot, address, &master)?, false);
                }
                Some(Redirect::Ask(address)) if redirects <= MAX_REDIRECTS => {
                    (master, asking) = (self.0.master(address, &master)?, true);
                }
                _ => {
                    // So that the next query finds the right master.
                    if fault.concerns_server() {
                        self.0.refresh();
                    }
                    return reply;
                }
            }
        }
    }
}

/// Refreshes the topology if a request is dropped before its reply: its master may hang, and a replica may have taken
/// over.
struct InFlightGuard<'a> {
    topology: Option<&'a Arc<Topology>>,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        if let Some(topology) = self.topology {
            topology.refresh();
        }
    }
}
