//! A store in Redis or Valkey, shared by a fleet.
//!
//! A decision passes through these modules, from the top down:
//!
//! | module | task |
//! | --- | --- |
//! | `operations` | implements [`Store`](super::Store): one round trip, or one per slot of a Cluster |
//! | `deployment`, `cluster` | find the server of a slot |
//! | `workers` | keep a few connections to each server open, and make calls |
//! | `queue` | lets concurrent requests share a call |
//! | `connector` | opens connections, and loads the script |
//! | `script` | holds the script, encodes cells as its requests, and decodes its replies |

mod cluster;
mod config;
mod connector;
mod deployment;
#[cfg(feature = "rules")]
mod document;
mod error;
mod operations;
mod queue;
mod script;
mod slot;
mod store;
#[cfg(test)]
mod tests;
mod workers;

pub use self::config::RedisConfig;
pub use self::store::RedisStore;
