//! Opens connections to a server, and loads the script.

use std::convert::Infallible;
use std::sync::OnceLock;

use deadpool_redis::{Connection, Hook, HookError, Manager, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, cmd};
use tokio::sync::{Mutex, watch};

use super::error::Fault;
use super::script;

/// Opens connections to one server, or to the master that Sentinel names, and loads the script.
pub(super) struct Connector {
    address: Address,
    config: AsyncConnectionConfig,
    /// The hash of the script, once a server has loaded it.
    hash: OnceLock<Box<str>>,
    /// Held while the script is loaded, so that it is sent once.
    loading: Mutex<()>,
    /// Changes when a connection is lost, which the client reports without a call.
    lost: watch::Sender<()>,
}

enum Address {
    Fixed(Pool),
    /// Asked for each connection. Not deadpool's, which has no certificates and no timeouts.
    OfMaster(Box<Mutex<SentinelClient>>),
}

impl Connector {
    /// Opens up to `connections` to one address.
    pub(super) fn to_server(
        info: ConnectionInfo,
        config: AsyncConnectionConfig,
        connections: usize,
    ) -> Result<Self, Fault> {
        let (config, lost) = reporting_losses(config);
        Ok(Self::new(Address::Fixed(pool(info, &config, connections)?), config, lost))
    }

    /// Opens connections to a master, whose address Sentinel reports for each of them.
    pub(super) fn to_master(client: SentinelClient, config: AsyncConnectionConfig) -> Self {
        let (config, lost) = reporting_losses(config);
        Self::new(Address::OfMaster(Box::new(Mutex::new(client))), config, lost)
    }

    fn new(address: Address, config: AsyncConnectionConfig, lost: watch::Sender<()>) -> Self {
        Self { address, config, hash: OnceLock::new(), loading: Mutex::default(), lost }
    }

    /// Returns a receiver that changes when any connection is lost.
    pub(super) fn losses(&self) -> watch::Receiver<()> {
        self.lost.subscribe()
    }

    /// Returns the hash of the script.
    pub(super) fn hash(&self) -> &str {
        self.hash.get().map_or("", |hash| hash)
    }

    /// Opens a connection, and loads the script if the server does not have it.
    pub(super) async fn connect(&self) -> Result<Connection, Fault> {
        let pool = match &self.address {
            Address::Fixed(pool) => pool.clone(),
            Address::OfMaster(client) => {
                let master = client.lock().await.async_get_client().await.map_err(Fault::from_connect_error)?;
                pool(master.get_connection_info().clone(), &self.config, 1)?
            }
        };
        let mut connection = pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => Fault::from_connect_error(error),
            other => Fault::setting(format_args!("the connection pool failed: {other}")),
        })?;
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
        let hash = load_text(connection, script::TEXT).await?;
        // All servers compute the same hash.
        let _ = self.hash.set(hash.into());
        Ok(())
    }
}

/// Has connections report when they are lost. A report does not name the connection.
fn reporting_losses(config: AsyncConnectionConfig) -> (AsyncConnectionConfig, watch::Sender<()>) {
    let lost = watch::Sender::default();
    let report = lost.clone();
    let config = config.set_push_sender(move |push: PushInfo| {
        if push.kind == PushKind::Disconnection {
            report.send_replace(());
        }
        Ok::<_, Infallible>(())
    });
    (config, lost)
}

/// Loads a script, and returns its hash.
async fn load_text(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    Ok(cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await?)
}

/// Creates a pool that opens a connection whenever it is asked: a connection that comes back to it has failed. (It
/// would check the connection by commands that need other permissions.)
fn pool(info: ConnectionInfo, config: &AsyncConnectionConfig, connections: usize) -> Result<Pool, Fault> {
    let info_settings = settings(info.redis_settings().clone());
    let info = info.set_redis_settings(info_settings).set_tcp_settings(tcp_settings());
    let manager = Manager::new_with_config(info, config.clone()).map_err(Fault::invalid_url)?;
    let pool = Pool::builder(manager)
        .max_size(connections)
        .pre_recycle(Hook::sync_fn(|_, _| Err(HookError::message("it failed"))));
    // This fails only for timeouts of the pool, which are not set.
    pool.build().map_err(|_| Fault::setting("the connection pool is misconfigured"))
}

/// Returns the TCP settings of all connections. Sets `TCP_NODELAY`, so that a call does not wait for the
/// acknowledgement of earlier ones.
pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Adds the settings that every connection needs.
pub(super) fn settings(settings: RedisConnectionInfo) -> RedisConnectionInfo {
    // Connections report their loss in RESP3 only. `CLIENT SETINFO`, which redis-rs sends by default, requires a
    // permission that rate limits do not need.
    settings.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name()
}
