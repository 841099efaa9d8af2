//! Requests that wait together, some of which are slow, cancelled, or end with their runtime.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use deadpool_redis::redis::cmd;
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::RedisConfig;

use crate::connections::{charge, charged, connect, limiter, short_deadline, until};
use support::patient::{Patient, connected};
use support::proxy::Gate;
use support::redis_cluster::RedisCluster;
use support::redis_server::RedisServer;
use support::sentinel::{MASTER, Sentinels};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// As in tests that share a store, each of which has its own runtime.
#[test]
fn a_store_works_after_a_runtime_ends_with_pending_requests() {
    let server = RedisServer::start();
    let main = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let limiter = limiter(main.block_on(connect(&server))).build();
    for round in 0..20 {
        let other = runtime();
        other.block_on(async {
            for _ in 0..8 {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.acquire("key", 1).await.map(drop) });
            }
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
        });
        drop(other);
    }
    let started = Instant::now();
    while !matches!(main.block_on(short_deadline(&limiter)), Some(Ok(()))) {
        assert!(started.elapsed() < Duration::from_secs(60), "nobody is served any more");
    }
    for _ in 0..20 {
        let _ = main.block_on(limiter.acquire("key", 1)).expect("a decision");
    }
}

/// As in tests that share a store in a `static`.
#[test]
fn a_store_decides_in_each_of_consecutive_runtimes() {
    let (server, master, cluster) = (RedisServer::start(), RedisServer::start(), RedisCluster::start(0));
    let sentinels = Sentinels::watch(1, &master, 0);
    for config in [
        RedisConfig::node(server.url()),
        RedisConfig::sentinel(MASTER, sentinels.urls()),
        RedisConfig::cluster(cluster.urls()),
    ] {
        let lazy = config.clone().patient().connect_lazily().expect("a store");
        let eager = runtime().block_on(connected(config.patient()));
        for store in [lazy, eager] {
            let limiter = limiter(store).build();
            for _ in 0..5 {
                let before = runtime().block_on(charged(&limiter));
                assert_eq!(runtime().block_on(charge(&limiter)), before + 1);
            }
        }
    }
}

/// As after `block_on(connect())`, before requests run on another runtime.
#[test]
fn a_store_works_while_the_runtime_that_opened_it_stands_still() {
    let (server, master, cluster) = (RedisServer::start(), RedisServer::start(), RedisCluster::start(0));
    let sentinels = Sentinels::watch(1, &master, 0);
    for config in [
        RedisConfig::node(server.url()),
        RedisConfig::sentinel(MASTER, sentinels.urls()),
        RedisConfig::cluster(cluster.urls()),
    ] {
        let still = runtime();
        let limiter = limiter(still.block_on(connected(config.patient()))).build();
        let others = [runtime(), runtime()];
        for _ in 0..20 {
            for other in &others {
                let before = other.block_on(charged(&limiter));
                assert_eq!(other.block_on(charge(&limiter)), before + 1);
            }
        }
        let before = still.block_on(charged(&limiter));
        assert_eq!(still.block_on(charge(&limiter)), before + 1, "it works again where it was opened");
    }
}

/// Otherwise, a process with a runtime for each processor would open more and more connections.
#[test]
fn each_runtime_that_would_wait_opens_one_connection() {
    let server = RedisServer::start();
    let still = runtime();
    let limiter = limiter(still.block_on(connect(&server))).build();
    for _ in 0..3 {
        let other = runtime();
        other.block_on(async {
            let requests = (0..50).map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.acquire("key", 1).await.map(drop) })
            });
            for request in requests.collect::<Vec<_>>() {
                request.await.expect("a task").expect("a decision");
            }
        });
        let clients: String = server.ask(cmd("CLIENT").arg("LIST").arg("TYPE").arg("normal"));
        let ours = clients.lines().filter(|line| !line.contains("cmd=client")).count();
        assert_eq!(ours, 3, "two on the runtime that stands still, and one here");
    }
}

/// As in `select!` with another, slow branch.
#[tokio::test]
async fn an_unpolled_request_delays_nobody() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    let mut held = [(), ()].map(|()| Box::pin(limiter.acquire("key", 1)));
    for request in &mut held {
        assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    for _ in 0..50 {
        let _ = limiter.acquire("key", 1).await.expect("it is served");
    }
    for request in held {
        let _ = request.await.expect("a decision");
    }
}

/// A request of one of two runtimes is dropped outside of both.
#[test]
fn canceling_outside_a_runtime_fails_no_other_request() {
    let server = RedisServer::start();
    let main = runtime();
    let limiter = limiter(main.block_on(connect(&server))).build();
    for _ in 0..10 {
        let held = main.block_on(async {
            let mut held = [(), ()].map(|()| Box::pin(limiter.acquire("key", 1)));
            for request in &mut held {
                assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            held
        });
        let others = (0..5).map(|_| {
            let limiter = limiter.clone();
            main.spawn(async move { limiter.acquire("key", 1).await.map(drop) })
        });
        let others: Vec<_> = others.collect();
        main.block_on(tokio::task::yield_now());
        std::thread::spawn(move || drop(held)).join().expect("a thread");
        for other in others {
            main.block_on(other).expect("a task").expect("a decision");
        }
    }
}

/// By a firewall, or by the setting `timeout` of Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_while_idle_fail_no_request() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    for _ in 0..5 {
        let _ = limiter.acquire("key", 1).await.expect("a decision");
        let killed: u32 = server.ask(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes"));
        assert!(killed >= 2, "{killed} connections were there");
        // Connections are opened again although there are no requests.
        until("two connections are back", || {
            let clients: String = server.ask(cmd("CLIENT").arg("LIST").arg("TYPE").arg("normal"));
            clients.lines().filter(|line| !line.contains("cmd=client")).count() == 2
        })
        .await;
        for _ in 0..4 {
            let _ = limiter.acquire("key", 1).await.expect("a decision");
        }
    }
}

/// After a connection that fails soon, the next one is opened after a pause, up to half a second.
#[tokio::test]
async fn a_connection_cut_while_idle_is_not_one_that_fails() {
    let server = RedisServer::start();
    let config = RedisConfig::node(server.url()).patient().connections(1);
    let store = config.connect().await.expect("a connection");
    let mut pauses = Vec::new();
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let _: u32 = server.ask(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes"));
        let begun = Instant::now();
        until("the connection is back", || {
            let clients: String = server.ask(cmd("CLIENT").arg("LIST").arg("TYPE").arg("normal"));
            clients.lines().any(|line| !line.contains("cmd=client"))
        })
        .await;
        pauses.push(begun.elapsed());
    }
    // On a loaded machine, some take longer.
    assert!(pauses[7..].iter().any(|pause| *pause < Duration::from_millis(200)), "{pauses:?}");
    drop(store);
}

/// Behind a slow network, latency and throughput depend on how many calls are under way.
#[tokio::test]
async fn each_free_connection_carries_a_call() {
    let server = RedisServer::start();
    for (connections, expected) in [(1, 2), (2, 2), (4, 4), (8, 8)] {
        let gate = Gate::to(server.port()).await;
        let config = RedisConfig::node(gate.url()).patient().connections(connections);
        let limiter = limiter(config.connect().await.expect("a connection")).build();
        let before = charged(&limiter).await;
        let calls = gate.calls.load(Ordering::Relaxed);
        let calls = || gate.calls.load(Ordering::Relaxed) - calls;
        let start = |requests: usize| {
            let limiter = limiter.clone();
            let start = move |_| {
                tokio::spawn({
                    let limiter = limiter.clone();
                    async move { limiter.acquire("key", 1).await.map(drop) }
                })
            };
            (0..requests).map(start).collect::<Vec<_>>()
        };
        gate.set_open(false);
        let mut requests = Vec::new();
        for call in 1..=expected {
            requests.extend(start(1));
            until("a call is under way", || calls() == call).await;
        }
        requests.extend(start(64));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(calls(), expected, "with {connections} connections");
        gate.set_open(true);
        for request in requests {
            request.await.expect("a task").expect("a decision");
        }
        assert_eq!(charged(&limiter).await, before + u64::from(expected) + 64);
    }
}
