//! Connects to Redis, at once or in the background.

use super::config::RedisConfig;
use super::error::Fault;
use super::store::RedisStore;
use crate::error::StoreError;

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
