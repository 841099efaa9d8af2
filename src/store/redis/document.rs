//! Documents that all instances share, stored without expiry: the text at `prefix:name`, and at `prefix:name:version` a
//! version that differs for each published text.

use std::hash::{BuildHasher, RandomState};

use redis::{Cmd, Value, cmd};

use super::error::Fault;
use super::slot;
use super::store::RedisStore;
use crate::error::StoreError;
use crate::time::{Clock, SystemClock};

impl RedisStore {
    /// Replaces a text. Writes the version last, so that a reader that sees it also sees the text.
    pub(crate) async fn publish(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let random = RandomState::new().hash_one(text);
        let version = format!("{:x}-{random:016x}", SystemClock::new().now().as_micros());
        self.put(self.text_key(name), text).await?;
        Ok(self.put(self.version_key(name), &version).await?)
    }

    /// Returns the version of the current text.
    pub(crate) async fn version(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.get(self.version_key(name)).await?)
    }

    /// Returns the current text.
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
            _ => Err(Fault::Reply("expected a text")),
        }
    }

    async fn query(&self, key: &str, query: &Cmd) -> Result<Value, Fault> {
        self.deployment.query(slot::of(key), query).await
    }
}
