//! A Redis Cluster on free ports. It stops when it is dropped.

use deadpool_redis::redis::{FromRedisValue, Value, cmd};

use crate::redis_server::{RedisServer, wait_until};

/// The time without a reply after which a lost node is considered down, in ms.
const SOON: u32 = 1_500;

/// Longer than any test, in ms.
const NEVER: u32 = 600_000;

const MASTERS: usize = 3;

pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three masters with a third of the slots each, and `replicas` replicas of each. They consider no node down
    /// before [`notice`](Self::notice) is called, even if the machine stops for a while.
    ///
    /// # Panics
    ///
    /// Panics if `redis-server` is not installed, or the Cluster does not start.
    pub fn start(replicas: usize) -> Self {
        let never = NEVER.to_string();
        let node = || {
            RedisServer::start_with(&[
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                &never,
                "--cluster-require-full-coverage",
                "no",
                "--cluster-replica-validity-factor",
                "0",
            ])
        };
        let cluster = Self { nodes: (0..MASTERS * (1 + replicas)).map(|_| node()).collect() };
        cluster.distribute_slots();
        cluster.introduce();
        for replica in MASTERS..cluster.nodes.len() {
            cluster.run(replica, &format!("CLUSTER REPLICATE {}", cluster.id(replica % MASTERS)));
        }
        cluster.wait_until_formed(replicas);
        cluster
    }

    fn distribute_slots(&self) {
        for (master, slots) in [0..5461, 5461..10_923, 10_923..16_384].into_iter().enumerate() {
            // Redis before 7.0 has no `ADDSLOTSRANGE`.
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            self.run(master, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
    }

    fn introduce(&self) {
        for node in 0..self.nodes.len() {
            self.run(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", node + 1));
        }
        for node in 1..self.nodes.len() {
            self.run(0, &format!("CLUSTER MEET 127.0.0.1 {}", self.port(node)));
        }
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        wait_until("the nodes know each other", || self.all_report(&known));
    }

    fn wait_until_formed(&self, replicas: usize) {
        wait_until("the Cluster is up", || self.all_report("cluster_state:ok"));
        wait_until("the replicas are in sync", || {
            (MASTERS..self.nodes.len())
                .all(|replica| self.ask::<String>(replica, "INFO replication").contains("master_link_status:up"))
        });
        wait_until("all nodes agree on the distribution of slots", || {
            (0..self.nodes.len()).all(|node| {
                let slots: Vec<Vec<Value>> = self.ask(node, "CLUSTER SLOTS");
                slots.len() == MASTERS && slots.iter().all(|range| range.len() == 3 + replicas)
            })
        });
    }

    fn all_report(&self, line: &str) -> bool {
        (0..self.nodes.len()).all(|node| self.ask::<String>(node, "CLUSTER INFO").contains(line))
    }

    /// Makes all other nodes notice the loss of a node, so that its replica is promoted.
    pub fn notice(&self, lost: usize) {
        for other in (0..self.nodes.len()).filter(|&node| node != lost) {
            self.run(other, &format!("CONFIG SET cluster-node-timeout {SOON}"));
        }
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port()
    }

    /// Returns the reply of a node to a command, whose words are separated by spaces.
    pub fn ask<T: FromRedisValue>(&self, node: usize, command: &str) -> T {
        let mut words = command.split(' ');
        let mut call = cmd(words.next().expect("a command"));
        words.for_each(|word| {
            call.arg(word);
        });
        self.nodes[node].try_ask(&call).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub fn run(&self, node: usize, command: &str) {
        self.ask::<()>(node, command);
    }

    /// Returns the ID of a node in the Cluster.
    pub fn id(&self, node: usize) -> String {
        self.ask(node, "CLUSTER MYID")
    }

    /// Returns all keys of the masters, each with its master.
    pub fn keys(&self) -> Vec<(usize, String)> {
        let of = |node| self.ask::<Vec<String>>(node, "KEYS *").into_iter().map(move |key| (node, key));
        (0..MASTERS).flat_map(of).collect()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].stop();
    }

    /// Stops a node, whose connections stay open.
    pub fn hang(&self, node: usize) {
        self.nodes[node].pause();
    }

    /// Continues a stopped node.
    pub fn resume(&self, node: usize) {
        self.nodes[node].resume();
    }

    /// Restarts a killed node, which is part of the Cluster, but empty.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].start_again();
    }
}
