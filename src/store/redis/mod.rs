//! A store in Redis or Valkey, shared by a fleet.
//!
//! It has these modules:
//!
//! | module | task |
//! | --- | --- |
//! | `store`, `operations` | the public type and its deployment, which implement [`Store`](super::Store) by one round trip, or one for each slot of a Cluster |
//! | `cluster` | finds the slot of a key, and the server of a slot |
//! | `workers` | keep a few connections to each server open |
//! | `calls` | makes the calls over a connection, and notices if it is dead |
//! | `queue` | lets concurrent requests share a call |
//! | `config` | the public configuration, and the servers that it describes |
//! | `connector` | opens connections, and loads the script in `lua/` |
//! | `request` | encodes charges for the script, and decodes what it replies |
//! | `error` | what a failure implies, and its message |

mod calls;
mod cluster;
mod config;
mod connector;
mod error;
mod operations;
mod queue;
mod request;
mod script;
mod store;
#[cfg(test)]
mod tests;
mod workers;

pub use self::config::RedisConfig;
pub use self::store::RedisStore;
