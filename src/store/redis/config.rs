//! How to reach Redis.

use std::fmt;
use std::time::Duration;

use deadpool_redis::redis::sentinel::SentinelClient;
use deadpool_redis::redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
};

use super::RedisStore;
use super::cluster::{Cluster, Seeds};
use super::connection::{self, Connections, Source};
use super::deployment::Deployment;
use super::error::Fault;
use super::queue::Queue;
use super::sentinel;
use super::server::Server;
#[cfg(feature = "redis-tls")]
use super::tls::{self, Certificates};
use crate::error::StoreError;

/// How to reach the Redis of a [`RedisStore`], where a URL alone can't say it.
///
/// ```no_run
/// use std::time::Duration;
/// use tower_ratelimit::RedisConfig;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisConfig::node("redis://cache.internal:6379/2")
///     .credentials("limits", "secret")
///     .response_timeout(Duration::from_millis(200))
///     .connect()
///     .await?;
///
/// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
/// let store = RedisConfig::sentinel("mymaster", sentinels).connect().await?;
/// # Ok(())
/// # }
/// ```
///
/// # What happens when Redis is gone
///
/// A connection is replaced when it was cut, when a reply did not come in time, and when its server
/// is no longer the master. Attempts run in the background: the first at once, the others after
/// 10 ms to 500 ms. Meanwhile calls use another connection, or wait for the attempt that is under
/// way; between attempts they fail at once. A call is never sent twice. Dropping the store and its
/// clones ends all of it.
///
/// # Permissions
///
/// This is all that the store's user needs, with the [prefix](RedisStore::prefix) `ratelimit`:
///
/// ```text
/// ACL SETUSER limits on >secret resetkeys ~ratelimit:* -@all +evalsha +script|load +script|exists
///   +time +get +set +setrange +del +lindex +lrange +lset +ltrim +rpush +pexpireat
/// ```
///
/// A Cluster takes `+asking +cluster|slots` as well, a master behind Sentinel `+role`, a database other than 0
/// `+select`, and the Sentinels themselves `+role +sentinel|masters`. Connecting tries only the permissions for the
/// script: what else is missing shows as an error of the first requests, which says so. No command is sent that takes
/// more, except `CLIENT SETINFO` (whose refusal has no effect) where a master behind Sentinel speaks TLS with
/// certificates of your own.
#[derive(Clone)]
#[must_use = "a configuration does nothing until it is connected"]
pub struct RedisConfig {
    topology: Topology,
    connections: usize,
    queue_capacity: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    credentials: Option<Credentials>,
    sentinel_credentials: Option<Credentials>,
    sentinel_database: i64,
    master_tls: Option<bool>,
    #[cfg(feature = "redis-tls")]
    certificates: Certificates,
}

#[derive(Clone)]
enum Topology {
    Node(String),
    Sentinel { master: String, urls: Vec<String> },
    Cluster { urls: Vec<String> },
}

#[derive(Clone, PartialEq)]
struct Credentials {
    user: String,
    password: String,
}

impl RedisConfig {
    /// One server, at a URL such as `redis://user:password@host:6379/0`, with `rediss://` for TLS
    /// (feature `redis-tls`), or `redis+unix:///path`.
    pub fn node(url: impl Into<String>) -> Self {
        Self::new(Topology::Node(url.into()))
    }

    /// The server that Sentinel names as the master of this name, asked again whenever there is to
    /// be a new connection. The URLs are those of Sentinels, asked up to three at a time; user and
    /// password in them are the Sentinels' own. [`credentials`](Self::credentials) and
    /// [`sentinel_database`](Self::sentinel_database) are those of the master.
    pub fn sentinel<U: Into<String>>(master: impl Into<String>, urls: impl IntoIterator<Item = U>) -> Self {
        Self::new(Topology::Sentinel { master: master.into(), urls: urls.into_iter().map(Into::into).collect() })
    }

    /// A Cluster: one of the masters at these URLs is asked for the others, so give several. All are
    /// spoken to as the first URL says: with its user, its password and its TLS. See
    /// [`RedisStore`](RedisStore#in-a-cluster) for what a Cluster changes.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::new(Topology::Cluster { urls: urls.into_iter().map(Into::into).collect() })
    }

    fn new(topology: Topology) -> Self {
        Self {
            topology,
            connections: 2,
            queue_capacity: 10_000,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            credentials: None,
            sentinel_credentials: None,
            sentinel_database: 0,
            master_tls: None,
            #[cfg(feature = "redis-tls")]
            certificates: Certificates::default(),
        }
    }

    /// How many connections to keep, to each server, 1 to 1024: 2, unless this says otherwise. All calls share
    /// them, so there need not be many: another one lets another core read replies.
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Sets how many requests may wait for a server at a time, from 1: for each master of a Cluster. Defaults to
    /// 10,000, about as many as a fast Redis decides in twice the default
    /// [deadline](crate::Builder::deadline), and some megabytes.
    ///
    /// A request beyond that fails at once, with [`StoreErrorKind::QueueFull`](crate::StoreErrorKind::QueueFull), and
    /// is answered as [`OnStoreError`](crate::OnStoreError) says. A request leaves the queue when it is sent, and when
    /// it is given up, such as at its deadline. Calls that are under way hold up to 128 requests more.
    pub fn queue_capacity(self, requests: usize) -> Self {
        Self { queue_capacity: requests, ..self }
    }

    /// How long opening a connection may take, from the name's look-up to the log-in: 1 s, unless
    /// this says otherwise. At least 1 ms. Through Sentinel, this is for the master; a Sentinel
    /// has 1 s.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// After how long without a reply a call has failed, and its connection is replaced: 500 ms,
    /// unless this says otherwise. At least 1 ms.
    pub fn response_timeout(self, response_timeout: Duration) -> Self {
        Self { response_timeout, ..self }
    }

    /// The user and password at Redis, instead of what the URL has. Who has only a password is
    /// called `default`.
    pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { credentials: Some(Credentials { user: user.into(), password: password.into() }), ..self }
    }

    /// The user and password at the Sentinels, instead of what their URLs have.
    pub fn sentinel_credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { sentinel_credentials: Some(Credentials { user: user.into(), password: password.into() }), ..self }
    }

    /// The database of the master that Sentinel names: 0, unless this says otherwise. A node's
    /// stands in its URL.
    pub fn sentinel_database(self, database: u16) -> Self {
        Self { sentinel_database: database.into(), ..self }
    }

    /// Whether the master that Sentinel names speaks TLS: as the Sentinels do, unless this says
    /// otherwise. A node's URL says it.
    pub fn sentinel_master_tls(self, tls: bool) -> Self {
        Self { master_tls: Some(tls), ..self }
    }

    /// The authorities that a server's certificate is trusted by, in PEM: those of the system,
    /// unless this says otherwise.
    ///
    /// TLS is rustls with the cryptography that the process has installed as its default. A
    /// process without one gets ring: an application that wants another one installs it before it
    /// connects.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(pem.into());
        self
    }

    /// The certificate that servers are shown, with its chain, and its key, in PEM: none, unless
    /// this says otherwise.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn client_certificate(mut self, certificate_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// Connects, and loads the script.
    ///
    /// # Errors
    ///
    /// When the configuration is refused, or there is no Redis that answers, accepts the
    /// credentials and lets us load a script.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let deployment = self.build().map_err(|fault| StoreError::unusable(None, fault))?;
        deployment.open().await.map_err(|fault| StoreError::unusable(Some(self.place()), fault))?;
        Ok(RedisStore::over(deployment, self.place()))
    }

    /// Connects in the background, for services that must start while Redis is down: until there
    /// is a connection, decisions fail. Outside a Tokio runtime, the first decision connects.
    ///
    /// # Errors
    ///
    /// When the configuration is refused.
    pub fn connect_lazily(self) -> Result<RedisStore, StoreError> {
        let deployment = self.build().map_err(|fault| StoreError::unusable(None, fault))?;
        deployment.open_in_background();
        Ok(RedisStore::over(deployment, self.place()))
    }

    /// Connections that are opened when they are called for.
    pub(super) fn build(&self) -> Result<Deployment, Fault> {
        if !(1..=1024).contains(&self.connections) {
            return Err(Fault::Setting(format!("{} connections: use 1 to 1024", self.connections).into()));
        }
        if self.queue_capacity == 0 {
            return Err(Fault::Setting("queue_capacity is 0: let at least 1 request wait".into()));
        }
        for (name, timeout) in [("connect_timeout", self.connect_timeout), ("response_timeout", self.response_timeout)]
        {
            if timeout < Duration::from_millis(1) {
                return Err(Fault::Setting(format!("{name} is {timeout:?}: use at least 1 ms").into()));
            }
        }
        let source = match &self.topology {
            Topology::Node(url) => Source::node(self.info(url)?, self.timeouts(), self.connections)?,
            Topology::Sentinel { master, urls } => {
                Source::sentinel(self.sentinel_client(master, urls)?, self.timeouts())
            }
            Topology::Cluster { urls } => {
                let seeds = urls.iter().map(|url| self.info(url)).collect::<Result<_, _>>()?;
                let seeds = Seeds::new(seeds, self.timeouts(), self.connections, self.queue_capacity)?;
                return Ok(Deployment::Cluster(Cluster::new(seeds)));
            }
        };
        let connections = Connections::new(source, self.connections);
        Ok(Deployment::Single(Queue::new(Server::Single(connections), self.queue_capacity)))
    }

    /// Where it is, without what is secret.
    fn place(&self) -> String {
        let addresses = |urls: &[String]| urls.iter().map(|url| address(url)).collect::<Vec<_>>().join(", ");
        match &self.topology {
            Topology::Node(url) => address(url),
            Topology::Sentinel { master, urls } => format!("{master:?} of the Sentinels {}", addresses(urls)),
            Topology::Cluster { urls } => addresses(urls),
        }
    }

    fn info(&self, url: &str) -> Result<ConnectionInfo, Fault> {
        let info = parse(url)?;
        let settings = with_credentials(info.redis_settings().clone(), self.credentials.as_ref());
        self.secured(info.set_redis_settings(settings))
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
    }

    #[cfg(feature = "redis-tls")]
    fn secured(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        self.prepare_tls(speaks_tls(&info))?;
        self.certificates.apply(info)
    }

    #[cfg(not(feature = "redis-tls"))]
    fn secured(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        Ok(info)
    }

    #[cfg(feature = "redis-tls")]
    fn prepare_tls(&self, is_spoken: bool) -> Result<(), Fault> {
        if is_spoken {
            tls::provide();
        } else if !self.certificates.is_empty() {
            return Err(Fault::Setting("certificates are given, but no URL speaks TLS: write rediss://".into()));
        }
        Ok(())
    }

    fn sentinel_client(&self, master: &str, urls: &[String]) -> Result<SentinelClient, Fault> {
        let sentinels = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = sentinels.first() else {
            return Err(Fault::Setting("there is no Sentinel: give at least one URL".into()));
        };
        if sentinels.iter().any(|sentinel| speaks_tls(sentinel) != speaks_tls(first)) {
            return Err(Fault::Setting("some Sentinels speak TLS and some do not: use one scheme for all".into()));
        }
        if self.sentinel_credentials.is_none()
            && sentinels.iter().any(|sentinel| credentials_of(sentinel) != credentials_of(first))
        {
            let what = "the Sentinels' URLs have different users or passwords: use one for all";
            return Err(Fault::Setting(what.into()));
        }
        if sentinels.iter().any(|sentinel| sentinel.redis_settings().db() != 0) {
            let what =
                "a Sentinel's URL has a database, which Sentinels have not: use `sentinel_database` for the master's";
            return Err(Fault::Setting(what.into()));
        }

        let by_tls = self.master_tls.unwrap_or(speaks_tls(first));
        if by_tls {
            refuse_tls_without_feature()?;
        }
        #[cfg(feature = "redis-tls")]
        self.prepare_tls(by_tls || speaks_tls(first))?;
        let ask = |sentinel: ConnectionInfo| {
            let settings = with_credentials(sentinel.redis_settings().clone(), self.sentinel_credentials.as_ref());
            let sentinel = sentinel.set_redis_settings(settings.set_skip_set_lib_name());
            #[cfg(feature = "redis-tls")]
            let sentinel = self.certificates.apply(sentinel)?;
            Ok(sentinel)
        };
        let sentinels = sentinels.into_iter().map(ask).collect::<Result<Vec<_>, Fault>>()?;
        let settings = RedisConnectionInfo::default().set_db(self.sentinel_database);
        let settings = connection::settings(with_credentials(settings, self.credentials.as_ref()));
        #[cfg(feature = "redis-tls")]
        if by_tls && !self.certificates.is_empty() {
            let certificates = self.certificates.parse()?;
            return sentinel::client_with_certificates(master, &sentinels, &settings, certificates);
        }
        sentinel::client(master, sentinels, settings, by_tls)
    }
}

fn with_credentials(settings: RedisConnectionInfo, credentials: Option<&Credentials>) -> RedisConnectionInfo {
    match credentials {
        Some(Credentials { user, password }) => settings.set_username(user).set_password(password),
        None => settings,
    }
}

fn parse(url: &str) -> Result<ConnectionInfo, Fault> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if scheme == "rediss" || scheme == "valkeys" {
        refuse_tls_without_feature()?;
    }
    url.into_connection_info().map_err(Fault::url)
}

fn refuse_tls_without_feature() -> Result<(), Fault> {
    if cfg!(feature = "redis-tls") {
        return Ok(());
    }
    let what = "TLS is asked for, but tower-ratelimit was built without it: enable its feature `redis-tls`";
    Err(Fault::Setting(what.into()))
}

fn speaks_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

fn credentials_of(info: &ConnectionInfo) -> Option<Credentials> {
    let settings = info.redis_settings();
    let password = settings.password()?.to_owned();
    Some(Credentials { user: settings.username().unwrap_or("default").to_owned(), password })
}

/// Returns the address of a URL, without its credentials.
fn address(url: &str) -> String {
    parse(url).map_or_else(|_| "an unreadable URL".to_owned(), |info| info.addr().to_string())
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut config = f.debug_struct("RedisConfig");
        let addresses = |urls: &[String]| urls.iter().map(|url| address(url)).collect::<Vec<_>>();
        match &self.topology {
            Topology::Node(url) => config.field("node", &address(url)),
            Topology::Sentinel { master, urls } => config.field("master", master).field("sentinels", &addresses(urls)),
            Topology::Cluster { urls } => config.field("cluster", &addresses(urls)),
        };
        config
            .field("connections", &self.connections)
            .field("queue_capacity", &self.queue_capacity)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("user", &self.credentials.as_ref().map(|credentials| &credentials.user))
            .finish_non_exhaustive()
    }
}
