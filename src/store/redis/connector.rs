//! Opens connections to a server, and loads the script that decides requests there.
//!
//! `lua/` holds the script: each algorithm has a file, the counterpart of one in [`algorithm`](crate::algorithm).

use std::convert::Infallible;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use deadpool_redis::{Connection, Manager, Pool, PoolError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, Role, cmd};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::config::{RedisConfig, SentinelMaster, Servers};
use super::error::Fault;

/// The script, which is the same for all limits, so that a server keeps one: its files, one after the other. The tests
/// write it to `target/script.lua`.
pub(super) const SCRIPT: &str = concat!(
    include_str!("lua/prelude.lua"),
    include_str!("lua/bucket.lua"),
    "\nelseif tag == INTERVAL_BUCKET then\n",
    include_str!("lua/interval_bucket.lua"),
    "\nelseif tag == FIXED_WINDOW or tag == CALENDAR_WINDOW then\n",
    include_str!("lua/window.lua"),
    "\nelseif tag == COUNTER_DOWN or tag == COUNTER_UP then\n",
    include_str!("lua/counter.lua"),
    "\nelseif tag == LOG then\n",
    include_str!("lua/log.lua"),
    "\nelseif tag == PENALTY then\n",
    include_str!("lua/penalty.lua"),
    "\nend\nerror({ err = 'UNSUPPORTED the script has no algorithm with the tag ' .. string.char(tag) })\nend\n\n",
    include_str!("lua/main.lua"),
);

/// A script of its own, which checks the commands that the other one calls.
const CHECK: &str = include_str!("lua/check.lua");

/// Opens connections to one server, or to the master that Sentinels name, and loads the script.
pub(super) struct Connector {
    /// The server, or the Sentinels of the `master`.
    servers: Vec<ConnectionInfo>,
    master: Option<SentinelMaster>,
    /// The configurations of connections in RESP3, and in RESP2.
    configs: [AsyncConnectionConfig; 2],
    connect_timeout: Duration,
    prefix: String,
    is_cluster: bool,
    /// Why the server accepted no writes when the first connection was opened.
    refused: OnceLock<Fault>,
    /// The hash of the script, once a server has loaded it.
    hash: OnceLock<Box<str>>,
    /// Held while the script is loaded, so that it is sent once.
    loading: Mutex<()>,
    /// Changes when any connection is lost, which the client reports without a call.
    pub(super) lost: watch::Sender<()>,
}

impl Connector {
    /// Prepares connections to the only server, or to the `master` that the servers name as Sentinels.
    pub(super) fn new(
        servers: Vec<ConnectionInfo>,
        master: Option<SentinelMaster>,
        config: &RedisConfig,
    ) -> Result<Self, Fault> {
        let lost = watch::Sender::default();
        let report = lost.clone();
        let RedisConfig { connect_timeout, response_timeout, .. } = *config;
        let resp2 =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(Some(response_timeout));
        let resp3 = resp2.clone().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                report.send_replace(());
            }
            Ok::<_, Infallible>(())
        });
        let (prefix, is_cluster) = (config.prefix.clone(), matches!(config.servers, Servers::Cluster));
        let (hash, refused, loading) = Default::default();
        let configs = [resp3, resp2];
        Ok(Self { servers, master, configs, connect_timeout, prefix, is_cluster, refused, hash, loading, lost })
    }

    /// Returns why the server accepted no writes when the first connection was opened.
    pub(super) fn refused(&self) -> Option<Fault> {
        self.refused.get().cloned()
    }

    /// Returns the hash of the script.
    pub(super) fn hash(&self) -> &str {
        self.hash.get().map_or("", |hash| hash)
    }

    /// Opens a connection, and loads the script if the server does not have it.
    pub(super) async fn connect(&self) -> Result<Connection, Fault> {
        let mut connection = self.open_any().await?;
        self.load(&mut connection).await?;
        Ok(connection)
    }

    /// Opens a connection through the first of the servers with which this succeeds.
    async fn open_any(&self) -> Result<Connection, Fault> {
        let attempts = self.servers.iter().map(|server| timeout(self.connect_timeout, self.open_through(server)));
        let mut attempts = FuturesUnordered::from_iter(attempts);
        let mut fault = None;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(Ok(connection)) => return Ok(connection),
                // A reply says more than that another server can't be reached.
                Ok(Err(other)) => fault = fault.filter(|fault| !matches!(fault, Fault::Unreachable(_))).or(Some(other)),
                Err(_) => {}
            }
        }
        Err(fault.unwrap_or_else(|| Fault::Unreachable(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    /// Opens a connection to a server, or to the master that it names as a Sentinel.
    async fn open_through(&self, server: &ConnectionInfo) -> Result<Connection, Fault> {
        let mut connection = self.open(server).await?;
        let Some((name, master)) = &self.master else { return Ok(connection) };
        let address: Result<Option<(String, u16)>, _> =
            cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut *connection).await;
        // The pool would keep it open.
        drop(Connection::take(connection));
        let (host, port) = address.map_err(Fault::from_connect_error)?.ok_or(Fault::NoMaster)?;
        let mut connection = self.open(&at_address(master, host, port)).await?;
        match cmd("ROLE").query_async(&mut *connection).await.map_err(Fault::from_connect_error)? {
            Role::Primary { .. } => Ok(connection),
            // The Sentinel does not know of a failover yet.
            _ => Err(Fault::NoMaster),
        }
    }

    /// Opens a connection, in RESP2 if the server does not know RESP3.
    async fn open(&self, info: &ConnectionInfo) -> Result<Connection, Fault> {
        let settings = info.redis_settings().clone();
        let [resp3, resp2] = &self.configs;
        if settings.protocol() != ProtocolVersion::RESP2 {
            let opened = open(info.clone(), resp3).await;
            if !opened.as_ref().is_err_and(Fault::lacks_resp3) {
                return opened;
            }
        }
        open(info.clone().set_redis_settings(settings.set_protocol(ProtocolVersion::RESP2)), resp2).await
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
        let is_loaded = self.is_loaded(connection).await;
        if is_loaded.as_ref().is_err_and(Fault::is_denied)
            && let Ok(Role::Sentinel { .. }) = cmd("ROLE").query_async(connection).await
        {
            return Err(Fault::setting(
                "a URL is that of a Sentinel: use `RedisConfig::sentinel` with the name of its master",
            ));
        }
        if is_loaded? {
            return Ok(());
        }
        if self.hash.get().is_none() {
            let check = load_text(connection, CHECK).await?;
            let refused: String = cmd("EVALSHA").arg(check).arg(0).arg(&self.prefix).query_async(connection).await?;
            // The key belongs to one master of a Cluster.
            let is_elsewhere = self.is_cluster && refused.contains("attempted to access");
            if !refused.is_empty() && !is_elsewhere {
                let _ = self.refused.set(Fault::script(refused));
            }
        }
        let hash = load_text(connection, SCRIPT).await?;
        // All servers compute the same hash.
        let _ = self.hash.set(hash.into());
        Ok(())
    }
}

/// Loads a script, and returns its hash.
async fn load_text(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    Ok(cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await?)
}

/// Opens a connection through a pool of its own, which is dropped. (A pool would check a connection that comes back by
/// commands that need other permissions.)
async fn open(info: ConnectionInfo, config: &AsyncConnectionConfig) -> Result<Connection, Fault> {
    // `CLIENT SETINFO`, which redis-rs sends by default, requires a permission that rate limits do not need.
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    // A call does not wait for the acknowledgement of earlier ones.
    let info = info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let manager = Manager::new_with_config(info, config.clone()).map_err(Fault::invalid_url)?;
    // This fails only for timeouts of the pool, which are not set.
    let pool = Pool::builder(manager).max_size(1).build();
    let pool = pool.map_err(|_| Fault::setting("the connection pool is misconfigured"))?;
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => Fault::from_connect_error(error),
        other => Fault::setting(format_args!("the connection pool failed: {other}")),
    })
}

/// Returns how to connect to a server at another address with the same settings.
pub(super) fn at_address(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use mlua::Lua;

    use super::{CHECK, SCRIPT};

    #[test]
    fn the_scripts_compile() {
        for text in [SCRIPT, CHECK] {
            assert!(Lua::new().load(text).into_function().is_ok());
        }
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("script.lua"), SCRIPT).unwrap();
    }

    #[test]
    fn each_algorithm_compiles_on_its_own() {
        for (name, text) in [
            ("bucket", include_str!("lua/bucket.lua")),
            ("interval_bucket", include_str!("lua/interval_bucket.lua")),
            ("window", include_str!("lua/window.lua")),
            ("counter", include_str!("lua/counter.lua")),
            ("log", include_str!("lua/log.lua")),
            ("penalty", include_str!("lua/penalty.lua")),
        ] {
            assert!(Lua::new().load(text).into_function().is_ok(), "{name}");
        }
    }
}
