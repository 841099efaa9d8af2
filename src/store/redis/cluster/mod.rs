//! The masters of a Cluster, and which of them has a slot.
//!
//! redis-rs' own client of a Cluster repeats what it can't know not to have run (timeouts, lost
//! connections), up to 16 times; and even if told not to, it holds up the requests of all slots
//! while it looks for the owner of one, for as long as any master hangs. A pool of such clients asks
//! all masters for a PING at each use. So here each master is a server like any other, with a queue
//! and connections of its own, and one that hangs holds up nobody else's requests.

mod map;
mod seeds;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::cluster::NodeAddress;
#[cfg(feature = "rules")]
use deadpool_redis::redis::{Cmd, Value};
use futures_util::future::{join_all, select_ok};
use tokio::sync::watch;
use tokio::time::Instant;

use self::map::{Map, Master, Range, owners};
pub(super) use self::seeds::Seeds;
use crate::node::Node;
use crate::store::redis::error::{Fault, Redirect};
use crate::store::redis::script::{Request, TimedReply};

/// How often a request is sent on: a slot that moves costs one or two.
const HOPS: usize = 5;

/// How long what was learned is good enough: whoever misses a master sooner is told so at once.
const REST: Duration = Duration::from_millis(250);

/// How many masters are asked at a time which slots are whose.
const ASKED: usize = 2;

pub(super) struct Cluster {
    seeds: Seeds,
    map: Mutex<Map>,
    /// Told when `map` was learned anew, or could not be.
    learned: watch::Sender<()>,
}

impl Cluster {
    pub(super) fn new(seeds: Seeds) -> Arc<Self> {
        Arc::new(Self { seeds, map: Mutex::default(), learned: watch::Sender::new(()) })
    }

    /// Asks one of the seeds for all masters, and connects to them.
    pub(super) async fn open(&self) -> Result<(), Fault> {
        self.learn().await?;
        let masters: Vec<_> = self.map().masters.values().cloned().collect();
        // Who does not answer now may when it is needed.
        join_all(masters.iter().map(|master| master.queue.server().open())).await;
        Ok(())
    }

    /// The same in the background, where there is a runtime: elsewhere, the first request asks.
    pub(super) fn open_in_background(self: &Arc<Self>) {
        self.learn_soon();
    }

    /// What the script says of `request`, wherever its slot is. It is sent on only by who says, or
    /// where it is plain, that nothing ran.
    pub(super) async fn ask(self: &Arc<Self>, clock: Option<[u8; 24]>, request: Request) -> TimedReply {
        let slot = request.slot();
        let mut given_up = GivenUp { cluster: Some(self) };
        let mut master = self.owner_of(slot).await?;
        let mut asking = false;
        let mut hops = 0;
        let reply = loop {
            let reply = if asking {
                master.queue.ask_importing(clock, &request).await
            } else {
                master.queue.ask(clock, request.clone()).await
            };
            let Err(fault) = &reply else { break reply };
            hops += 1;
            if hops > HOPS {
                break reply;
            }
            (master, asking) = match fault.redirect() {
                Some(Redirect::Moved(address)) => {
                    let master = self.moved(slot, address, &master)?;
                    // Others of its slots may have moved too.
                    self.learn_soon();
                    (master, false)
                }
                Some(Redirect::Ask(address)) => (self.master(address, &master)?, true),
                None if !fault.is_of_a_server() => break reply,
                None => {
                    let learned = self.learn_soon();
                    if !fault.is_unsent() {
                        break reply;
                    }
                    if let Some(mut learned) = learned {
                        let _ = learned.changed().await;
                    }
                    match self.owner(slot) {
                        Some(owner) if !Arc::ptr_eq(&owner, &master) => (owner, false),
                        _ => break reply,
                    }
                }
            };
        };
        given_up.cluster = None;
        reply.map_err(|fault| Fault::At(master.node.clone(), Box::new(fault)))
    }

    /// The master that has a slot, if that is known.
    pub(super) fn node(&self, slot: u16) -> Option<Node> {
        self.map().owners.get(usize::from(slot))?.as_ref().map(|master| master.node.clone())
    }

    /// What a slot's master answers to something else. It is sent on only by a master that has not done it.
    #[cfg(feature = "rules")]
    pub(super) async fn query(self: &Arc<Self>, slot: u16, query: &Cmd) -> Result<Value, Fault> {
        let mut master = self.owner_of(slot).await?;
        let mut hops = 0;
        loop {
            let reply = master.queue.server().query(query).await;
            let Err(fault) = &reply else { return reply };
            hops += 1;
            match fault.redirect() {
                Some(Redirect::Moved(address)) if hops <= HOPS => {
                    master = self.moved(slot, address, &master)?;
                }
                _ => {
                    // Whoever asks again asks the right one.
                    if fault.is_of_a_server() {
                        self.learn_soon();
                    }
                    return reply;
                }
            }
        }
    }

    async fn owner_of(self: &Arc<Self>, slot: u16) -> Result<Arc<Master>, Fault> {
        if let Some(owner) = self.owner(slot) {
            return Ok(owner);
        }
        if let Some(mut learned) = self.learn_soon() {
            let _ = learned.changed().await;
        }
        self.owner(slot).ok_or(Fault::Slot(slot))
    }

    fn owner(&self, slot: u16) -> Option<Arc<Master>> {
        self.map().owners.get(usize::from(slot))?.clone()
    }

    /// Notes the new master of a slot.
    fn moved(&self, slot: u16, address: &str, by: &Master) -> Result<Arc<Master>, Fault> {
        let master = self.master(address, by)?;
        if let Some(owner) = self.map().owners.get_mut(usize::from(slot)) {
            *owner = Some(master.clone());
        }
        Ok(master)
    }

    /// The master at the address that another one gave.
    fn master(&self, address: &str, by: &Master) -> Result<Arc<Master>, Fault> {
        // A master that knows no host of another means its own.
        let port = address.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let address = match port {
            Some(_) => NodeAddress::try_from(format!("{}{address}", by.address.host()).as_str())?,
            None => NodeAddress::try_from(address)?,
        };
        self.map().master(address, &self.seeds)
    }

    /// Has what is known of the masters learned anew in the background, by a task of its own, as
    /// requests are given up at any time. Returns what tells when, unless that was but a moment ago.
    fn learn_soon(self: &Arc<Self>) -> Option<watch::Receiver<()>> {
        let learned = self.learned.subscribe();
        let mut map = self.map();
        if map.learning {
            return Some(learned);
        }
        if map.asked.is_some_and(|asked| asked.elapsed() < REST) {
            return None;
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        map.learning = true;
        drop(map);
        let learning = Learning(self.clone());
        runtime.spawn(async move {
            // Who misses something is told by its absence.
            let _ = learning.0.learn().await;
        });
        Some(learned)
    }

    async fn learn(&self) -> Result<(), Fault> {
        let mut known = {
            let mut map = self.map();
            map.times = map.times.wrapping_add(1);
            let mut known: Vec<_> = map.masters.values().cloned().collect();
            let first = map.times % known.len().max(1);
            known.rotate_left(first);
            known
        };
        for some in known.chunks(ASKED) {
            if let Ok(owners) = ask_any(some).await {
                return self.map().note(owners, &self.seeds);
            }
        }
        known.clear();
        for address in self.seeds.addresses()? {
            known.push(Arc::new(Master::new(address, &self.seeds)?));
        }
        let owners = ask_any(&known).await?;
        self.map().note(owners, &self.seeds)
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the first of `masters` to answer says of the slots.
async fn ask_any(masters: &[Arc<Master>]) -> Result<Vec<Range>, Fault> {
    let asked = masters.iter().map(|master| {
        Box::pin(async move {
            let owners = owners(&master.queue.server().slots().await?, master.address.host())?;
            // As of a node that has lost its configuration: another one knows more.
            if owners.is_empty() { Err(Fault::Reply("no slots")) } else { Ok(owners) }
        })
    });
    Ok(select_ok(asked).await?.0)
}

/// Someone learns who the masters are; it ends with them, however.
struct Learning(Arc<Cluster>);

impl Drop for Learning {
    fn drop(&mut self) {
        let mut map = self.0.map();
        map.learning = false;
        map.asked = Some(Instant::now());
        drop(map);
        self.0.learned.send_replace(());
    }
}

/// A request that is given up before it has an answer: its master may hang, and another have taken
/// its place, which who is in a hurry would never find out.
struct GivenUp<'a> {
    cluster: Option<&'a Arc<Cluster>>,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster {
            cluster.learn_soon();
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("masters", &self.map().masters.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
