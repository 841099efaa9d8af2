//! The masters of a Cluster and their slots.

use std::collections::HashMap;
use std::sync::Arc;

use deadpool_redis::redis::Value;
use deadpool_redis::redis::cluster::NodeAddress;
use tokio::time::Instant;

use super::seeds::Seeds;
use crate::node::Node;
use crate::store::redis::batch::{Queue, Server};
use crate::store::redis::error::Fault;
use crate::store::redis::slot::SLOTS;

#[derive(Default)]
pub(super) struct SlotMap {
    pub(super) masters: HashMap<NodeAddress, Arc<Master>>,
    /// The master of each slot.
    pub(super) owners: Vec<Option<Arc<Master>>>,
    /// Whether a load is under way.
    pub(super) is_loading: bool,
    /// The end of the last load.
    pub(super) loaded: Option<Instant>,
    /// The number of loads, so that each queries other masters first.
    pub(super) loads: usize,
    /// The fault of the last load, if it failed.
    pub(super) load_fault: Option<Arc<Fault>>,
}

pub(super) struct Master {
    pub(super) address: NodeAddress,
    /// Its address in circuit breakers, logs and events.
    pub(super) node: Node,
    pub(super) queue: Arc<Queue>,
}

impl SlotMap {
    /// Returns the master at `address`, which is added if it is new.
    pub(super) fn master(&mut self, address: NodeAddress, seeds: &Seeds) -> Result<Arc<Master>, Fault> {
        if let Some(master) = self.masters.get(&address) {
            return Ok(master.clone());
        }
        let master = Arc::new(Master::new(address.clone(), seeds)?);
        self.masters.insert(address, master.clone());
        Ok(master)
    }

    /// Replaces the owners of all slots, and removes masters without slots.
    pub(super) fn replace(&mut self, ranges: Vec<SlotRange>, seeds: &Seeds) -> Result<(), Fault> {
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
pub(super) type SlotRange = (usize, usize, NodeAddress);

const INVALID_RANGES: Fault = Fault::Reply("expected ranges of slots");

/// Parses the reply of a master on `host` to `CLUSTER SLOTS`.
pub(super) fn parse_slots(slots: &Value, host: &str) -> Result<Vec<SlotRange>, Fault> {
    let Value::Array(ranges) = slots else { return Err(INVALID_RANGES) };
    let mut parsed = Vec::new();
    for range in ranges {
        let Value::Array(range) = range else { return Err(INVALID_RANGES) };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else {
            return Err(INVALID_RANGES);
        };
        let (Ok(first), Ok(last)) = (usize::try_from(*first), usize::try_from(*last)) else {
            return Err(INVALID_RANGES);
        };
        let [host_value, Value::Int(port), ..] = &master[..] else { return Err(INVALID_RANGES) };
        let Ok(port) = u16::try_from(*port) else { return Err(INVALID_RANGES) };
        if first > last || last >= SLOTS {
            return Err(INVALID_RANGES);
        }
        let host = match host_value {
            Value::BulkString(name) if name == b"?" => continue,
            Value::BulkString(name) if !name.is_empty() => String::from_utf8_lossy(name).into_owned(),
            // A range without a host is on the host of the master that replied.
            _ => host.to_owned(),
        };
        parsed.push((first, last, NodeAddress::new(host, port)));
    }
    Ok(parsed)
}
