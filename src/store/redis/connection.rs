//! The connections: few, shared, replaced when they break.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind, Value, cmd};
use deadpool_redis::{Config, Connection, Pool, Runtime};
use tokio::sync::Mutex;

use super::error::Fault;
use super::script::{self, Replies, Request};

/// How many connections there are. Each carries any number of calls at a time; a second one lets
/// another core of ours read replies.
const CONNECTIONS: usize = 2;

/// Connections to one server, on which the script is loaded.
#[derive(Debug)]
pub(super) struct Connections {
    pool: Pool,
    slots: [Mutex<Slot>; CONNECTIONS],
    turn: AtomicUsize,
    /// What the server knows the script by.
    hash: Box<str>,
    /// How often the script was loaded.
    loads: AtomicU64,
    loading: Mutex<()>,
}

#[derive(Default)]
struct Slot {
    connection: Option<MultiplexedConnection>,
    /// How many came before it.
    generation: u64,
}

impl Connections {
    /// Connects, and loads the script.
    pub(super) async fn open(url: &str) -> Result<Self, Fault> {
        let pool = Config::from_url(url).builder()?;
        let pool = pool.max_size(CONNECTIONS).runtime(Runtime::Tokio1).build()?;
        let connections = Self {
            pool,
            slots: Default::default(),
            turn: AtomicUsize::new(0),
            hash: Box::default(),
            loads: AtomicU64::new(0),
            loading: Mutex::default(),
        };
        let (mut connection, ..) = connections.connection().await?;
        Ok(Self { hash: load(&mut connection).await?.into(), ..connections })
    }

    /// Has the script decide `requests`. A call is never sent twice, unless the server said that it
    /// did not run because it does not know the script.
    pub(super) async fn call(&self, clock: &[u8], requests: &[Request]) -> Result<Replies, Fault> {
        let (mut connection, slot, generation) = self.connection().await?;
        let loads = self.loads.load(Ordering::Acquire);
        let mut reply: Result<Value, RedisError> =
            script::call(&self.hash, clock, requests).query_async(&mut connection).await;
        if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            self.load_again(&mut connection, loads).await?;
            reply = script::call(&self.hash, clock, requests).query_async(&mut connection).await;
        }
        let replies = reply.map_err(Fault::from).and_then(|reply| script::replies(reply, requests.len()));
        let broken = match &replies {
            Ok(replies) => replies.found.iter().filter_map(|found| found.as_ref().err()).any(Fault::breaks),
            Err(fault) => fault.breaks(),
        };
        if broken {
            self.replace(slot, generation).await;
        }
        replies
    }

    /// Loads the script, unless it was loaded after the first `loads` times: of many calls that
    /// miss it, one does.
    async fn load_again(&self, connection: &mut MultiplexedConnection, loads: u64) -> Result<(), Fault> {
        let _loading = self.loading.lock().await;
        if self.loads.load(Ordering::Acquire) == loads {
            load(connection).await?;
            self.loads.store(loads + 1, Ordering::Release);
        }
        Ok(())
    }

    /// The next connection, opened if need be, and which it is.
    async fn connection(&self) -> Result<(MultiplexedConnection, usize, u64), Fault> {
        let index = self.turn.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let mut slot = self.slots[index].lock().await;
        let connection = match &slot.connection {
            Some(connection) => connection.clone(),
            None => {
                // Taken out of the pool for good: there, each use would cost a PING.
                let connection = Connection::take(self.pool.get().await?);
                slot.connection.insert(connection).clone()
            }
        };
        Ok((connection, index, slot.generation))
    }

    /// Drops a connection that broke, unless it was replaced already.
    async fn replace(&self, index: usize, generation: u64) {
        let mut slot = self.slots[index].lock().await;
        if slot.generation == generation {
            *slot = Slot { connection: None, generation: generation + 1 };
        }
    }
}

async fn load(connection: &mut MultiplexedConnection) -> Result<String, Fault> {
    Ok(cmd("SCRIPT").arg("LOAD").arg(script::TEXT).query_async(connection).await?)
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("open", &self.connection.is_some()).field("generation", &self.generation).finish()
    }
}
