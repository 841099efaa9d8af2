//! A Redis Cluster on free ports and in a temporary folder. It stops when it is dropped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use deadpool_redis::redis::{Client, Connection, FromRedisValue, cmd};

use crate::redis_server::{keys_without_ttl, program};

/// The time without a reply after which a lost node is considered down, in ms.
const SOON: u32 = 1_500;

/// Longer than any test, in ms.
const NEVER: u32 = 600_000;

pub struct RedisCluster {
    nodes: Vec<Node>,
    folder: PathBuf,
}

struct Node {
    process: Child,
    port: u16,
}

impl RedisCluster {
    /// Starts three masters with a third of the slots each, and `replicas` replicas of each. They consider no node down
    /// before [`notice`](Self::notice) is called, even if the machine stops for a while.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not installed, or the Cluster does not start.
    pub fn start(replicas: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("cluster-{}-{}", std::process::id(), free_port()));
        let mut cluster = Self { nodes: Vec::new(), folder };
        for _ in 0..3 * (1 + replicas) {
            let node = (0..5).find_map(|_| cluster.node(free_port())).expect("redis-server starts on a free port");
            cluster.nodes.push(node);
        }
        for (index, slots) in [0..5461, 5461..10_923, 10_923..16_384].into_iter().enumerate() {
            // Redis before 7.0 has no `ADDSLOTSRANGE`.
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            cluster.run(index, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        for index in 0..cluster.nodes.len() {
            cluster.run(index, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        for index in 1..cluster.nodes.len() {
            cluster.run(0, &format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[index].port));
        }
        let known = format!("cluster_known_nodes:{}\r", cluster.nodes.len());
        let all = 0..cluster.nodes.len();
        wait("the nodes know each other", || all.clone().all(|node| cluster.info(node).contains(&known)));
        for index in 3..cluster.nodes.len() {
            cluster.run(index, &format!("CLUSTER REPLICATE {}", cluster.id(index % 3)));
        }
        wait("the Cluster is up", || all.clone().all(|node| cluster.info(node).contains("cluster_state:ok")));
        wait("the replicas are in sync", || {
            (3..cluster.nodes.len()).all(|node| {
                let info: String = cluster.ask(node, "INFO replication");
                info.contains("master_link_status:up")
            })
        });
        // All nodes agree on the distribution of slots.
        wait("all nodes know all masters", || {
            all.clone().all(|node| {
                let slots: Vec<Vec<deadpool_redis::redis::Value>> = cluster.ask(node, "CLUSTER SLOTS");
                slots.len() == 3 && slots.iter().all(|range| range.len() == 3 + replicas)
            })
        });
        cluster
    }

    /// Makes all other nodes notice the loss of a node, so that its replica is promoted.
    pub fn notice(&self, lost: usize) {
        for other in (0..self.nodes.len()).filter(|&node| node != lost) {
            self.run(other, &format!("CONFIG SET cluster-node-timeout {SOON}"));
        }
    }

    fn node(&self, port: u16) -> Option<Node> {
        let folder = self.folder.join(port.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        let mut process = program()
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--cluster-enabled", "yes", "--cluster-node-timeout", &NEVER.to_string(), "--dir"])
            .arg(&folder)
            .args(["--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"])
            .args(["--repl-diskless-sync-delay", "0"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("can't start redis-server: {error}; install it, on Debian by `apt-get install redis-server`")
            });
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) && process.try_wait().expect("its status").is_none() {
            if connect(port).is_some() {
                return Some(Node { process, port });
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = process.kill();
        let _ = process.wait();
        None
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect()
    }

    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// Returns the reply of a node to a command, whose words are separated by spaces.
    pub fn ask<T: FromRedisValue>(&self, node: usize, command: &str) -> T {
        let mut words = command.split(' ');
        let mut call = cmd(words.next().expect("a command"));
        words.for_each(|word| {
            call.arg(word);
        });
        let mut connection = None;
        wait("a connection", || {
            connection = connect(self.nodes[node].port);
            connection.is_some()
        });
        let mut connection = connection.expect("a connection");
        call.query(&mut connection).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub fn run(&self, node: usize, command: &str) {
        self.ask::<()>(node, command);
    }

    pub fn info(&self, node: usize) -> String {
        self.ask(node, "CLUSTER INFO")
    }

    /// Returns the ID of a node in the Cluster.
    pub fn id(&self, node: usize) -> String {
        self.ask(node, "CLUSTER MYID")
    }

    /// Returns all keys of the masters, each with its master.
    pub fn keys(&self) -> Vec<(usize, String)> {
        let of = |node| self.ask::<Vec<String>>(node, "KEYS *").into_iter().map(move |key| (node, key));
        (0..3).flat_map(of).collect()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) {
        let _ = self.nodes[node].process.kill();
        let _ = self.nodes[node].process.wait();
    }

    /// Stops a node, whose connections stay open.
    pub fn hang(&self, node: usize) {
        self.signal(node, "STOP");
    }

    /// Continues a stopped node.
    pub fn resume(&self, node: usize) {
        self.signal(node, "CONT");
    }

    /// Restarts a killed node, which is part of the Cluster, but empty.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node] = self.node(self.nodes[node].port).expect("redis-server restarts on its port");
    }

    fn signal(&self, node: usize, signal: &str) {
        let process = self.nodes[node].process.id().to_string();
        let done = Command::new("kill").args([&format!("-{signal}"), &process]).status().expect("kill");
        assert!(done.success());
    }
}

impl Drop for RedisCluster {
    /// # Panics
    ///
    /// Panics if a successful test leaves a key that never expires.
    fn drop(&mut self) {
        let mut persistent = Vec::new();
        for node in 0..self.nodes.len() {
            let lives = matches!(self.nodes[node].process.try_wait(), Ok(None));
            if lives && !thread::panicking() {
                // A stopped node would not reply.
                self.resume(node);
                persistent.extend(keys_without_ttl(self.nodes[node].port));
            }
        }
        for node in &mut self.nodes {
            let _ = node.process.kill();
            let _ = node.process.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
        assert!(persistent.is_empty(), "keys without a TTL: {persistent:?}");
    }
}

/// Waits for a condition, up to a long timeout.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "timed out: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn connect(port: u16) -> Option<Connection> {
    let client = Client::open(format!("redis://127.0.0.1:{port}")).expect("a client");
    client.get_connection_with_timeout(Duration::from_secs(5)).ok()
}

/// Returns a free port whose bus port, 10,000 higher, is also free.
fn free_port() -> u16 {
    let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?.local_addr().ok().map(|at| at.port());
    let both = || free(0).filter(|port| port.checked_add(10_000).and_then(free).is_some());
    (0..1_000).find_map(|_| both()).expect("a free port")
}
