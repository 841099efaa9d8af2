//! A store in Redis or Valkey, shared by a fleet.
//!
//! A decision passes through these modules, from the top down:
//!
//! | module | task |
//! | --- | --- |
//! | `operations` | implements [`Store`](super::Store): one round trip, or one per slot of a Cluster |
//! | `charge` | encodes charges as requests to the script, and its replies as outcomes |
//! | `deployment`, `cluster` | find the server of a slot |
//! | `batch` | lets concurrent requests share a call |
//! | `connection` | keeps a few connections to each server open |
//! | `script` | holds the script, its arguments and its replies |

mod batch;
mod charge;
mod cluster;
mod config;
mod connect;
mod connection;
mod deployment;
#[cfg(feature = "rules")]
mod document;
mod error;
mod key;
mod limit_encoding;
mod operations;
mod script;
mod slot;
mod store;
#[cfg(test)]
mod tests;

pub use self::config::RedisConfig;
pub use self::store::RedisStore;
