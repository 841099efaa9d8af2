//! Sentinels, which watch a master and promote a replica when it is down.

use std::collections::HashMap;

use deadpool_redis::redis::cmd;

use crate::redis_server::{Folder, RedisServer, wait_until};

/// The name of the master.
pub const MASTER: &str = "limits";

/// Longer than any test, in ms.
pub const NEVER: u32 = 600_000;

/// The time without a reply after which a killed master is considered down, in ms.
pub const SOON: u32 = 300;

pub struct Sentinels {
    pub servers: Vec<RedisServer>,
    _folder: Folder,
}

impl Sentinels {
    /// Starts `count` Sentinels (one or three) for a master with `replicas` replicas. They consider no server down
    /// before [`set_down_after`](Self::set_down_after) is called. Returns when they have discovered all servers and
    /// each other.
    pub fn watch(count: usize, master: &RedisServer, replicas: usize) -> Self {
        let folder = Folder::new();
        let majority = count / 2 + 1;
        let start = |port: u16| {
            let text = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\n\
                 sentinel monitor {MASTER} 127.0.0.1 {} {majority}\n\
                 sentinel down-after-milliseconds {MASTER} {NEVER}\n\
                 sentinel failover-timeout {MASTER} 3000\n",
                folder.path().display(),
                master.port()
            );
            vec![folder.write(&format!("{port}.conf"), text), "--sentinel".to_owned()]
        };
        let servers = (0..count).map(|_| RedisServer::start_by(start)).collect();
        let sentinels = Self { servers, _folder: folder };
        for sentinel in &sentinels.servers {
            wait_until("a Sentinel knows all replicas and Sentinels", || {
                let known: HashMap<String, String> = sentinel.ask(cmd("SENTINEL").arg("MASTER").arg(MASTER));
                known["num-slaves"] == replicas.to_string()
                    && known["num-other-sentinels"] == (count - 1).to_string()
                    && known["flags"] == "master"
            });
        }
        sentinels
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::url).collect()
    }

    /// Sets the time without a reply after which the master is considered down, in ms.
    ///
    /// While two servers could be the master, use [`NEVER`]: a loaded machine may stop for longer than [`SOON`], and
    /// the two would be swapped.
    pub fn set_down_after(&self, ms: u32) {
        for sentinel in &self.servers {
            sentinel.ask::<()>(cmd("SENTINEL").arg("SET").arg(MASTER).arg("down-after-milliseconds").arg(ms));
        }
    }

    /// Makes the first Sentinel promote a replica although the master is up. Repeats the command, because the replica
    /// may not be in sync yet, and a Sentinel that stopped gives up.
    pub fn fail_over(&self, replica: &RedisServer) {
        wait_until("the replica is promoted", || {
            names(&self.servers[0], replica) || {
                let _ = self.servers[0].try_ask::<()>(cmd("SENTINEL").arg("FAILOVER").arg(MASTER));
                false
            }
        });
    }

    /// Waits until all Sentinels report this master.
    pub fn wait_for_master(&self, master: &RedisServer) {
        for sentinel in &self.servers {
            wait_until("a Sentinel names the new master", || names(sentinel, master));
        }
    }
}

/// Returns whether a Sentinel reports this master.
fn names(sentinel: &RedisServer, master: &RedisServer) -> bool {
    let address: (String, u16) = sentinel.ask(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER));
    address.1 == master.port()
}
