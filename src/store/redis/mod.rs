//! A store in Redis or Valkey, shared by a fleet.
//!
//! It has these modules:
//!
//! | module | task |
//! | --- | --- |
//! | `store`, `operations` | the public type and its deployment, which implement [`Store`](super::Store) by one round trip |
//! | `cross_slot` | decides requests with keys in several slots of a Cluster, by a round trip for each |
//! | `cluster` | finds the server of a slot |
//! | `workers` | keep a few connections to each server open, and make calls |
//! | `queue` | lets concurrent requests share a call |
//! | `config`, `connect` | configure all this |
//! | `connector` | opens connections, and loads the script |
//! | `request`, `script`, `reply` | encode cells for the script in `lua/`, and decode what it replies |
//! | `slot` | computes the slot of a key |
//! | `error` | what a failure implies, and its message |

mod cluster;
mod config;
mod connect;
mod connector;
mod cross_slot;
mod error;
mod operations;
mod queue;
mod reply;
mod request;
mod script;
mod slot;
mod store;
#[cfg(test)]
mod tests;
mod workers;

pub use self::config::RedisConfig;
pub use self::store::RedisStore;
