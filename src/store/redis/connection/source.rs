//! Where connections come from.

use std::fmt;
use std::sync::OnceLock;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::sentinel::SentinelClient;
use deadpool_redis::redis::{AsyncConnectionConfig, ConnectionInfo, cmd};
use deadpool_redis::{Connection, Manager, Pool, PoolError};
use tokio::sync::Mutex;

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
        let manager = Manager::new_with_config(info, config).map_err(Fault::url)?;
        // Only timeouts of the pool can fail to build, and there are none.
        let pool = Pool::builder(manager).max_size(connections).build();
        Ok(Self::of(Server::Node(pool.map_err(|_| Fault::Setting("the pool is refused".into()))?)))
    }

    /// The master that Sentinel names whenever there is to be a connection.
    pub(in crate::store::redis) fn sentinel(client: SentinelClient, config: AsyncConnectionConfig) -> Self {
        Self::of(Server::Sentinel(Box::new(Mutex::new(client)), config))
    }

    fn of(server: Server) -> Self {
        Self { server, hash: OnceLock::new(), loading: Mutex::default() }
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

    /// Loads the script, unless this server has it.
    pub(super) async fn load(&self, connection: &mut MultiplexedConnection) -> Result<(), Fault> {
        let _loading = self.loading.lock().await;
        // Asked in any case: who has not logged in is told so, but cut off for handing in a long text.
        let (is_known,): (bool,) = cmd("SCRIPT").arg("EXISTS").arg(self.hash()).query_async(connection).await?;
        if is_known {
            return Ok(());
        }
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script::TEXT).query_async(connection).await?;
        // One text has one hash.
        let _ = self.hash.set(hash.into());
        Ok(())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.server {
            Server::Node(_) => "Node",
            Server::Sentinel(..) => "Sentinel",
        })
    }
}
