//! Connections that a network has forgotten while they were idle: no packet comes back.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use tower_ratelimit::{FixedWindow, Limit, Limiter, RedisConfig, RedisStore};

use crate::connections::{MOST, resume, until};
use support::patient::{LONG, connected};
use support::proxy::Proxy;
use support::redis_cluster::RedisCluster;
use support::redis_server::RedisServer;
use support::sentinel::Sentinels;

/// Settings with the proportions of the default ones, for a loaded machine: a reply is overdue after half a second.
fn config(url: String) -> RedisConfig {
    RedisConfig::node(url).connect_timeout(LONG).response_timeout(Duration::from_secs(10))
}

/// A limiter whose requests give up long before a call does, with the default circuit breaker.
fn limiter(store: RedisStore) -> Limiter {
    let limit = Limit::new("limit", FixedWindow::new(MOST, Duration::from_secs(366 * 86_400)));
    Limiter::builder([limit]).deadline(Duration::from_secs(2)).store(store).build()
}

/// Makes requests after a pause. Returns those that Redis did not decide, with the errors.
async fn undecided(limiter: &Limiter, requests: usize) -> Vec<(usize, String)> {
    let mut undecided = Vec::new();
    for request in 0..requests {
        if let Err(error) = limiter.acquire("key", 1).await {
            undecided.push((request, error.to_string()));
        }
    }
    undecided
}

/// Checks that Redis decided all requests but the first.
#[track_caller]
fn only_the_first(undecided: &[(usize, String)]) {
    assert!(undecided.iter().all(|(request, _)| *request == 0), "{undecided:?}");
}

#[tokio::test]
async fn at_most_the_first_request_after_a_pause_is_decided_by_policy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = limiter(config(proxy.url()).connect().await.expect("a connection"));
    for _ in 0..20 {
        proxy.kill().await;
        only_the_first(&undecided(&limiter, 1_000).await);
    }
}

/// As by a balancer that answers packets of connections that it does not know.
#[tokio::test]
async fn at_most_the_first_request_fails_if_forgotten_connections_are_reset() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = limiter(config(proxy.url()).connect().await.expect("a connection"));
    // Connections that fail as soon as they are open are opened again after a pause.
    only_the_first(&undecided(&limiter, 20).await);
    tokio::time::sleep(Duration::from_millis(20)).await;
    for _ in 0..20 {
        proxy.kill_with_resets().await;
        only_the_first(&undecided(&limiter, 100).await);
    }
}

#[tokio::test]
async fn one_forgotten_connection_of_two_fails_at_most_one_request() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = limiter(config(proxy.url()).connect().await.expect("a connection"));
    for pause in 0..8 {
        proxy.kill_some(1).await;
        let undecided = undecided(&limiter, 100).await;
        assert!(undecided.len() <= 1, "after pause {pause}: {undecided:?}");
    }
}

#[tokio::test]
async fn a_single_forgotten_connection_fails_at_most_the_first_request() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = limiter(config(proxy.url()).connections(1).connect().await.expect("a connection"));
    for _ in 0..5 {
        proxy.kill().await;
        only_the_first(&undecided(&limiter, 100).await);
    }
}

/// Its replies are overdue, but arrive.
#[tokio::test]
async fn a_server_that_has_become_slow_decides_all_requests() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let config = RedisConfig::node(proxy.url()).connect_timeout(LONG).response_timeout(Duration::from_secs(2));
    let store = config.connect().await.expect("a connection");
    let limit = Limit::new("limit", FixedWindow::new(MOST, Duration::from_secs(366 * 86_400)));
    let limiter = Limiter::builder([limit]).deadline(LONG).store(store).build();
    proxy.set_latency(150);
    let requests = (0..8).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { undecided(&limiter, 5).await })
    });
    for request in requests.collect::<Vec<_>>() {
        assert_eq!(request.await.expect("a task"), []);
    }
}

/// The reply to the first shows whether the connections work.
#[tokio::test]
async fn at_most_one_of_concurrent_requests_after_a_pause_is_decided_by_policy() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = limiter(config(proxy.url()).connect().await.expect("a connection"));
    for pause in 0..5 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.kill().await;
        let requests = (0..16).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { undecided(&limiter, 20).await.len() })
        });
        let mut undecided = 0;
        for request in requests.collect::<Vec<_>>() {
            undecided += request.await.expect("a task");
        }
        assert!(undecided <= 1, "after pause {pause}: {undecided}");
    }
}

#[tokio::test]
async fn at_most_the_first_request_to_a_master_named_by_sentinel_is_decided_by_policy() {
    let master = RedisServer::start();
    let proxy = Proxy::to(master.port()).await;
    let sentinels = Sentinels::watch(1, &master, 0);
    let port = proxy.port().to_string();
    let () = sentinels.servers[0].ask(cmd("SENTINEL").arg(&["MONITOR", "behind", "127.0.0.1", &port, "1"]));
    let limiter = limiter(
        connected(RedisConfig::sentinel("behind", sentinels.urls()).response_timeout(Duration::from_secs(10))).await,
    );
    for _ in 0..5 {
        proxy.kill().await;
        only_the_first(&undecided(&limiter, 100).await);
    }
}

#[tokio::test]
async fn at_most_the_first_request_to_a_master_of_a_cluster_is_decided_by_policy() {
    let cluster = RedisCluster::start(0);
    let mut proxies = Vec::new();
    for master in 0..3 {
        let proxy = Proxy::to(cluster.port(master)).await;
        cluster.run(master, &format!("CONFIG SET cluster-announce-port {}", proxy.port()));
        proxies.push(proxy);
    }
    let listed =
        |master: usize| format!("{:?}", cluster.ask::<Vec<Vec<deadpool_redis::redis::Value>>>(master, "CLUSTER SLOTS"));
    until("all masters know the ports of the proxies", || {
        (0..3).all(|master| proxies.iter().all(|proxy| listed(master).contains(&format!("({})", proxy.port()))))
    })
    .await;
    let store = RedisConfig::cluster(proxies.iter().map(Proxy::url))
        .response_timeout(Duration::from_secs(10))
        .connect()
        .await
        .expect("a connection");
    let limiter = limiter(store);
    for _ in 0..5 {
        for proxy in &proxies {
            proxy.kill().await;
        }
        only_the_first(&undecided(&limiter, 100).await);
    }
}

/// As after a failover by DNS: the old master has become a replica, and keeps its connections open.
#[tokio::test]
async fn a_master_that_has_become_a_replica_fails_at_most_one_request() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(old.port()).await;
    let limiter = limiter(config(proxy.url()).connect().await.expect("a connection"));
    // Both connections are older than those that fail soon.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    resume(&limiter).await;
    proxy.set_target(new.port());
    let () = old.ask(cmd("REPLICAOF").arg("127.0.0.1").arg(1));
    only_the_first(&undecided(&limiter, 100).await);
}
