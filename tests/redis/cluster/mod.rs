//! The store on a real Redis Cluster.

mod answers;
mod cross_slot;
mod masters;
mod moves;
mod overrides;

use std::time::Duration;

use support::limits::Patient;
use support::redis_cluster::RedisCluster;
use tower_ratelimit::{FixedWindow, Limit, RedisConfig, RedisStore};

const DAY: Duration = Duration::from_secs(86_400);

async fn store(cluster: &RedisCluster) -> RedisStore {
    RedisConfig::cluster(cluster.urls()).patient().connect().await.expect("a connection")
}

fn daily(name: &str, limit: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(limit))
}

/// Returns the slot of a limiter's key: that of its only key in Redis.
fn slot(cluster: &RedisCluster, limit: &str) -> (usize, u16, String) {
    let keys = cluster.keys();
    let mut of_limit = keys.into_iter().filter(|(_, key)| key.contains(&format!("}}:{limit}:")));
    let (node, key) = of_limit.next().expect("a key");
    assert!(of_limit.next().is_none(), "{limit} has one key");
    (node, cluster.ask(node, &format!("CLUSTER KEYSLOT {key}")), key)
}
