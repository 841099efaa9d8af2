//! Sentinels of a test's own, which watch a master and promote a replica when it is down.

use std::collections::HashMap;

use deadpool_redis::redis::cmd;

use crate::redis_server::{Folder, RedisServer, wait_until};

/// The name that they know the master by.
pub const MASTER: &str = "limits";

/// Longer than any test takes, in ms.
pub const NEVER: u32 = 600_000;

/// After how many ms without an answer a master is down that was killed.
pub const SOON: u32 = 300;

pub struct Sentinels {
    pub servers: Vec<RedisServer>,
    _folder: Folder,
}

impl Sentinels {
    /// As many as `count` (one, or three) watch a master that has as many `replicas`, and think nobody
    /// down before they are [told to](Self::think_down_after). Returns when they know of all, and of each other.
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

    /// Has them think the master down which has not answered for so many ms.
    ///
    /// While two servers live that could be the master, it is [`NEVER`]: a machine stands still for longer than
    /// [`SOON`], and the two would be exchanged.
    pub fn think_down_after(&self, ms: u32) {
        for sentinel in &self.servers {
            sentinel.ask::<()>(cmd("SENTINEL").arg("SET").arg(MASTER).arg("down-after-milliseconds").arg(ms));
        }
    }

    /// Has the first of them promote a replica, though the master is up. Told again and again: it may not find the
    /// replica good enough yet, and it gives up where it has stood still.
    pub fn fail_over(&self, replica: &RedisServer) {
        wait_until("the replica is promoted", || {
            names(&self.servers[0], replica) || {
                let _ = self.servers[0].try_ask::<()>(cmd("SENTINEL").arg("FAILOVER").arg(MASTER));
                false
            }
        });
    }

    /// Waits until all say that this is the master.
    pub fn wait_for_master(&self, master: &RedisServer) {
        for sentinel in &self.servers {
            wait_until("a Sentinel names the new master", || names(sentinel, master));
        }
    }
}

/// Whether a Sentinel says that this is the master.
fn names(sentinel: &RedisServer, master: &RedisServer) -> bool {
    let address: (String, u16) = sentinel.ask(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER));
    address.1 == master.port()
}
