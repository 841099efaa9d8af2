//! A Cluster of which a master is lost.

use std::time::Duration;

use tokio::task::block_in_place;
use tower_ratelimit::{RedisConfig, RedisStore};

use crate::load::Load;
use crate::patient::connected;
use crate::redis_cluster::{RedisCluster, wait};

async fn store(cluster: &RedisCluster) -> RedisStore {
    connected(RedisConfig::cluster(cluster.urls())).await
}

/// Whether every node says that each slot has a master that is up.
fn is_whole(cluster: &RedisCluster, nodes: &[usize]) -> bool {
    nodes.iter().all(|&node| {
        let info = cluster.info(node);
        info.contains("cluster_slots_ok:16384") && info.contains("cluster_state:ok")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_lost_and_its_replica_promoted() {
    let mut cluster = RedisCluster::start(1);
    let load = Load::start(&store(&cluster).await);
    load.run(Duration::from_millis(300)).await;
    cluster.kill(0);
    cluster.notice(0);
    // Its replica is the fourth.
    block_in_place(|| {
        let is_master = || cluster.ask::<String>(3, "INFO replication").contains("role:master");
        wait("the replica is promoted", || is_master() && is_whole(&cluster, &[1, 2, 3]));
    });
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("a Cluster's master lost, its replica promoted", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_lost_until_it_returns() {
    let mut cluster = RedisCluster::start(0);
    let load = Load::start(&store(&cluster).await);
    load.run(Duration::from_millis(300)).await;
    cluster.kill(0);
    load.run(Duration::from_secs(2)).await;
    cluster.restart(0);
    block_in_place(|| wait("it is back", || is_whole(&cluster, &[0, 1, 2])));
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("a Cluster's master lost, and back", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs() {
    let cluster = RedisCluster::start(0);
    let load = Load::start(&store(&cluster).await);
    load.run(Duration::from_millis(300)).await;
    cluster.hang(0);
    load.run(Duration::from_secs(2)).await;
    cluster.resume(0);
    block_in_place(|| wait("it is back", || is_whole(&cluster, &[0, 1, 2])));
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("a Cluster's master hangs", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(true).await;
}
