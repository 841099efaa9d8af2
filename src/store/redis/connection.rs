//! The connections: few, shared, replaced when they break.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value, cmd, pipe};
use deadpool_redis::{Config, Connection, Pool, Runtime};
use tokio::sync::Mutex;

use super::error::Fault;
use super::script::{self, Replies, Request};

/// How many connections there are. Each carries any number of calls at a time; a second one lets
/// another core of ours read replies.
const CONNECTIONS: usize = 2;

/// How often a call is sent to a server that says that it does not know the script: more than twice
/// only if it is flushed again and again.
const TRIES: u32 = 4;

/// Connections to one server, on which the script is loaded.
#[derive(Debug)]
pub(super) struct Connections {
    pool: Pool,
    slots: [Mutex<Slot>; CONNECTIONS],
    turn: AtomicUsize,
    /// What the server knows the script by.
    hash: OnceLock<Box<str>>,
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
        let connections = Self::of(&Config::from_url(url))?;
        connections.ready().await?;
        Ok(connections)
    }

    /// Connects, and loads the script, if that was not done yet.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        let (mut connection, ..) = self.connection().await?;
        self.load_again(&mut connection, 0).await
    }

    /// Connects, and loads the script, when there is something to decide.
    pub(super) fn lazy(info: ConnectionInfo) -> Result<Self, Fault> {
        Self::of(&Config::from_connection_info(info))
    }

    fn of(config: &Config) -> Result<Self, Fault> {
        Ok(Self {
            pool: config.builder()?.max_size(CONNECTIONS).runtime(Runtime::Tokio1).build()?,
            slots: Default::default(),
            turn: AtomicUsize::new(0),
            hash: OnceLock::new(),
            loads: AtomicU64::new(0),
            loading: Mutex::default(),
        })
    }

    /// Has the script decide `requests`. A call is never sent twice, unless the server said that it
    /// did not run because it does not know the script.
    pub(super) async fn call(&self, clock: &[u8], requests: &[Request]) -> Result<Replies, Fault> {
        self.decide(clock, requests, false).await
    }

    /// Like [`call`](Self::call), for keys that another master is moving to this one.
    pub(super) async fn call_asking(&self, clock: &[u8], requests: &[Request]) -> Result<Replies, Fault> {
        self.decide(clock, requests, true).await
    }

    async fn decide(&self, clock: &[u8], requests: &[Request], asking: bool) -> Result<Replies, Fault> {
        let (mut connection, slot, generation) = self.connection().await?;
        let mut tries = 0;
        let reply = loop {
            let loads = self.loads.load(Ordering::Acquire);
            if loads == 0 {
                self.load_again(&mut connection, loads).await?;
                continue;
            }
            let call = script::call(self.hash.get().map_or("", |hash| hash), clock, requests);
            let reply = send(&mut connection, &call, asking).await;
            let unknown = |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
            tries += 1;
            if tries == TRIES || !reply.as_ref().is_err_and(unknown) {
                break reply;
            }
            self.load_again(&mut connection, loads).await?;
        };
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

    /// Has the server answer something else.
    pub(super) async fn query(&self, query: &Cmd) -> Result<Value, Fault> {
        let (mut connection, slot, generation) = self.connection().await?;
        let reply = query.query_async(&mut connection).await.map_err(Fault::from);
        if reply.as_ref().is_err_and(Fault::breaks) {
            self.replace(slot, generation).await;
        }
        reply
    }

    /// Loads the script, unless it was loaded after the first `loads` times: of many calls that
    /// miss it, one does.
    async fn load_again(&self, connection: &mut MultiplexedConnection, loads: u64) -> Result<(), Fault> {
        let _loading = self.loading.lock().await;
        if self.loads.load(Ordering::Acquire) == loads {
            let hash: String = cmd("SCRIPT").arg("LOAD").arg(script::TEXT).query_async(connection).await?;
            self.hash.get_or_init(|| hash.into());
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

async fn send(connection: &mut MultiplexedConnection, call: &Cmd, asking: bool) -> Result<Value, RedisError> {
    if asking {
        // One after the other on one connection: the first holds for the second only.
        let mut both = pipe();
        both.cmd("ASKING").add_command(call.clone());
        let mut replies = connection.send_packed_commands(&both, 1, 1).await?;
        return replies.pop().unwrap_or(Value::Nil).extract_error();
    }
    call.query_async(connection).await
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("open", &self.connection.is_some()).field("generation", &self.generation).finish()
    }
}
