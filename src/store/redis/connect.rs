//! Checks a configuration, and connects to the servers that it describes.

use std::sync::Arc;
use std::time::Duration;

use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsMode};

use super::cluster::Cluster;
use super::config::{Credentials, RedisConfig, Servers};
use super::connector::{self, Connector, tcp_settings};
use super::error::Fault;
use super::store::{Deployment, RedisStore};
#[cfg(feature = "redis-tls")]
use super::tls;
use super::workers::Workers;
use crate::error::StoreError;

impl RedisStore {
    /// Connects to the Redis at `url`, such as `redis://user:password@host:6379/0`.
    ///
    /// Short for [`RedisConfig::node`] and [`connect`](RedisConfig::connect).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid (its [`source`](std::error::Error::source) is then a
    /// [`ConfigError`](crate::ConfigError)), if Redis does not answer or rejects the credentials, or if a command that
    /// the store needs is not permitted.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        RedisConfig::node(url).connect().await
    }
}

impl RedisConfig {
    /// Connects, loads the script, and checks that the server permits all [commands](RedisConfig#permissions).
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid (its [`source`](std::error::Error::source) is then a
    /// [`ConfigError`](crate::ConfigError)), if Redis does not answer or rejects the credentials, or if a command that
    /// the store needs is not permitted.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let deployment = self.build().map_err(invalid)?;
        deployment.open().await.map_err(|fault| StoreError::unusable(Some(self.address()), fault))?;
        Ok(RedisStore::new(deployment, self.address()))
    }

    /// Connects in the background, for services that must start while Redis is down.
    ///
    /// Decisions fail until there is a connection. Outside a Tokio runtime, the first decision connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid. Its [`source`](std::error::Error::source) is a
    /// [`ConfigError`](crate::ConfigError).
    pub fn connect_lazily(self) -> Result<RedisStore, StoreError> {
        let deployment = self.build().map_err(invalid)?;
        deployment.open_in_background();
        Ok(RedisStore::new(deployment, self.address()))
    }

    /// Checks the configuration. The connections are opened later.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Setting`] if the configuration is invalid.
    fn build(&self) -> Result<Deployment, Fault> {
        if !(1..=1024).contains(&self.connections) {
            return Err(Fault::setting(format_args!("{} connections: use 1 to 1024", self.connections)));
        }
        if self.queue_capacity == 0 {
            return Err(Fault::setting("queue_capacity is 0: let at least 1 request wait"));
        }
        let timeouts = [("connect_timeout", self.connect_timeout), ("response_timeout", self.response_timeout)];
        for (setting, timeout) in timeouts {
            if timeout < Duration::from_millis(1) {
                return Err(Fault::setting(format_args!("{setting} is {timeout:?}: use at least 1 ms")));
            }
        }
        let timeouts = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout));
        let mut servers = self.connection_infos()?;
        let connector = match &self.servers {
            Servers::Node => Connector::to_server(servers.swap_remove(0), timeouts, self.connections)?,
            Servers::Sentinel(master) => Connector::to_master(self.sentinel_client(master, servers)?, timeouts),
            Servers::Cluster => {
                let cluster = Cluster::new(servers, timeouts, self.connections, self.queue_capacity)?;
                return Ok(Deployment::Cluster(Arc::new(cluster)));
            }
        };
        Ok(Deployment::Single(Arc::new(Workers::new(connector, self.connections, self.queue_capacity))))
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

    /// Returns how to connect to the servers of all URLs.
    fn connection_infos(&self) -> Result<Vec<ConnectionInfo>, Fault> {
        let mut servers = self.urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>, _>>()?;
        let credentials = match &self.servers {
            Servers::Sentinel(_) => &self.sentinel_credentials,
            Servers::Node | Servers::Cluster => &self.credentials,
        };
        for server in &mut servers {
            let settings = with_credentials(server.redis_settings().clone(), credentials.as_ref());
            *server = server.clone().set_redis_settings(settings.set_skip_set_lib_name());
        }
        #[cfg(feature = "redis-tls")]
        if servers.iter().all(uses_tls) || matches!(self.servers, Servers::Sentinel(_)) && self.master_tls == Some(true)
        {
            tls::install_provider();
            return servers.into_iter().map(|server| self.certificates.apply(server)).collect();
        } else if !self.certificates.is_empty() {
            return Err(Fault::setting("certificates are given, but not all URLs use TLS: write rediss://"));
        }
        Ok(servers)
    }

    fn sentinel_client(&self, master: &str, sentinels: Vec<ConnectionInfo>) -> Result<SentinelClient, Fault> {
        let Some(first) = sentinels.first() else {
            return Err(Fault::setting("there is no Sentinel: give at least one URL"));
        };
        if sentinels.iter().any(|sentinel| uses_tls(sentinel) != uses_tls(first)) {
            return Err(Fault::setting("some Sentinels use TLS and some do not: use one scheme for all"));
        }
        if sentinels.iter().any(|sentinel| credentials_of(sentinel) != credentials_of(first)) {
            return Err(Fault::setting("the Sentinels' URLs have different users or passwords: use one for all"));
        }
        if sentinels.iter().any(|sentinel| sentinel.redis_settings().db() != 0) {
            return Err(Fault::setting(
                "a Sentinel's URL has a database, but Sentinels have none: use `master_database` for the master's",
            ));
        }
        let master_uses_tls = self.master_tls.unwrap_or(uses_tls(first));
        if master_uses_tls {
            check_tls_feature()?;
        }
        let settings = RedisConnectionInfo::default().set_db(self.master_database);
        let settings = connector::settings(with_credentials(settings, self.credentials.as_ref()));
        #[cfg(feature = "redis-tls")]
        if master_uses_tls && !self.certificates.is_empty() {
            return self.certificates.sentinel_client(master, &sentinels, &settings);
        }
        let mut node =
            SentinelNodeConnectionInfo::default().set_redis_connection_info(settings).set_tcp_settings(tcp_settings());
        if master_uses_tls {
            node = node.set_tls_mode(TlsMode::Secure);
        }
        // Without TLS, redis-rs requires a `String`.
        let client = SentinelClient::build(sentinels, String::from(master), Some(node), SentinelServerType::Master);
        client.map_err(Fault::setting)
    }
}

fn parse(url: &str) -> Result<ConnectionInfo, Fault> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if scheme == "rediss" || scheme == "valkeys" {
        check_tls_feature()?;
    }
    url.into_connection_info().map_err(Fault::invalid_url)
}

/// Returns an error unless the crate was built with TLS.
fn check_tls_feature() -> Result<(), Fault> {
    if cfg!(feature = "redis-tls") {
        return Ok(());
    }
    Err(Fault::setting("a URL requires TLS, but tower-ratelimit was built without it: enable its feature `redis-tls`"))
}

fn uses_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

fn with_credentials(settings: RedisConnectionInfo, credentials: Option<&Credentials>) -> RedisConnectionInfo {
    match credentials {
        Some(Credentials { user, password }) => settings.set_username(user).set_password(password),
        None => settings,
    }
}

/// Returns the user and the password. A user without a password is ignored.
fn credentials_of(info: &ConnectionInfo) -> Option<(&str, &str)> {
    let settings = info.redis_settings();
    Some((settings.username().unwrap_or("default"), settings.password()?))
}

/// Returns the error of an invalid configuration.
fn invalid(fault: Fault) -> StoreError {
    match fault {
        Fault::Setting(error) => StoreError::unusable(None, error),
        fault => StoreError::unusable(None, fault),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::error::ConfigError;

    #[test]
    fn an_invalid_configuration_is_a_config_error() {
        let node = || RedisConfig::node("redis://127.0.0.1:6379");
        let no_urls: [&str; 0] = [];
        for (config, expected) in [
            (RedisConfig::node("redis//localhost"), "the URL of Redis is invalid: write redis://host:port"),
            (node().connections(0), "the configuration of Redis is invalid: 0 connections: use 1 to 1024"),
            (node().queue_capacity(0), "the configuration of Redis is invalid: queue_capacity is 0"),
            (RedisConfig::sentinel("main", no_urls), "the configuration of Redis is invalid: there is no Sentinel"),
            (RedisConfig::cluster(no_urls), "there is no URL"),
            (
                RedisConfig::cluster(["redis+unix:///run/redis.sock"]),
                "the configuration of Redis is invalid: \
                 a Cluster is not reachable through the Unix socket /run/redis.sock",
            ),
        ] {
            let error = config.connect_lazily().unwrap_err();
            let cause = error.source().and_then(|source| source.downcast_ref::<ConfigError>()).unwrap();
            assert!(cause.to_string().starts_with(expected), "{cause}");
            assert_eq!(error.to_string(), format!("the rate limit store can't be used: {cause}"));
        }
    }
}
