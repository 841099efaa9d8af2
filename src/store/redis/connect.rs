//! Checks a configuration, and connects to the servers that it describes.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis-tls")]
use redis::{Client, TlsCertificates};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
#[cfg(feature = "redis-tls")]
use rustls::crypto::{CryptoProvider, ring};
#[cfg(feature = "redis-tls")]
use rustls::pki_types::CertificateDer;
#[cfg(feature = "redis-tls")]
use rustls::pki_types::pem::PemObject;

use super::cluster::Cluster;
use super::config::{RedisConfig, Servers};
use super::error::Fault;
use super::store::{Deployment, RedisStore};
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
        let store = self.build()?;
        let opened = match &store.deployment {
            Deployment::Single(workers) => workers.open().await,
            Deployment::Cluster(cluster) => cluster.open().await,
        };
        opened.map_err(|fault| StoreError::unusable(Some(store.name.to_string()), fault))?;
        Ok(store)
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
        let store = self.build()?;
        match &store.deployment {
            Deployment::Single(workers) => workers.start(usize::MAX, Vec::new()),
            Deployment::Cluster(cluster) => cluster.refresh(),
        }
        Ok(store)
    }

    /// Checks the configuration. The connections are opened later.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Setting`] if the configuration is invalid.
    fn build(&self) -> Result<RedisStore, Fault> {
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
        if self.urls.is_empty() {
            return Err(Fault::setting("there is no URL: give at least one, or better several"));
        }
        let credentials = match &self.servers {
            Servers::Sentinel(_) => &self.sentinel_credentials,
            Servers::Node | Servers::Cluster => &self.credentials,
        };
        let servers = self.urls.iter().map(|url| self.connection_info(url, credentials));
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "redis-tls")]
        if (self.certificates.root_cert.is_some() || self.certificates.client_tls.is_some())
            && !servers.iter().all(uses_tls)
            && !(matches!(self.servers, Servers::Sentinel(_)) && self.master_tls == Some(true))
        {
            return Err(Fault::setting("certificates are given, but not all URLs use TLS: write rediss://"));
        }
        let master = match &self.servers {
            Servers::Sentinel(name) => Some((name.clone(), self.master(&servers)?)),
            Servers::Node | Servers::Cluster => None,
        };
        let deployment = match &self.servers {
            Servers::Cluster => Deployment::Cluster(Arc::new(Cluster::new(servers, self.clone())?)),
            _ => Deployment::Single(Arc::new(Workers::new(servers, master, self)?)),
        };
        Ok(RedisStore::new(deployment, self.address()))
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
        let settings = master.redis_settings().clone().set_db(self.master_database);
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
                    "{setting} holds no certificate: use the text of a PEM file, which begins with \
                     -----BEGIN CERTIFICATE-----"
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
    url.into_connection_info().map_err(Fault::invalid_url)
}

fn uses_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use futures_util::FutureExt;

    use super::*;
    use crate::error::ConfigError;

    #[test]
    fn connecting_outside_a_runtime_is_an_error() {
        let url = "redis://127.0.0.1:1";
        for config in [RedisConfig::node(url), RedisConfig::sentinel("main", [url]), RedisConfig::cluster([url])] {
            let error = config.connect().now_or_never().expect("an answer").unwrap_err();
            assert!(format!("{error:?}").contains("there is no Tokio runtime"), "{error:?}");
        }
    }

    #[test]
    fn an_invalid_configuration_is_a_config_error() {
        let node = || RedisConfig::node("redis://127.0.0.1:6379");
        let no_urls: [&str; 0] = [];
        for (config, expected) in [
            (RedisConfig::node("redis//localhost"), "the URL of Redis is invalid: write redis://host:port"),
            (node().connections(0), "the configuration of Redis is invalid: 0 connections: use 1 to 1024"),
            (node().queue_capacity(0), "the configuration of Redis is invalid: queue_capacity is 0"),
            (RedisConfig::sentinel("main", no_urls), "the configuration of Redis is invalid: there is no URL"),
            (RedisConfig::cluster(no_urls), "the configuration of Redis is invalid: there is no URL"),
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
