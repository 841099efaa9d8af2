//! A Cluster that loses a master.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, block_in_place};
use tower_ratelimit::store::{Node, StoreFuture};
use tower_ratelimit::{
    CircuitBreaker, DecidedBy, Decision, FixedWindow, Limit, Limiter, RedisConfig, RedisStore, StoreErrorKind,
};

use crate::faults::load::{Load, limit};
use support::patient::{LONG, Patient, connected};
use support::redis_cluster::RedisCluster;
use support::redis_server::wait_until;

async fn store(cluster: &RedisCluster) -> RedisStore {
    connected(RedisConfig::cluster(cluster.urls())).await
}

/// Returns whether every node reports that each slot has a master that is up.
fn is_whole(cluster: &RedisCluster, nodes: &[usize]) -> bool {
    nodes.iter().all(|&node| {
        let info = cluster.ask::<String>(node, "CLUSTER INFO");
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
    // The fourth node is its replica.
    block_in_place(|| {
        let is_master = || cluster.ask::<String>(3, "INFO replication").contains("role:master");
        wait_until("the replica is promoted", || is_master() && is_whole(&cluster, &[1, 2, 3]));
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
    block_in_place(|| wait_until("it is back", || is_whole(&cluster, &[0, 1, 2])));
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
    block_in_place(|| wait_until("it is back", || is_whole(&cluster, &[0, 1, 2])));
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("a Cluster's master hangs", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(true).await;
}

/// Moves every tenth slot of a master to the next one, with its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move() {
    let cluster = RedisCluster::start(0);
    let load = Load::start(&store(&cluster).await);
    load.run(Duration::from_secs(2)).await;
    let (from, to) = (cluster.id(0), cluster.id(1));
    let mut moved = 0;
    block_in_place(|| {
        for slot in (0..3_000).step_by(10) {
            cluster.run(1, &format!("CLUSTER SETSLOT {slot} IMPORTING {from}"));
            cluster.run(0, &format!("CLUSTER SETSLOT {slot} MIGRATING {to}"));
            for key in cluster.ask::<Vec<String>>(0, &format!("CLUSTER GETKEYSINSLOT {slot} 100")) {
                cluster.run(0, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(1)));
                moved += 1;
            }
            for node in [1, 0, 2] {
                cluster.run(node, &format!("CLUSTER SETSLOT {slot} NODE {to}"));
            }
        }
    });
    assert!(moved > 0);
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("slots of a Cluster moved", recovery);
    assert_eq!(report.errors, 0, "requests follow the redirections");
    report.none_was_charged_twice(true).await;
}

/// Two in three keys, and four in nine pairs of keys, belong to the other masters. The circuit breaker must not affect
/// their requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_master_fails_only_the_requests_of_its_slots() {
    let mut cluster = RedisCluster::start(0);
    let store = RedisConfig::cluster(cluster.urls()).patient().connect().await.expect("a connection");
    let lost = format!("127.0.0.1:{}", cluster.port(0));
    // The default circuit breaker, with a longer deadline, because a loaded machine may stop.
    let single = Limiter::builder([limit()]).deadline(LONG).store(store.clone()).build();
    let pairs = Limiter::builder([limit(), Limit::new("another", FixedWindow::per_day(10))])
        .deadline(LONG)
        .store(store)
        .build();
    assert_eq!(single.acquire(0_u64, 1).await.expect("a decision").decided_by(), DecidedBy::Store);
    cluster.kill(0);
    let decided = share_decided(6_000, &lost, move |key| single.acquire(key, 1)).await;
    println!("Redis decided {:.1} % of the requests", 100.0 * decided);
    assert!((0.63..0.70).contains(&decided), "Redis decided {:.1} % of the requests", 100.0 * decided);
    let decided =
        share_decided(3_000, &lost, move |key| pairs.acquire_charges(&[(&key, 1), (&(key + 1_000_000), 1)])).await;
    println!("Redis decided {:.1} % of the requests of two subjects", 100.0 * decided);
    assert!((0.41..0.48).contains(&decided), "Redis decided {:.1} % of the requests", 100.0 * decided);
}

/// Returns the share of requests that Redis decides, with 16 at a time. All errors must name the `lost` node.
async fn share_decided(
    requests: u64,
    lost: &str,
    ask: impl Fn(u64) -> StoreFuture<Decision> + Clone + Send + 'static,
) -> f64 {
    let next = Arc::new(AtomicU64::new(1));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (ask, next, lost) = (ask.clone(), next.clone(), lost.to_owned());
        tasks.spawn(async move {
            let mut decided = 0;
            loop {
                let key = next.fetch_add(1, Ordering::Relaxed);
                if key > requests {
                    return decided;
                }
                match ask(key).await {
                    Ok(_) => decided += 1,
                    Err(error) => assert_eq!(error.node().map(Node::name), Some(&*lost), "{error:?}"),
                }
                // Decisions that are ready at once would delay the replies of Redis.
                tokio::task::yield_now().await;
            }
        });
    }
    tasks.join_all().await.iter().sum::<u64>() as f64 / requests as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_of_each_master_is_bounded() {
    let cluster = RedisCluster::start(0);
    let config = RedisConfig::cluster(cluster.urls()).patient().queue_capacity(10);
    let limiter = Limiter::builder([limit()])
        .store(connected(config).await)
        .deadline(Duration::from_secs(30))
        .circuit_breaker(CircuitBreaker::off())
        .build();
    (0..3).for_each(|master| cluster.hang(master));
    let waiting: Vec<_> = (0..500_u64)
        .map(|key| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire(key, 1).await })
        })
        .collect();
    let is_over = || waiting.iter().filter(|task| task.is_finished()).count() >= 500 - 3 * (10 + 2 * 64);
    block_in_place(|| wait_until("those that may not wait are answered", is_over));
    (0..3).for_each(|master| cluster.resume(master));
    for answer in waiting {
        if let Err(error) = answer.await.expect("a task") {
            assert_eq!(error.kind(), StoreErrorKind::QueueFull, "{error:?}");
        }
    }
}
