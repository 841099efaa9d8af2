//! Opens connections to a server, and loads the script.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::io::tcp::TcpSettings;
use deadpool_redis::redis::sentinel::SentinelClient;
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, cmd,
};
use deadpool_redis::{Connection, Manager, Pool, PoolError};
use tokio::sync::Mutex;

use crate::store::redis::error::Fault;
use crate::store::redis::script;

/// Opens connections to one server, or to the master that Sentinel names, and loads the script.
pub(in crate::store::redis) struct Source {
    server: Server,
    /// The hash of the script, once a server has loaded it.
    hash: OnceLock<Box<str>>,
    /// Held while the script is loaded, so that it is sent once. Only the tasks that open connections wait for it.
    loading: Mutex<()>,
    disconnections: Disconnections,
}

/// Counts the connections that were lost, which the client reports without a call.
#[derive(Clone, Default)]
struct Disconnections(Arc<Reported>);

#[derive(Default)]
struct Reported {
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
    count: AtomicU64,
}

impl Disconnections {
    /// Has connections report when they are lost. A report does not name the connection.
    fn listen(&self, config: AsyncConnectionConfig) -> AsyncConnectionConfig {
        let reported = self.0.clone();
        config.set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                reported.count.fetch_add(1, Ordering::Release);
                reported.listener.get().inspect(|listener| listener());
            }
            Ok::<_, Infallible>(())
        })
    }
}

enum Server {
    Node(Pool),
    /// Not a pool, because deadpool's Sentinel configuration has no certificates and no timeouts. Locked by the tasks
    /// that open connections.
    Sentinel(Box<Mutex<SentinelClient>>, AsyncConnectionConfig),
}

impl Source {
    /// Creates the source of connections to one address.
    pub(in crate::store::redis) fn node(
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
        connections: usize,
    ) -> Result<Self, Fault> {
        let disconnections = Disconnections::default();
        let settings = settings(info.redis_settings().clone());
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp_settings());
        let manager = Manager::new_with_config(info, disconnections.listen(config));
        let manager = manager.map_err(Fault::Url)?;
        // This fails only for timeouts of the pool, which are not set.
        let pool = Pool::builder(manager).max_size(connections).build();
        let pool = pool.map_err(|_| Fault::setting("the connection pool is misconfigured"))?;
        Ok(Self::new(Server::Node(pool), disconnections))
    }

    /// Creates the source of connections to a master, whose address Sentinel reports for each connection.
    pub(in crate::store::redis) fn sentinel(client: SentinelClient, config: AsyncConnectionConfig) -> Self {
        let disconnections = Disconnections::default();
        let config = disconnections.listen(config);
        Self::new(Server::Sentinel(Box::new(Mutex::new(client)), config), disconnections)
    }

    fn new(server: Server, disconnections: Disconnections) -> Self {
        Self { server, hash: OnceLock::new(), loading: Mutex::default(), disconnections }
    }

    /// Sets the listener that is called when a connection is lost.
    pub(super) fn on_disconnection(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.disconnections.0.listener.set(Box::new(listener));
    }

    /// Returns how many connections were lost so far.
    pub(super) fn disconnections(&self) -> u64 {
        self.disconnections.0.count.load(Ordering::Acquire)
    }

    /// Returns the hash of the script.
    pub(super) fn hash(&self) -> &str {
        self.hash.get().map_or("", |hash| hash)
    }

    /// Opens a connection, and loads the script if the server does not have it.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let mut connection = match &self.server {
            // Taken out of the pool for good, because the pool sends a PING before each use.
            Server::Node(pool) => match pool.get().await {
                Ok(connection) => Connection::take(connection),
                Err(PoolError::Backend(error)) => return Err(Fault::from_connect_error(error)),
                Err(other) => {
                    return Err(Fault::setting(format_args!("the connection pool failed: {other}")));
                }
            },
            Server::Sentinel(client, config) => {
                let mut client = client.lock().await;
                client.get_async_connection_with_config(config).await.map_err(Fault::from_connect_error)?
            }
        };
        self.load(&mut connection).await?;
        Ok(connection)
    }

    /// Returns whether the server has the script. This also checks a connection, because `PING` requires another
    /// permission.
    pub(super) async fn is_loaded(&self, connection: &mut MultiplexedConnection) -> Result<bool, Fault> {
        let (is_loaded,): (bool,) = cmd("SCRIPT").arg("EXISTS").arg(self.hash()).query_async(connection).await?;
        Ok(is_loaded)
    }

    /// Loads the script, unless the server has it. The first time, checks the commands that it needs.
    pub(super) async fn load(&self, connection: &mut MultiplexedConnection) -> Result<(), Fault> {
        let _loading = self.loading.lock().await;
        // Asked in any case: without a login, a server answers this with an error, but closes the connection on a long
        // text.
        if self.is_loaded(connection).await? {
            return Ok(());
        }
        if self.hash.get().is_none() {
            let check = load_text(connection, script::CHECK).await?;
            let () = cmd("EVALSHA").arg(check).arg(0).query_async(connection).await?;
        }
        let hash = load_text(connection, &script::TEXT).await?;
        // All servers compute the same hash.
        let _ = self.hash.set(hash.into());
        Ok(())
    }
}

/// Loads a script, and returns its hash.
async fn load_text(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    Ok(cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await?)
}

/// Returns the TCP settings of all connections. Sets `TCP_NODELAY`, so that a call does not wait for the acknowledgement
/// of earlier ones.
pub(in crate::store::redis) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Adds the settings that every connection needs.
pub(in crate::store::redis) fn settings(settings: RedisConnectionInfo) -> RedisConnectionInfo {
    // Connections report their loss in RESP3 only. `CLIENT SETINFO`, which redis-rs sends by default, requires a
    // permission that rate limits do not need.
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
