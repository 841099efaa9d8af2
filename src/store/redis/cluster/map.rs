//! What is known of a Cluster's masters.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_redis::redis::Value;
use deadpool_redis::redis::cluster::NodeAddress;
use tokio::time::Instant;

use super::seeds::Seeds;
use crate::node::Node;
use crate::store::redis::error::Fault;
use crate::store::redis::queue::Queue;
use crate::store::redis::server::Server;
use crate::store::redis::slot::SLOTS;

#[derive(Default)]
pub(super) struct Map {
    pub(super) masters: HashMap<NodeAddress, Arc<Master>>,
    /// The master of each slot.
    pub(super) owners: Vec<Option<Arc<Master>>>,
    /// Whether someone asks for all that.
    pub(super) learning: bool,
    /// When it was last asked for.
    pub(super) asked: Option<Instant>,
    /// How often, so that it is not always the same who are asked.
    pub(super) times: usize,
}

pub(super) struct Master {
    pub(super) address: NodeAddress,
    /// Its address as a circuit breaker, a log or an event names it.
    pub(super) node: Node,
    pub(super) queue: Arc<Queue>,
}

impl Map {
    pub(super) fn master(&mut self, address: NodeAddress, seeds: &Seeds) -> Result<Arc<Master>, Fault> {
        if let Some(master) = self.masters.get(&address) {
            return Ok(master.clone());
        }
        let master = Arc::new(Master::new(address.clone(), seeds)?);
        self.masters.insert(address, master.clone());
        Ok(master)
    }

    /// Notes who owns which slots, and forgets who owns none.
    pub(super) fn note(&mut self, ranges: Vec<Range>, seeds: &Seeds) -> Result<(), Fault> {
        let mut owners = vec![None; SLOTS];
        for (first, last, address) in &ranges {
            let master = self.master(address.clone(), seeds)?;
            owners[*first..=*last].fill(Some(master));
        }
        self.masters.retain(|address, _| ranges.iter().any(|(.., owner)| owner == address));
        self.owners = owners;
        Ok(())
    }
}

impl Master {
    pub(super) fn new(address: NodeAddress, seeds: &Seeds) -> Result<Self, Fault> {
        let connections = seeds.connections_to(&address)?;
        let node = Node::new(format!("{}:{}", address.host(), address.port()));
        Ok(Self { address, node, queue: Queue::new(Server::Master(connections), seeds.queue_capacity) })
    }
}

/// The first and the last slot of a range, and its master.
pub(super) type Range = (usize, usize, NodeAddress);

/// The ranges that `CLUSTER SLOTS` lists, as told by a master on `host`.
pub(super) fn owners(slots: &Value, host: &str) -> Result<Vec<Range>, Fault> {
    let Value::Array(ranges) = slots else { return Err(Fault::Reply("no slots")) };
    let mut owners = Vec::new();
    for range in ranges {
        let Value::Array(range) = range else { return Err(Fault::Reply("no range of slots")) };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
            return Err(Fault::Reply("no range of slots"));
        };
        let (Ok(first), Ok(last)) = (usize::try_from(*first), usize::try_from(*last)) else {
            return Err(Fault::Reply("no range of slots"));
        };
        let [of, Value::Int(port), ..] = &master[..] else { return Err(Fault::Reply("no master of slots")) };
        let (Ok(port), true) = (u16::try_from(*port), first <= last && last < SLOTS) else {
            return Err(Fault::Reply("no range of slots"));
        };
        let host = match of {
            Value::BulkString(name) if name == b"?" => continue,
            Value::BulkString(name) if !name.is_empty() => String::from_utf8_lossy(name).into_owned(),
            // A master that knows no host of another means its own.
            _ => host.to_owned(),
        };
        owners.push((first, last, NodeAddress::new(host, port)));
    }
    Ok(owners)
}
