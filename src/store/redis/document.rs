//! Texts that a fleet shares, kept for good under the store's prefix: `prefix:name`, and beside it
//! `prefix:name:version`, which is another for each text that was published.

use std::hash::{BuildHasher, RandomState};

use deadpool_redis::redis::{Cmd, Value, cmd};

use super::error::Fault;
use super::{RedisStore, slot};
use crate::error::StoreError;
use crate::time::{Clock, SystemClock};

impl RedisStore {
    /// Puts a text in place of the one before. Its version comes second: whoever sees that finds it.
    pub(crate) async fn publish(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let random = RandomState::new().hash_one(text);
        let version = format!("{:x}-{random:016x}", SystemClock::new().now().as_micros());
        self.put(self.text_key(name), text).await?;
        Ok(self.put(self.version_key(name), &version).await?)
    }

    /// Which text there is.
    pub(crate) async fn version(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.get(self.version_key(name)).await?)
    }

    /// The text itself.
    pub(crate) async fn text(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.get(self.text_key(name)).await?)
    }

    fn text_key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    fn version_key(&self, name: &str) -> String {
        format!("{}:{name}:version", self.prefix)
    }

    async fn put(&self, key: String, text: &str) -> Result<(), Fault> {
        self.query(&key, cmd("SET").arg(&key).arg(text)).await.map(drop)
    }

    async fn get(&self, key: String) -> Result<Option<Vec<u8>>, Fault> {
        match self.query(&key, cmd("GET").arg(&key)).await? {
            Value::Nil => Ok(None),
            Value::BulkString(text) => Ok(Some(text)),
            _ => Err(Fault::Reply("no text")),
        }
    }

    async fn query(&self, key: &str, query: &Cmd) -> Result<Value, Fault> {
        self.deployment.query(slot::of(key), query).await
    }
}
