//! Checks a configuration, and connects to the servers that it describes.

use std::sync::Arc;
use std::time::Duration;

use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, ConnectionInfo, RedisConnectionInfo};

use super::redis_config::{RedisConfig, ServerUrls};
use super::sentinel;
#[cfg(feature = "redis-tls")]
use super::tls;
use super::url::{address, check_tls_feature, credentials_of, parse, uses_tls, with_credentials};
use crate::error::StoreError;
use crate::store::redis::cluster::Cluster;
use crate::store::redis::connector::{self, Connector};
use crate::store::redis::deployment::Deployment;
use crate::store::redis::error::Fault;
use crate::store::redis::store::RedisStore;
use crate::store::redis::workers::Workers;

impl RedisStore {
    /// Connects to the Redis at `url`, such as `redis://user:password@host:6379/0`.
    ///
    /// Short for [`RedisConfig::node`] and [`connect`](RedisConfig::connect).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid (its [`source`](std::error::Error::source) is then a
    /// [`ConfigError`](crate::ConfigError)), if Redis does not answer or rejects the credentials, or if a command that the
    /// store needs is not permitted.
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
    /// [`ConfigError`](crate::ConfigError)), if Redis does not answer or rejects the credentials, or if a command that the
    /// store needs is not permitted.
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
        let connector = match &self.urls {
            ServerUrls::Node(url) => {
                Connector::to_server(self.connection_info(url)?, self.timeouts(), self.connections)?
            }
            ServerUrls::Sentinel { master, urls } => {
                Connector::to_master(self.sentinel_client(master, urls)?, self.timeouts())
            }
            ServerUrls::Cluster { urls } => {
                let seeds = urls.iter().map(|url| self.connection_info(url)).collect::<Result<_, _>>()?;
                let cluster = Cluster::new(seeds, self.timeouts(), self.connections, self.queue_capacity)?;
                return Ok(Deployment::Cluster(Arc::new(cluster)));
            }
        };
        let workers = Workers::new(connector, self.connections, self.queue_capacity);
        Ok(Deployment::Single(Arc::new(workers)))
    }

    /// Returns the addresses of the servers, without credentials.
    pub(in crate::store::redis) fn address(&self) -> String {
        let addresses = |urls: &[String]| urls.iter().map(|url| address(url)).collect::<Vec<_>>().join(", ");
        match &self.urls {
            ServerUrls::Node(url) => address(url),
            ServerUrls::Sentinel { master, urls } => format!("{master:?} of the Sentinels {}", addresses(urls)),
            ServerUrls::Cluster { urls } => addresses(urls),
        }
    }

    fn connection_info(&self, url: &str) -> Result<ConnectionInfo, Fault> {
        let info = parse(url)?;
        let settings = with_credentials(info.redis_settings().clone(), self.credentials.as_ref());
        self.with_certificates(info.set_redis_settings(settings))
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
    }

    #[cfg(feature = "redis-tls")]
    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        self.prepare_tls(uses_tls(&info))?;
        self.certificates.apply(info)
    }

    #[cfg(not(feature = "redis-tls"))]
    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Fault> {
        Ok(info)
    }

    #[cfg(feature = "redis-tls")]
    fn prepare_tls(&self, is_used: bool) -> Result<(), Fault> {
        if is_used {
            tls::install_provider();
        } else if !self.certificates.is_empty() {
            return Err(Fault::setting("certificates are given, but no URL uses TLS: write rediss://"));
        }
        Ok(())
    }

    fn sentinel_client(&self, master: &str, urls: &[String]) -> Result<SentinelClient, Fault> {
        let sentinels = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = sentinels.first() else {
            return Err(Fault::setting("there is no Sentinel: give at least one URL"));
        };
        if sentinels.iter().any(|sentinel| uses_tls(sentinel) != uses_tls(first)) {
            return Err(Fault::setting("some Sentinels use TLS and some do not: use one scheme for all"));
        }
        if self.sentinel_credentials.is_none()
            && sentinels.iter().any(|sentinel| credentials_of(sentinel) != credentials_of(first))
        {
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
        #[cfg(feature = "redis-tls")]
        self.prepare_tls(master_uses_tls || uses_tls(first))?;
        let configure = |sentinel: ConnectionInfo| {
            let settings = with_credentials(sentinel.redis_settings().clone(), self.sentinel_credentials.as_ref());
            let sentinel = sentinel.set_redis_settings(settings.set_skip_set_lib_name());
            #[cfg(feature = "redis-tls")]
            let sentinel = self.certificates.apply(sentinel)?;
            Ok(sentinel)
        };
        let sentinels = sentinels.into_iter().map(configure).collect::<Result<Vec<_>, Fault>>()?;
        let settings = RedisConnectionInfo::default().set_db(self.master_database);
        let settings = connector::settings(with_credentials(settings, self.credentials.as_ref()));
        #[cfg(feature = "redis-tls")]
        if master_uses_tls && !self.certificates.is_empty() {
            let certificates = self.certificates.parse()?;
            return sentinel::client_with_certificates(master, &sentinels, &settings, certificates);
        }
        sentinel::client(master, sentinels, settings, master_uses_tls)
    }
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
                "the configuration of Redis is invalid: a Cluster is not reachable through the Unix socket /run/redis.sock",
            ),
        ] {
            let error = config.connect_lazily().unwrap_err();
            let cause = error.source().and_then(|source| source.downcast_ref::<ConfigError>()).unwrap();
            assert!(cause.to_string().starts_with(expected), "{cause}");
            assert_eq!(error.to_string(), format!("the rate limit store can't be used: {cause}"));
        }
    }
}
