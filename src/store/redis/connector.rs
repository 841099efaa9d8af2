//! Opens connections to a server, and loads the script that decides requests there.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::{Connection, Manager, Pool, PoolError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::cluster::NodeAddress;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, Role, cmd};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::config::{RedisConfig, SentinelMaster, Servers};
use super::error::Fault;
use super::script::{CHECK, script};

/// The time after which the kernel probes an idle connection. On Linux, it closes a connection if data is not
/// acknowledged within twice this time.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Opens connections to the servers of a configuration, or to one master of its Cluster, and loads the script.
pub(super) struct Connector {
    pub(super) config: RedisConfig,
    master: Option<NodeAddress>,
    /// The configurations of connections in RESP3, and in RESP2.
    clients: [AsyncConnectionConfig; 2],
    /// Why the server accepted no writes when the first connection was opened.
    refused: OnceLock<Fault>,
    /// The hash of the script, once a server has loaded it.
    hash: OnceLock<Box<str>>,
    /// Held while the script is loaded, so that it is sent once.
    loading: Mutex<()>,
    /// The time of the round trip when a connection was last opened or checked, in µs.
    round_trip: AtomicU64,
    /// Changes when a connection is lost, which the client reports without a call, or silent: others may be
    /// dead, too.
    pub(super) suspicion: watch::Sender<()>,
    /// How often a server was found to be a replica. Earlier connections are closed, because they lead to the same.
    pub(super) demotions: AtomicU64,
}

impl Connector {
    pub(super) fn new(config: RedisConfig, master: Option<NodeAddress>) -> Self {
        let suspicion = watch::Sender::default();
        let report = suspicion.clone();
        // Calls and attempts to connect have timeouts of their own.
        let resp2 = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let resp3 = resp2.clone().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                report.send_replace(());
            }
            Ok::<_, Infallible>(())
        });
        let (hash, refused, loading, round_trip, demotions) = Default::default();
        Self { config, master, clients: [resp3, resp2], refused, hash, loading, round_trip, suspicion, demotions }
    }

    /// Returns why the server accepted no writes when the first connection was opened.
    pub(super) fn refused(&self) -> Option<Fault> {
        self.refused.get().cloned()
    }

    /// Returns the hash of the script.
    pub(super) fn hash(&self) -> &str {
        self.hash.get().map_or("", |hash| hash)
    }

    /// Returns the time after which a reply is overdue: by default, half of the default deadline, so that the next
    /// request finds another connection.
    pub(super) fn patience(&self) -> Duration {
        let round_trip = Duration::from_micros(self.round_trip.load(Ordering::Relaxed));
        (2 * round_trip).clamp(self.config.response_timeout / 20, self.config.response_timeout)
    }

    /// Opens a connection through the first of the servers with which this succeeds, and loads the script if the server
    /// does not have it.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let (mut servers, sentinel) = self.config.prepared().await?.servers()?;
        if let Some(master) = &self.master {
            servers = vec![at_address(&servers[0], master.host().to_owned(), master.port())];
        }
        let attempts = servers
            .into_iter()
            .map(|server| timeout(self.config.connect_timeout, self.open_through(server, sentinel.as_ref())));
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
    async fn open_through(
        &self,
        server: ConnectionInfo,
        sentinel: Option<&SentinelMaster>,
    ) -> Result<MultiplexedConnection, Fault> {
        let mut connection = self.open(server).await?;
        if let Some((name, master)) = sentinel {
            let address: Result<Option<(String, u16)>, _> =
                cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut connection).await;
            let (host, port) = address.map_err(Fault::from_connect_error)?.ok_or(Fault::NoMaster)?;
            connection = self.open(at_address(master, host, port)).await?;
            match cmd("ROLE").query_async(&mut connection).await.map_err(Fault::from_connect_error)? {
                Role::Primary { .. } => {}
                // The Sentinel does not know of a failover yet.
                _ => return Err(Fault::NoMaster),
            }
        }
        self.load(&mut connection).await?;
        Ok(connection)
    }

    /// Opens a connection, in RESP2 if the server does not know RESP3.
    async fn open(&self, info: ConnectionInfo) -> Result<MultiplexedConnection, Fault> {
        let settings = info.redis_settings().clone();
        let [resp3, resp2] = &self.clients;
        if settings.protocol() != ProtocolVersion::RESP2 {
            let opened = open(info.clone(), resp3).await;
            if !opened.as_ref().is_err_and(Fault::lacks_resp3) {
                return opened;
            }
        }
        open(info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP2)), resp2).await
    }

    /// Checks a connection, and measures its round trip. Returns whether the server has the script, because `PING`
    /// requires another permission.
    pub(super) async fn check(&self, connection: &mut MultiplexedConnection) -> Result<bool, Fault> {
        let asked = Instant::now();
        let reply = cmd("SCRIPT").arg("EXISTS").arg(self.hash()).query_async(connection).await;
        self.round_trip.store(asked.elapsed().as_micros() as u64, Ordering::Relaxed);
        let (is_loaded,): (bool,) = reply?;
        Ok(is_loaded)
    }

    /// Loads the script, unless the server has it. The first time, checks the commands that it needs.
    pub(super) async fn load(&self, connection: &mut MultiplexedConnection) -> Result<(), Fault> {
        let _loading = self.loading.lock().await;
        // Asked in any case: without a login, a server answers this with an error, but closes the connection on a long
        // text.
        let is_loaded = self.check(connection).await;
        if is_loaded.as_ref().is_err_and(Fault::lacks_permission)
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
            let refused: String =
                cmd("EVALSHA").arg(check).arg(0).arg(&self.config.prefix).query_async(connection).await?;
            // The key belongs to one master of a Cluster.
            let is_elsewhere =
                matches!(self.config.servers, Servers::Cluster) && refused.contains("attempted to access");
            if !refused.is_empty() && !is_elsewhere {
                let _ = self.refused.set(Fault::script(refused));
            }
        }
        let hash = load_text(connection, &script()).await?;
        // All servers compute the same hash.
        let _ = self.hash.set(hash.into());
        Ok(())
    }
}

/// Loads a script, and returns its hash.
async fn load_text(connection: &mut MultiplexedConnection, text: &str) -> Result<String, Fault> {
    Ok(cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await?)
}

/// Opens a connection by a pool, which does not keep it. (It would check the connection by commands that need other
/// permissions.)
async fn open(info: ConnectionInfo, client: &AsyncConnectionConfig) -> Result<MultiplexedConnection, Fault> {
    // `CLIENT SETINFO`, which redis-rs sends by default, requires a permission that rate limits do not need.
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    // A call does not wait for the acknowledgement of earlier ones. The kernel, too, detects dead connections.
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(2 * KEEPALIVE);
    let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
    let manager = Manager::new_with_config(info, client.clone()).map_err(Fault::invalid_url)?;
    let pool = Pool::builder(manager).build().map_err(pool_failed)?;
    pool.get().await.map(Connection::take).map_err(|error| match error {
        PoolError::Backend(error) => Fault::from_connect_error(error),
        other => pool_failed(other),
    })
}

/// Returns the error of a pool itself. Only its timeouts could cause one, and they are not set.
fn pool_failed(error: impl Display) -> Fault {
    Fault::setting(format_args!("the connection pool failed: {error}"))
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
