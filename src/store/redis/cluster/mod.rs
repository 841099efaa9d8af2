//! The masters of a Cluster.
//!
//! The Cluster client of redis-rs repeats requests that may have run (timeouts, lost connections) up to 16 times. Even
//! without retries, it blocks the requests of all slots while it looks for the owner of one, for as long as any master
//! hangs. A pool of such clients sends a PING to all masters at each use. So here each master has a queue and connections
//! of its own, like a single server, and one that hangs does not block requests to others.

mod router;
mod seeds;
mod slot_map;
mod topology;

pub(super) use self::router::Cluster;
pub(super) use self::seeds::Seeds;
