//! Connects stores.

use super::config::RedisConfig;
use super::store::RedisStore;
use crate::error::StoreError;

impl RedisStore {
    /// Connects to the Redis at `url`, such as `redis://user:password@host:6379/0`.
    ///
    /// Short for [`RedisConfig::node`] and [`connect`](RedisConfig::connect).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid, if Redis does not answer or rejects the credentials, or if the user may not
    /// load a script.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        RedisConfig::node(url).connect().await
    }
}

impl RedisConfig {
    /// Connects, and loads the script.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid, if Redis does not answer or rejects the credentials, or if the
    /// user may not load a script.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let deployment = self.build().map_err(|fault| StoreError::unusable(None, fault))?;
        deployment.open().await.map_err(|fault| StoreError::unusable(Some(self.address()), fault))?;
        Ok(RedisStore::new(deployment, self.address()))
    }

    /// Connects in the background, for services that must start while Redis is down.
    ///
    /// Decisions fail until there is a connection. Outside a Tokio runtime, the first decision connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid.
    pub fn connect_lazily(self) -> Result<RedisStore, StoreError> {
        let deployment = self.build().map_err(|fault| StoreError::unusable(None, fault))?;
        deployment.open_in_background();
        Ok(RedisStore::new(deployment, self.address()))
    }
}
