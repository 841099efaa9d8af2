//! The connections: few, shared, replaced when they break.

use std::sync::atomic::{AtomicUsize, Ordering};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind, Value, cmd};
use deadpool_redis::{Config, Connection, Pool, Runtime};
use tokio::sync::Mutex;

use super::error::Fault;
use super::script::{self, Request};

/// How many connections there are. Each carries any number of calls at a time; a second one lets
/// another core of ours read replies.
const CONNECTIONS: usize = 2;

/// Connections to one server, on which the script is loaded.
#[derive(Debug)]
pub(super) struct Connections {
    pool: Pool,
    slots: [Mutex<Slot>; CONNECTIONS],
    turn: AtomicUsize,
    script: Mutex<Script>,
}

#[derive(Default)]
struct Slot {
    connection: Option<MultiplexedConnection>,
    /// How many came before it.
    generation: u64,
}

#[derive(Debug)]
struct Script {
    /// What the server knows it by.
    hash: Box<str>,
    /// How often it was loaded.
    loads: u64,
}

impl Connections {
    /// Connects, and loads the script.
    pub(super) async fn open(url: &str) -> Result<Self, Fault> {
        let pool = Config::from_url(url).builder().map_err(Fault::Url)?;
        let pool = pool.max_size(CONNECTIONS).runtime(Runtime::Tokio1).build().map_err(Fault::Build)?;
        let script = Mutex::new(Script { hash: Box::default(), loads: 0 });
        let connections = Self { pool, slots: Default::default(), turn: AtomicUsize::new(0), script };
        let (mut connection, ..) = connections.connection().await?;
        connections.load(&mut connection, 0).await?;
        Ok(connections)
    }

    /// Has the script decide `requests`. A call is never sent twice, unless the server said that it
    /// did not run because it does not know the script.
    pub(super) async fn call(&self, clock: &[u8], requests: &[Request]) -> Result<Value, Fault> {
        let (mut connection, slot, generation) = self.connection().await?;
        let (hash, loads) = self.script().await;
        let mut reply = script::call(&hash, clock, requests).query_async(&mut connection).await;
        if reply.as_ref().is_err_and(|error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
        {
            self.load(&mut connection, loads).await?;
            reply = script::call(&hash, clock, requests).query_async(&mut connection).await;
        }
        if reply.as_ref().is_err_and(breaks) {
            self.replace(slot, generation).await;
        }
        Ok(reply?)
    }

    async fn script(&self) -> (Box<str>, u64) {
        let script = self.script.lock().await;
        (script.hash.clone(), script.loads)
    }

    /// Loads the script, unless it was loaded after the first `loads` times: of many calls that
    /// miss it, one does.
    async fn load(&self, connection: &mut MultiplexedConnection, loads: u64) -> Result<(), Fault> {
        let mut script = self.script.lock().await;
        if script.loads == loads {
            let hash: String = cmd("SCRIPT").arg("LOAD").arg(script::TEXT).query_async(connection).await?;
            *script = Script { hash: hash.into(), loads: loads + 1 };
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
                let connection = Connection::take(self.pool.get().await.map_err(Fault::Connect)?);
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

/// Whether a connection is of no use after `error`: it was lost, or its server is no master.
fn breaks(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("open", &self.connection.is_some()).field("generation", &self.generation).finish()
    }
}
