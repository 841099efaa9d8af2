//! Where connections come from.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::sentinel::SentinelClient;
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, cmd,
};
use deadpool_redis::{Connection, Manager, Pool, PoolError};
use tokio::sync::Mutex;

use super::lines::Lines;
use crate::store::redis::error::Fault;
use crate::store::redis::script;

/// Opens connections to one server, or to the master that Sentinel names, and loads the script.
pub(in crate::store::redis) struct Source {
    server: Server,
    /// What servers know the script by, once one was told.
    hash: OnceLock<Box<str>>,
    /// Held by who loads: of several that miss the script, one does. No call ever waits for it, but
    /// only the tasks that open connections.
    loading: Mutex<()>,
    cuts: Cuts,
}

/// What is known of connections that were cut: then nobody has to make a call to find out.
#[derive(Clone, Default)]
struct Cuts(Arc<Told>);

#[derive(Default)]
struct Told {
    /// Who is told.
    lines: OnceLock<Weak<Lines>>,
    /// How many there were.
    count: AtomicU64,
}

impl Cuts {
    /// Has connections report when they are cut.
    fn listen(&self, config: AsyncConnectionConfig) -> AsyncConnectionConfig {
        let cuts = self.clone();
        config.set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                cuts.0.count.fetch_add(1, Ordering::Release);
                // Which it was is not said.
                cuts.0.lines.get().and_then(Weak::upgrade).inspect(Lines::check_all);
            }
            Ok::<_, Infallible>(())
        })
    }
}

enum Server {
    Node(Pool),
    /// Not by the pool, whose Sentinel can't be told certificates nor timeouts. Locked by the tasks
    /// that open connections.
    Sentinel(Box<Mutex<SentinelClient>>, AsyncConnectionConfig),
}

impl Source {
    /// The server at one address.
    pub(in crate::store::redis) fn node(
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
        connections: usize,
    ) -> Result<Self, Fault> {
        let cuts = Cuts::default();
        let settings = settings(info.redis_settings().clone());
        let manager = Manager::new_with_config(info.set_redis_settings(settings), cuts.listen(config));
        let manager = manager.map_err(Fault::url)?;
        // Only timeouts of the pool can fail to build, and there are none.
        let pool = Pool::builder(manager).max_size(connections).build();
        let pool = pool.map_err(|_| Fault::Setting("the pool is refused".into()))?;
        Ok(Self::of(Server::Node(pool), cuts))
    }

    /// The master that Sentinel names whenever there is to be a connection.
    pub(in crate::store::redis) fn sentinel(client: SentinelClient, config: AsyncConnectionConfig) -> Self {
        let cuts = Cuts::default();
        let config = cuts.listen(config);
        Self::of(Server::Sentinel(Box::new(Mutex::new(client)), config), cuts)
    }

    fn of(server: Server, cuts: Cuts) -> Self {
        Self { server, hash: OnceLock::new(), loading: Mutex::default(), cuts }
    }

    /// Tells `lines` of connections that were cut.
    pub(super) fn tell(&self, lines: &Arc<Lines>) {
        let _ = self.cuts.0.lines.set(Arc::downgrade(lines));
    }

    /// How many connections were cut so far.
    pub(super) fn cuts(&self) -> u64 {
        self.cuts.0.count.load(Ordering::Acquire)
    }

    /// What the servers know the script by.
    pub(super) fn hash(&self) -> &str {
        self.hash.get().map_or("", |hash| hash)
    }

    /// A new connection, to a server that has the script.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let mut connection = match &self.server {
            // Taken out of the pool for good: there, each use would cost a PING.
            Server::Node(pool) => match pool.get().await {
                Ok(connection) => Connection::take(connection),
                Err(PoolError::Backend(error)) => return Err(Fault::unconnected(error)),
                Err(other) => return Err(Fault::Setting(format!("the pool is of no use: {other}").into())),
            },
            Server::Sentinel(client, config) => {
                let mut client = client.lock().await;
                client.get_async_connection_with_config(config).await.map_err(Fault::unconnected)?
            }
        };
        self.load(&mut connection).await?;
        Ok(connection)
    }

    /// Asks whether the server has the script. This also checks a connection, as `PING` takes a permission of its own.
    pub(super) async fn is_loaded(&self, connection: &mut MultiplexedConnection) -> Result<bool, Fault> {
        let (is_loaded,): (bool,) = cmd("SCRIPT").arg("EXISTS").arg(self.hash()).query_async(connection).await?;
        Ok(is_loaded)
    }

    /// Loads the script, unless this server has it.
    pub(super) async fn load(&self, connection: &mut MultiplexedConnection) -> Result<(), Fault> {
        let _loading = self.loading.lock().await;
        // Asked in any case: who has not logged in is told so, but cut off for handing in a long text.
        if self.is_loaded(connection).await? {
            return Ok(());
        }
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script::TEXT.as_str()).query_async(connection).await?;
        // One text has one hash.
        let _ = self.hash.set(hash.into());
        Ok(())
    }
}

/// The settings that every connection needs.
pub(in crate::store::redis) fn settings(settings: RedisConnectionInfo) -> RedisConnectionInfo {
    // Connections report their end in RESP3 only. `CLIENT SETINFO`, by which redis-rs introduces itself, is a command
    // that limits do not need and users with few permissions are refused.
    settings.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name()
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.server {
            Server::Node(_) => "Node",
            Server::Sentinel(..) => "Sentinel",
        })
    }
}
