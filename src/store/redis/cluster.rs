//! The slots of a Cluster: sends requests to their masters, and follows redirections.
//!
//! This module replaces the Cluster client of redis-rs, which repeats requests that may have run (after timeouts and
//! lost connections) up to 16 times. Even without retries, that client blocks the requests of all slots while it looks
//! for the owner of one, for as long as any master hangs; and a pool of such clients sends a PING to all masters at
//! each use. Here, each master has a queue and workers of its own, like a single server, so a master that hangs does
//! not block requests to others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join_all, select_ok};
use redis::cluster::NodeAddress;
use redis::{ConnectionInfo, FromRedisValue, Value, cmd, from_redis_value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::config::RedisConfig;
use super::error::Fault;
use super::queue::{Command, CommandReply};
use super::workers::Workers;
use crate::decision::Outcome;
use crate::error::Node;
use crate::key::hash::KeyHash;

/// The maximum number of redirections of a request. A slot that moves causes one or two.
const MAX_REDIRECTS: usize = 5;

/// The minimum time between two loads of the slots. In between, requests whose master is unknown fail at once.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// The number of masters that are queried for the slots concurrently.
const CONCURRENCY: usize = 2;

pub(super) struct Cluster {
    seeds: Vec<NodeAddress>,
    config: RedisConfig,
    slots: Mutex<SlotMap>,
    /// Locked while the slots are loaded in the background.
    loading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct SlotMap {
    masters: HashMap<NodeAddress, Arc<Master>>,
    /// The master of each slot.
    owners: Vec<Option<Arc<Master>>>,
    /// The end of the last load in the background, and its fault if it failed.
    loaded: Option<(Instant, Option<Arc<Fault>>)>,
    /// The number of loads, so that each queries other masters first.
    loads: usize,
}

struct Master {
    address: NodeAddress,
    /// Its address in circuit breakers, logs and events.
    node: Node,
    workers: Workers,
}

impl Cluster {
    /// Creates the client of a Cluster with at least one seed. The connections to all masters have the settings of the
    /// first one.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Setting`] if a seed has no host and port.
    pub(super) fn new(seeds: Vec<ConnectionInfo>, config: RedisConfig) -> Result<Self, Fault> {
        let address = |seed: ConnectionInfo| {
            NodeAddress::try_from(seed.addr()).map_err(|_| {
                let address = seed.addr();
                Fault::setting(format_args!(
                    "a Cluster is not reachable through the Unix socket {address}: write redis://host:port"
                ))
            })
        };
        let seeds = seeds.into_iter().map(address).collect::<Result<_, _>>()?;
        let (slots, loading) = Default::default();
        Ok(Self { seeds, config, slots, loading })
    }

    /// Loads the slots from one of the seeds, and connects to all masters.
    ///
    /// # Errors
    ///
    /// Returns an error if a permission is missing, or if half of the masters or more can't be used: a Cluster works
    /// without a few of them only.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        self.load().await?;
        let masters = self.masters();
        let opened = join_all(masters.iter().map(|master| master.open())).await;
        let faults: Vec<_> = opened.into_iter().filter_map(Result::err).collect();
        let is_down = 2 * faults.len() >= masters.len();
        match faults.into_iter().find(|(_, fault)| is_down || fault.lacks_permission()) {
            None => Ok(()),
            Some((node, fault)) => {
                let is_unreachable = fault.is_unreachable();
                let fault = Box::new(Fault::At(node, Box::new(fault)));
                Err(if is_unreachable { Fault::Announced(fault) } else { *fault })
            }
        }
    }

    /// Returns the number of jobs that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.masters().iter().map(|master| master.workers.waiting()).sum()
    }

    /// Returns the master of a slot, if it is known.
    pub(super) fn node(&self, slot: u16) -> Option<Node> {
        Some(self.owner(slot)?.node.clone())
    }

    /// Sends a command to the master of a slot.
    ///
    /// It is sent to another master only if the first one redirected it or it could not be sent, so that it cannot have
    /// run.
    pub(super) async fn send(self: &Arc<Self>, slot: u16, command: Command) -> Result<CommandReply, Fault> {
        let mut in_flight = UnansweredCall { cluster: Some(self) };
        let (mut master, mut asking) = (self.find_owner(slot).await?, false);
        let mut redirects = 0..MAX_REDIRECTS;
        let answer = loop {
            let answer = master.workers.send(slot, command.clone(), asking).await;
            let Err(fault) = &answer else { break answer };
            if redirects.next().is_none() {
                break answer;
            }
            (master, asking) = match fault.redirect() {
                Some((address, asking)) => {
                    let owner = self.master(address, &master)?;
                    if !asking {
                        if let Some(known) = self.slots().owners.get_mut(usize::from(slot)) {
                            *known = Some(owner.clone());
                        }
                        // Other slots of this master may have moved too.
                        self.refresh();
                    }
                    (owner, asking)
                }
                None => {
                    if fault.concerns_server() {
                        self.refresh();
                    }
                    if !fault.is_unsent() {
                        break answer;
                    }
                    drop(self.loading.lock().await);
                    match self.owner(slot) {
                        Some(owner) if !Arc::ptr_eq(&owner, &master) => (owner, false),
                        _ => break answer,
                    }
                }
            };
        };
        in_flight.cluster = None;
        answer.map_err(|fault| {
            let is_lost = fault.has_code(&["MOVED"]);
            Fault::At(master.node.clone(), Box::new(if is_lost { Fault::Slot(slot) } else { fault }))
        })
    }

    /// Returns the master of a slot. If it is not known, loads the slots.
    async fn find_owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Master>, Fault> {
        if self.owner(slot).is_none() {
            self.refresh();
            drop(self.loading.lock().await);
        }
        self.owner(slot).ok_or_else(|| match &self.slots().loaded {
            Some((_, Some(fault))) if fault.is_unsent() => Fault::clone(fault),
            Some((_, Some(fault))) => Fault::Connect(fault.clone()),
            _ => Fault::Slot(slot),
        })
    }

    fn owner(&self, slot: u16) -> Option<Arc<Master>> {
        self.slots().owners.get(usize::from(slot))?.clone()
    }

    fn masters(&self) -> Vec<Arc<Master>> {
        self.slots().masters.values().cloned().collect()
    }

    fn slots(&self) -> MutexGuard<'_, SlotMap> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the master at `address`, as reported `by` another one.
    fn master(&self, address: &str, by: &Master) -> Result<Arc<Master>, Fault> {
        // An address without a host is on the host of the master that reported it.
        let host = if address.starts_with(':') { by.address.host() } else { "" };
        let address = NodeAddress::try_from(format!("{host}{address}").as_str())?;
        Ok(self.known_or_new(&mut self.slots(), address))
    }

    /// Returns the master at `address`, which is added if it is new.
    fn known_or_new(&self, slots: &mut SlotMap, address: NodeAddress) -> Arc<Master> {
        slots.masters.entry(address.clone()).or_insert_with(|| Arc::new(self.new_master(address))).clone()
    }

    fn new_master(&self, address: NodeAddress) -> Master {
        let workers = Workers::new(&self.config, Some(address.clone()));
        Master { node: Node::new(address.to_string()), address, workers }
    }

    /// Loads the slots in the background, in a separate task, because requests may be dropped at any time. Does nothing
    /// if they have just been loaded, or outside a Tokio runtime.
    pub(super) fn refresh(self: &Arc<Self>) {
        let (Ok(runtime), Ok(loading)) = (Handle::try_current(), self.loading.clone().try_lock_owned()) else { return };
        if self.slots().loaded.as_ref().is_some_and(|(loaded, _)| loaded.elapsed() < MIN_INTERVAL) {
            return;
        }
        let cluster = self.clone();
        runtime.spawn(async move {
            // Requests for unknown slots report the fault.
            let fault = cluster.load().await.err().map(Arc::new);
            cluster.slots().loaded = Some((Instant::now(), fault));
            drop(loading);
        });
    }

    /// Loads the masters of all slots, from known masters or else from the seeds.
    async fn load(&self) -> Result<(), Fault> {
        let mut known = self.masters();
        {
            let mut slots = self.slots();
            slots.loads = slots.loads.wrapping_add(1);
            let first = slots.loads % known.len().max(1);
            known.rotate_left(first);
        }
        for masters in known.chunks(CONCURRENCY) {
            if let Ok(ranges) = load_from(masters).await {
                self.replace_owners(ranges);
                return Ok(());
            }
        }
        let seeds = self.seeds.iter().map(|address| Arc::new(self.new_master(address.clone())));
        self.replace_owners(load_from(&seeds.collect::<Vec<_>>()).await?);
        Ok(())
    }

    /// Replaces the owners of all slots, and removes masters without slots.
    fn replace_owners(&self, ranges: Vec<SlotRange>) {
        let mut slots = self.slots();
        let mut owners = vec![None; SLOTS];
        for (first, last, address) in &ranges {
            let master = self.known_or_new(&mut slots, address.clone());
            owners[*first..=*last].fill(Some(master));
        }
        slots.masters.retain(|address, _| ranges.iter().any(|(.., owner)| owner == address));
        slots.owners = owners;
    }
}

/// Returns the slots as the first of `masters` to answer lists them.
async fn load_from(masters: &[Arc<Master>]) -> Result<Vec<SlotRange>, Fault> {
    Ok(select_ok(masters.iter().map(|master| Box::pin(master.load_slots(false)))).await?.0)
}

impl Master {
    /// Opens all connections, and checks the permissions that a Cluster requires.
    async fn open(&self) -> Result<(), (Node, Fault)> {
        let opened = async {
            self.workers.open().await?;
            // `ASKING` is needed only while slots move.
            self.load_slots(true).await
        };
        opened.await.map(drop).map_err(|fault| (self.node.clone(), fault))
    }

    /// Returns the slots of all masters; with `asking`, after `ASKING`.
    async fn load_slots(&self, asking: bool) -> Result<Vec<SlotRange>, Fault> {
        let command = Command::Other(cmd("CLUSTER").arg("SLOTS").clone());
        let slots = self.workers.send(0, command, asking).await?.into_value()?;
        match parse_ranges(slots, self.address.host()) {
            // As of a node that has lost its configuration.
            Some(ranges) if ranges.is_empty() => Err(Fault::Slot(0)),
            ranges => ranges.ok_or(Fault::Reply("expected ranges of slots")),
        }
    }
}

/// The first and the last slot of a range, and its master.
type SlotRange = (usize, usize, NodeAddress);

/// Parses the reply of a master on `host` to `CLUSTER SLOTS`.
fn parse_ranges(slots: Value, host: &str) -> Option<Vec<SlotRange>> {
    fn parse<T: FromRedisValue>(value: Option<&Value>) -> Option<T> {
        from_redis_value(value?.clone()).ok()
    }
    let mut ranges = Vec::new();
    for range in from_redis_value::<Vec<Vec<Value>>>(slots).ok()? {
        let (first, last, master) = (parse(range.first())?, parse(range.get(1))?, parse::<Vec<Value>>(range.get(2))?);
        if first > last || last >= SLOTS {
            return None;
        }
        // A range without a host is on the host of the master that replied.
        let name = parse::<Option<String>>(master.first())?.filter(|name| !name.is_empty());
        if name.as_deref() != Some("?") {
            let name = name.unwrap_or_else(|| host.to_owned());
            ranges.push((first, last, NodeAddress::new(name, parse(master.get(1))?)));
        }
    }
    Some(ranges)
}

/// Loads the slots if a request is dropped before its reply: its master may hang, and a replica may have taken over.
struct UnansweredCall<'a> {
    cluster: Option<&'a Arc<Cluster>>,
}

impl Drop for UnansweredCall<'_> {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster {
            cluster.refresh();
        }
    }
}

/// The number of slots of a Cluster.
const SLOTS: usize = 16_384;

/// Returns the Cluster slot of the key `name`, which is computed from the text in its first braces, or from the whole
/// name if that text is empty.
pub(super) fn slot_of(name: &str) -> u16 {
    let braces = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let tag = braces.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(name);
    crc16(tag.as_bytes()) % SLOTS as u16
}

/// Returns the slot of a subject's keys. Their names have the hash of the subject in braces.
pub(super) fn slot_of_key(key: KeyHash) -> u16 {
    slot_of(&format!("{{{:032x}}}", key.as_u128()))
}

/// Returns the positions of the charges of each slot.
pub(super) fn group_by_slot(charges: &[Outcome]) -> Vec<Vec<usize>> {
    let mut slots = BTreeMap::<_, Vec<_>>::new();
    for (position, charge) in charges.iter().enumerate() {
        slots.entry(slot_of_key(charge.key())).or_default().push(position);
    }
    slots.into_values().collect()
}

/// Computes CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;
    use redis::cluster_routing::Slot;

    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::decision::Charge;
    use crate::key::hash::KeyHasher;
    use crate::store::escape;
    use crate::store::redis::request::name;
    use crate::store::redis::tests::named;

    #[test]
    fn a_redirection_without_a_host_is_to_that_of_the_server_that_sent_it() {
        let seed = "redis://10.0.0.5:6379".into_connection_info().unwrap();
        let cluster = Cluster::new(vec![seed], RedisConfig::cluster([""])).unwrap();
        let by = cluster.new_master(cluster.seeds[0].clone());
        for (address, expected) in [(":6380", "10.0.0.5:6380"), ("10.0.0.6:6380", "10.0.0.6:6380")] {
            assert_eq!(cluster.master(address, &by).unwrap().address.to_string(), expected);
        }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of("123456789"), 0x31c3);
        for name in ["", "foo", "{foo}", "a{foo}b", "{}foo", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "a}b{c"] {
            assert_eq!(Slot::new(slot_of(name)), Some(Slot::for_key(name)), "{name:?}");
        }
    }

    #[test]
    fn limits_of_one_key_share_a_slot() {
        let hasher = KeyHasher::with_secret([1; 16]);
        for subject in 0..50_u8 {
            let subject = hasher.hash(&[subject]);
            for limit in ["a", "{", "}", "{}", "{a}", "}{b}", "a:b {x}*", "{00000000000000000000000000000000}"] {
                let charge = Charge::new(0, limit, FixedWindow::per_day(1).into(), &hasher).with_key(subject, 1);
                let charges = named(limit, &[charge]);
                for prefix in ["ratelimit", "{p}", "{}"] {
                    assert_eq!(
                        slot_of(&name(&escape(prefix), &charges, 0)),
                        slot_of_key(subject),
                        "{prefix:?} {limit:?}"
                    );
                }
            }
        }
    }
}
