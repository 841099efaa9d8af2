//! The masters of a Cluster.
//!
//! This module replaces the Cluster client of redis-rs, which repeats requests that may have run (after timeouts and
//! lost connections) up to 16 times. Even without retries, that client blocks the requests of all slots while it looks
//! for the owner of one, for as long as any master hangs; and a pool of such clients sends a PING to all masters at
//! each use. Here, each master has a queue and connections of its own, like a single server, so a master that hangs
//! does not block requests to others.

mod router;
mod seeds;
mod slot_map;
mod topology;

pub(super) use self::router::Cluster;
pub(super) use self::seeds::Seeds;
