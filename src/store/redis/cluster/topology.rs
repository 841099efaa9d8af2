//! Finds the masters of a Cluster, and keeps them up to date.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::cluster::NodeAddress;
use futures_util::future::select_ok;
use tokio::sync::watch;
use tokio::time::Instant;

use super::seeds::Seeds;
use super::slot_map::{Master, SlotMap, SlotRange, parse_slots};
use crate::store::redis::error::Fault;

/// The minimum time between two loads. In between, requests whose master is unknown fail at once.
const MIN_INTERVAL: Duration = Duration::from_millis(250);

/// The number of masters that are queried for the slots concurrently.
const CONCURRENCY: usize = 2;

pub(super) struct Topology {
    seeds: Seeds,
    map: Mutex<SlotMap>,
    /// Notified when a refresh is complete or has failed.
    refreshed: watch::Sender<()>,
}

impl Topology {
    pub(super) fn new(seeds: Seeds) -> Arc<Self> {
        Arc::new(Self { seeds, map: Mutex::default(), refreshed: watch::Sender::new(()) })
    }

    /// Returns the master of a slot. If it is not known, refreshes the topology.
    pub(super) async fn find_owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Master>, Fault> {
        if let Some(owner) = self.owner(slot) {
            return Ok(owner);
        }
        if let Some(mut refreshed) = self.refresh() {
            let _ = refreshed.changed().await;
        }
        self.owner(slot).ok_or_else(|| match &self.map().load_fault {
            None => Fault::Slot(slot),
            Some(fault) if fault.is_unsent() => Fault::clone(fault),
            Some(fault) => Fault::Connect(fault.clone()),
        })
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Master>> {
        self.map().owners.get(usize::from(slot))?.clone()
    }

    /// Sets the master of a slot: the one at `address`, as reported `by` another one.
    pub(super) fn set_owner(&self, slot: u16, address: &str, by: &Master) -> Result<Arc<Master>, Fault> {
        let master = self.master(address, by)?;
        if let Some(owner) = self.map().owners.get_mut(usize::from(slot)) {
            *owner = Some(master.clone());
        }
        Ok(master)
    }

    /// Returns the master at `address`, as reported `by` another one.
    pub(super) fn master(&self, address: &str, by: &Master) -> Result<Arc<Master>, Fault> {
        // An address without a host is on the host of the master that reported it.
        let port = address.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let address = match port {
            Some(_) => NodeAddress::try_from(format!("{}{address}", by.address.host()).as_str())?,
            None => NodeAddress::try_from(address)?,
        };
        self.map().master(address, &self.seeds)
    }

    /// Loads the topology in the background, in a separate task, because requests may be dropped at any time. Returns a
    /// receiver that changes when the load is complete; or `None` if the topology has just been loaded, or outside a
    /// Tokio runtime.
    pub(super) fn refresh(self: &Arc<Self>) -> Option<watch::Receiver<()>> {
        let refreshed = self.refreshed.subscribe();
        let mut map = self.map();
        if map.is_loading {
            return Some(refreshed);
        }
        if map.loaded.is_some_and(|loaded| loaded.elapsed() < MIN_INTERVAL) {
            return None;
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        map.is_loading = true;
        drop(map);
        let loading = Loading(self.clone());
        runtime.spawn(async move {
            // Requests for unknown slots report the fault.
            let fault = loading.0.load().await.err();
            loading.0.map().load_fault = fault.map(Arc::new);
        });
        Some(refreshed)
    }

    /// Loads the masters of all slots, from known masters or else from the seeds.
    pub(super) async fn load(&self) -> Result<(), Fault> {
        let known = {
            let mut map = self.map();
            map.loads = map.loads.wrapping_add(1);
            let mut known: Vec<_> = map.masters.values().cloned().collect();
            let first = map.loads % known.len().max(1);
            known.rotate_left(first);
            known
        };
        for masters in known.chunks(CONCURRENCY) {
            if let Ok(owners) = load_from(masters).await {
                return self.map().replace(owners, &self.seeds);
            }
        }
        let seeds = self.seeds.addresses.iter().map(|address| Master::new(address.clone(), &self.seeds).map(Arc::new));
        let owners = load_from(&seeds.collect::<Result<Vec<_>, _>>()?).await?;
        self.map().replace(owners, &self.seeds)
    }

    pub(super) fn masters(&self) -> Vec<Arc<Master>> {
        self.map().masters.values().cloned().collect()
    }

    fn map(&self) -> MutexGuard<'_, SlotMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the slots as the first of `masters` to answer lists them.
async fn load_from(masters: &[Arc<Master>]) -> Result<Vec<SlotRange>, Fault> {
    let replies = masters.iter().map(|master| {
        Box::pin(async move {
            let owners = parse_slots(&master.queue.server().slots(false).await?, master.address.host())?;
            // A node that has lost its configuration lists none.
            if owners.is_empty() { Err(Fault::Reply("expected ranges of slots")) } else { Ok(owners) }
        })
    });
    Ok(select_ok(replies).await?.0)
}

/// Notifies the waiting requests when a refresh ends, even if it fails or panics.
struct Loading(Arc<Topology>);

impl Drop for Loading {
    fn drop(&mut self) {
        let mut map = self.0.map();
        map.is_loading = false;
        map.loaded = Some(Instant::now());
        drop(map);
        self.0.refreshed.send_replace(());
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology")
            .field("masters", &self.map().masters.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
