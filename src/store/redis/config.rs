//! The public configuration of a store's connections, and the servers that it describes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
#[cfg(feature = "redis-tls")]
use redis::{Client, ClientTlsConfig, TlsCertificates};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, parse_redis_url};
#[cfg(feature = "redis-tls")]
use rustls::crypto::{CryptoProvider, ring};
#[cfg(feature = "redis-tls")]
use rustls::pki_types::CertificateDer;
#[cfg(feature = "redis-tls")]
use rustls::pki_types::pem::PemObject;

use super::error::Fault;
use crate::error::ConfigError;
use crate::store::{DEFAULT_PREFIX, escape};
use crate::text::exact;

/// Configures the connections of a [`RedisStore`](crate::RedisStore).
///
/// [`RedisStore::connect`](crate::RedisStore::connect) is enough for a single server with default settings.
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
/// # Reconnecting
///
/// A connection is replaced if it is lost, if its server is no longer the master, or if a reply is overdue: after a
/// twentieth of the [response timeout](Self::response_timeout), or two round trips if they take longer, another
/// connection is opened, and used unless the reply arrives before. A network may have forgotten connections while they
/// were idle. So an idle one is checked every 15 seconds, and before its next call if a reply over another one is
/// overdue, or if it has been idle for 100 ms and another call is under way.
///
/// Host names are resolved for each attempt to connect. Attempts to connect run in the background: the first at once,
/// the others after pauses of 5 ms to 500 ms. Meanwhile, calls use another connection or wait for the current attempt;
/// between attempts, they fail at once. A call that may have run is never sent again. Dropping the store and its clones
/// ends all attempts.
///
/// A connection belongs to the Tokio runtime that opened it. Once that has ended, as after each `#[tokio::test]`, the
/// next call opens another connection. So runtimes can use a store in a `static` one after the other. If a request
/// waits until a reply is overdue because the other runtimes stand still, it opens one more connection on its own.
///
/// # Permissions
///
/// With the [prefix](crate::RedisStore::prefix) `ratelimit`, Redis' user needs these permissions:
///
/// ```text
/// ACL SETUSER limits on >secret resetkeys ~ratelimit:* -@all +evalsha +script|load +script|exists
///   +time +get +set +setrange +del +lindex +lrange +lset +ltrim +rpush +pexpireat
/// ```
///
/// A Cluster also requires `+asking +cluster|slots`, a master behind Sentinel `+role`, a database other than 0
/// `+select`, and the Sentinels themselves `+sentinel|get-master-addr-by-name`. Connecting checks all commands, and the
/// keys of the [prefix](Self::prefix). Most commands that only the script calls are checked since Redis 7.0; before, the
/// error of the first request that needs a missing one reports it.
#[derive(Clone)]
#[must_use = "a configuration does nothing until it is connected"]
pub struct RedisConfig {
    pub(super) servers: Servers,
    urls: Vec<String>,
    pub(super) prefix: String,
    pub(super) connections: usize,
    pub(super) queue_capacity: usize,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    /// The user and the password.
    credentials: Option<(String, String)>,
    sentinel_credentials: Option<(String, String)>,
    master_database: Option<i64>,
    master_tls: Option<bool>,
    #[cfg(feature = "redis-tls")]
    certificates: TlsCertificates,
    before_connect: Option<Arc<Prepare>>,
}

/// Returns the configuration for an attempt to connect.
type Prepare = dyn Fn(RedisConfig) -> BoxFuture<'static, Prepared> + Send + Sync;

type Prepared = Result<RedisConfig, Box<dyn Error + Send + Sync>>;

/// The servers that the URLs of a configuration belong to.
#[derive(Clone)]
pub(super) enum Servers {
    Node,
    /// The Sentinels of the master of this name.
    Sentinel(String),
    /// Some masters of a Cluster.
    Cluster,
}

/// The name of the master that Sentinels report, and how to connect to it at the address that they report.
pub(super) type SentinelMaster = (String, ConnectionInfo);

impl RedisConfig {
    /// Creates the configuration of a single server.
    ///
    /// `url` has the form `redis://user:password@host:6379/0`, with the scheme `rediss` for TLS (feature `redis-tls`),
    /// or `redis+unix:///path`. Connections use RESP3, and RESP2 if the server knows no other protocol, or if the URL
    /// ends with `?protocol=resp2`.
    pub fn node(url: impl Into<String>) -> Self {
        Self::new(Servers::Node, [url])
    }

    /// Creates the configuration of the master that Sentinel names.
    ///
    /// The URLs are those of the Sentinels, which are queried concurrently for each new connection. A user and password
    /// in them are for the Sentinels. [`credentials`](Self::credentials) and
    /// [`master_database`](Self::master_database) are for the master.
    pub fn sentinel<U: Into<String>>(master: impl Into<String>, urls: impl IntoIterator<Item = U>) -> Self {
        Self::new(Servers::Sentinel(master.into()), urls)
    }

    /// Creates the configuration of a Cluster.
    ///
    /// The URLs are those of some masters, from which the store learns the addresses of the others. All connections use
    /// the user, the password and the TLS of the first URL, which the others may repeat. See
    /// [`RedisStore`](crate::RedisStore#in-a-cluster) for how decisions differ in a Cluster.
    #[doc(alias = "redis cluster")]
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self::new(Servers::Cluster, urls)
    }

    fn new<U: Into<String>>(servers: Servers, urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            servers,
            urls: urls.into_iter().map(Into::into).collect(),
            prefix: DEFAULT_PREFIX.to_owned(),
            connections: 2,
            queue_capacity: 10_000,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            credentials: None,
            sentinel_credentials: None,
            master_database: None,
            master_tls: None,
            #[cfg(feature = "redis-tls")]
            certificates: TlsCertificates { client_tls: None, root_cert: None },
            before_connect: None,
        }
    }

    /// Sets the prefix of all key names, as [`RedisStore::prefix`](crate::RedisStore::prefix) does. Connecting then
    /// checks that the user may access keys of this prefix. Defaults to `ratelimit`.
    pub fn prefix(self, prefix: &str) -> Self {
        Self { prefix: escape(prefix), ..self }
    }

    /// Sets the number of connections to each server, 1 to 1024. Defaults to 2.
    ///
    /// Each connection carries one call at a time, which up to 64 requests share; a single connection carries two. A
    /// request is sent at once over a free connection. If there is none, it waits for the reply of another call. So use
    /// more connections if the network is slow. The throughput is up to 64 requests per connection and round trip.
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Sets how many requests may wait for each server, at least 1. Defaults to 10,000.
    ///
    /// The default is about as many as a fast Redis decides in twice the default [deadline](crate::Builder::deadline),
    /// and takes some megabytes. In a Cluster, each master has a queue of its own.
    ///
    /// A request to a full queue fails at once with [`StoreErrorKind::QueueFull`](crate::StoreErrorKind::QueueFull),
    /// and is then handled by [`OnStoreError`](crate::OnStoreError). A request leaves the queue when it is sent, or
    /// when its caller gives up, for instance at its deadline. Each call under way holds up to 64 more requests.
    pub fn queue_capacity(self, requests: usize) -> Self {
        Self { queue_capacity: requests, ..self }
    }

    /// Sets how long opening a connection may take, at least 1 ms. Defaults to 1 s. This includes name resolution,
    /// login and the queries of Sentinels.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets how long a call may wait for its reply, at least 1 ms. Defaults to 500 ms.
    ///
    /// After that, the call fails. After a twentieth of it, [another connection](Self#reconnecting) is opened for the
    /// following calls.
    pub fn response_timeout(self, response_timeout: Duration) -> Self {
        Self { response_timeout, ..self }
    }

    /// Sets the user and password for Redis, in place of those in the URL. The user of a password alone is `default`.
    pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { credentials: Some((user.into(), password.into())), ..self }
    }

    /// Sets the user and password for the Sentinels, in place of those in their URLs.
    pub fn sentinel_credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { sentinel_credentials: Some((user.into(), password.into())), ..self }
    }

    /// Sets the database of the master that Sentinel names. Defaults to 0. For a single server, it is part of the URL.
    pub fn master_database(self, database: u16) -> Self {
        Self { master_database: Some(database.into()), ..self }
    }

    /// Sets whether the master that Sentinel names uses TLS. Defaults to whether the first Sentinel does. For a single
    /// server, the URL's scheme decides.
    pub fn master_tls(self, tls: bool) -> Self {
        Self { master_tls: Some(tls), ..self }
    }

    /// Sets the certificate authorities for servers' certificates, in PEM. Defaults to those of the system.
    ///
    /// TLS is implemented by rustls, with the cryptography provider that the process has installed as its default. If
    /// there is none when the store connects, it installs *ring*.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(pem.into());
        self
    }

    /// Sets the client's certificate with its chain, and its key, in PEM. Defaults to none.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn client_certificate(mut self, certificate_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        let (client_cert, client_key) = (certificate_pem.into(), key_pem.into());
        self.certificates.client_tls = Some(ClientTlsConfig { client_cert, client_key });
        self
    }

    /// Sets a function that is called before each attempt to connect. It is given this configuration, and returns it
    /// with the credentials and the certificates to use now. Defaults to none.
    ///
    /// Use it for passwords and certificates that change, such as the tokens of cloud providers, which are valid for
    /// some minutes. A connection stays open after its token has expired, unless the server closes it; then, the next
    /// one is opened with another token. If the function fails, so does the attempt. Give it a timeout of its own.
    /// Changes to other settings than credentials and certificates have no effect.
    ///
    /// ```no_run
    /// use tower_ratelimit::RedisConfig;
    ///
    /// # async fn token() -> Result<String, std::io::Error> { unimplemented!() }
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = RedisConfig::node("rediss://cache.internal:6379")
    ///     .before_connect(|config| async { Ok(config.credentials("limits", token().await?)) });
    /// let store = config.connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn before_connect<F>(mut self, prepare: impl Fn(Self) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Self, Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.before_connect = Some(Arc::new(move |config| prepare(config).boxed()));
        self
    }

    /// Returns the configuration for an attempt to connect.
    pub(super) async fn prepared(&self) -> Result<Self, Fault> {
        let Some(prepare) = &self.before_connect else { return Ok(self.clone()) };
        let failed = |error| Fault::Setting(ConfigError::new(format!("`RedisConfig::before_connect` failed: {error}")));
        prepare(self.clone()).await.map_err(failed)
    }

    /// Checks the configuration, and returns how to connect to the servers, and to the master if they are Sentinels.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Setting`] if the configuration is invalid.
    pub(super) fn servers(&self) -> Result<(Vec<ConnectionInfo>, Option<SentinelMaster>), Fault> {
        if !(1..=1024).contains(&self.connections) {
            return Err(Fault::setting(format_args!("{} connections: use 1 to 1024", self.connections)));
        }
        if self.queue_capacity == 0 {
            return Err(Fault::setting("queue_capacity is 0: let at least 1 request wait"));
        }
        let timeouts = [("connect_timeout", self.connect_timeout), ("response_timeout", self.response_timeout)];
        for (setting, timeout) in timeouts {
            if timeout < Duration::from_millis(1) {
                return Err(Fault::setting(format_args!("{setting} is {}: use at least 1 ms", exact(timeout))));
            }
        }
        if self.urls.is_empty() {
            return Err(Fault::setting("there is no URL: give at least one, or better several"));
        }
        let (credentials, master) = match &self.servers {
            Servers::Sentinel(master) => (&self.sentinel_credentials, Some(master)),
            Servers::Node | Servers::Cluster => (&self.credentials, None),
        };
        let has_settings_of_sentinel =
            self.sentinel_credentials.is_some() || self.master_database.is_some() || self.master_tls.is_some();
        if master.is_none() && has_settings_of_sentinel {
            return Err(Fault::setting(
                "`sentinel_credentials`, `master_database` and `master_tls` have no effect without Sentinel: leave them \
                 out, or use `RedisConfig::sentinel`",
            ));
        }
        let servers = self.urls.iter().map(|url| self.connection_info(url, credentials));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let password = |info: &ConnectionInfo| info.redis_settings().password().map(str::to_owned);
        let differs = |other: &ConnectionInfo| {
            let (first, own) = (&servers[0], password(other));
            uses_tls(first) != uses_tls(other) || own.is_some() && own != password(first)
        };
        if master.is_none() && servers.iter().any(differs) {
            return Err(Fault::setting(
                "the URLs differ in TLS or the password, but the first decides for the Cluster: write all alike, or \
                 leave the password out of the others",
            ));
        }
        #[cfg(feature = "redis-tls")]
        if (self.certificates.root_cert.is_some() || self.certificates.client_tls.is_some())
            && !servers.iter().all(uses_tls)
            && !(master.is_some() && self.master_tls == Some(true))
        {
            return Err(Fault::setting("certificates are given, but not all URLs use TLS: write rediss://"));
        }
        let master = match master {
            Some(name) => Some((name.clone(), self.master(&servers)?)),
            None => None,
        };
        Ok((servers, master))
    }

    /// Returns the addresses of the servers, without credentials.
    pub(super) fn address(&self) -> String {
        let address =
            |url: &String| parse(url).map_or_else(|_| "an unreadable URL".into(), |info| info.addr().to_string());
        let addresses = self.urls.iter().map(address).collect::<Vec<_>>().join(", ");
        match &self.servers {
            Servers::Sentinel(master) => format!("{master:?} of the Sentinels {addresses}"),
            Servers::Node | Servers::Cluster => addresses,
        }
    }

    /// Returns how to connect to the server at `url`.
    fn connection_info(&self, url: &str, credentials: &Option<(String, String)>) -> Result<ConnectionInfo, Fault> {
        let mut info = parse(url)?;
        if let Some((user, password)) = credentials {
            let settings = info.redis_settings().clone().set_username(user).set_password(password);
            info = info.set_redis_settings(settings);
        }
        #[cfg(feature = "redis-tls")]
        if uses_tls(&info) {
            return self.with_certificates(info);
        }
        Ok(info)
    }

    /// Returns how to connect to the master that Sentinels name, but for its address.
    fn master(&self, sentinels: &[ConnectionInfo]) -> Result<ConnectionInfo, Fault> {
        if sentinels.iter().any(|sentinel| sentinel.redis_settings().db() != 0) {
            return Err(Fault::setting(
                "a Sentinel's URL has a database, but Sentinels have none: use `master_database` for the master's",
            ));
        }
        let uses_tls = self.master_tls.unwrap_or(uses_tls(&sentinels[0]));
        let url = if uses_tls { "rediss://master" } else { "redis://master" };
        let master = self.connection_info(url, &self.credentials)?;
        let settings = master.redis_settings().clone().set_db(self.master_database.unwrap_or(0));
        Ok(master.set_redis_settings(settings))
    }

    /// Adds the certificates to a connection that uses TLS.
    #[cfg(feature = "redis-tls")]
    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        // Without a provider, rustls panics if dependencies enable two of them.
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread has just installed one.
            let _ = ring::default_provider().install_default();
        }
        let TlsCertificates { root_cert, client_tls } = &self.certificates;
        let client = client_tls.as_ref().map(|client| &client.client_cert);
        let given = [("ca_certificates", root_cert.as_ref()), ("client_certificate", client)];
        for (setting, pem) in given {
            // redis-rs would ignore invalid ones.
            if pem.is_some_and(|pem| CertificateDer::from_pem_slice(pem).is_err()) {
                return Err(Fault::setting(format_args!(
                    concat!(
                        "{} holds no certificate: use the text of a PEM file, which begins with ",
                        "-----BEGIN CERTIFICATE-----"
                    ),
                    setting
                )));
            }
        }
        let client = Client::build_with_tls(info, self.certificates.clone())
            .map_err(|error| Fault::setting(format_args!("the certificates can't be read: {error}")))?;
        Ok(client.get_connection_info().clone())
    }
}

/// Parses a URL. Fails if it requires TLS, and the crate was built without it.
fn parse(url: &str) -> Result<ConnectionInfo, Fault> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if !cfg!(feature = "redis-tls") && matches!(&*scheme, "rediss" | "valkeys") {
        return Err(Fault::setting(
            "a URL requires TLS, but tower-ratelimit was built without it: enable its feature `redis-tls`",
        ));
    }
    let info = url.into_connection_info().map_err(Fault::invalid_url)?;
    let Some(url) = parse_redis_url(url) else { return Ok(info) };
    let parameters = if url.has_host() { "protocol" } else { "protocol db user pass" };
    let is_unknown = |name: &str| parameters.split(' ').all(|known| known != name);
    let unknown = url.query_pairs().map(|(name, _)| name).find(|name| is_unknown(name));
    // redis-rs checks a fragment for TLS only. Neither is shown if it may be the end of a password.
    if (url.fragment().is_some() && !uses_tls(&info)) || unknown.as_ref().is_some_and(|name| name.contains('@')) {
        return Err(Fault::setting("a URL has a # or a ? that has no effect: write %23 or %3F in a password"));
    }
    if let Some(name) = unknown {
        return Err(Fault::setting(format_args!(
            "a URL has the parameter {name:?}, which has no effect: leave it out"
        )));
    }
    let is_chosen = url.query_pairs().any(|(name, _)| name == "protocol");
    let settings = info.redis_settings().clone();
    Ok(if is_chosen { info } else { info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3)) })
}

fn uses_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig").field("servers", &self.address()).finish_non_exhaustive()
    }
}
