//! Leases on a real Redis Cluster whose master fails, and together with slots.
#![allow(clippy::print_stdout, reason = "what was admitted")]

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use support::patient::{LONG, Patient, connected};
use support::redis_cluster::RedisCluster;
use support::redis_server::{RedisServer, wait_until};
use support::time::{LONGEST, SECOND};
use tokio::time::sleep;
use tower_ratelimit::{DecidedBy, FixedWindow, Limit, Limiter, RedisConfig};

async fn remaining(limiter: &Limiter, key: u64) -> Vec<u64> {
    let answer = limiter.peek(key, 0).await.expect("an answer");
    answer.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

/// Waits until so many tokens of each limit remain.
pub(crate) async fn wait_for_remaining(limiter: &Limiter, key: u64, expected: &[u64]) {
    let began = Instant::now();
    while remaining(limiter, key).await != expected {
        assert!(began.elapsed() < LONG, "{:?} remain of key {key}, not {expected:?}", remaining(limiter, key).await);
        sleep(Duration::from_millis(5)).await;
    }
}

/// What limiters have admitted.
#[derive(Clone, Copy, Default)]
struct Admitted {
    all: u64,
    by_lease: u64,
}

/// Sends a request per ms to each limiter for a while.
async fn load(limiters: &[Limiter], span: Duration) -> Admitted {
    let began = Instant::now();
    let each = limiters.iter().map(async |limiter| {
        let mut admitted = Admitted::default();
        while began.elapsed() < span {
            if let Ok(decision) = limiter.acquire(0, 1).await {
                admitted.all += u64::from(decision.is_allowed());
                admitted.by_lease += u64::from(decision.decided_by() == DecidedBy::Lease);
            }
            sleep(Duration::from_millis(1)).await;
        }
        admitted
    });
    join_all(each).await.iter().fold(Admitted::default(), |sum, admitted| Admitted {
        all: sum.all + admitted.all,
        by_lease: sum.by_lease + admitted.by_lease,
    })
}

/// Each lost write may be a block. They are lost as the replica is cut off from the master before that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_excess_is_at_most_the_tokens_of_lost_writes() {
    const LIMIT: u32 = 6_000;
    let mut cluster = RedisCluster::start(1);
    let mut limiters = Vec::new();
    for _ in 0..4 {
        let store = connected(RedisConfig::cluster(cluster.urls()).patient()).await;
        // Leases outlast the kill.
        let window = Limit::new("window", FixedWindow::new(LIMIT, LONGEST)).leased(SECOND);
        limiters.push(Limiter::builder([window]).patient().store(store).build());
    }
    let used = async || u64::from(LIMIT) - remaining(&limiters[0], 0).await[0];
    let mut all = load(&limiters, SECOND).await.all;
    wait_for_remaining(&limiters[0], 0, &[u64::from(LIMIT) - all]).await;

    let master = cluster.keys()[0].0;
    let replica = master + 3;
    let offset = |node| {
        let info: String = cluster.ask(node, "INFO replication");
        info.lines().find(|line| line.starts_with("master_repl_offset")).expect("an offset").to_owned()
    };
    wait_until("the replica has all", || offset(master) == offset(replica));
    cluster.hang(replica);
    cluster.run(master, "CLIENT KILL TYPE replica");
    let replicated = all;
    all += load(&limiters, SECOND / 2).await.all;
    let lost = used().await - replicated;
    cluster.kill(master);
    cluster.resume(replica);
    cluster.notice(master);

    let during = load(&limiters, SECOND / 4).await;
    assert!(during.by_lease > 0, "blocks are spent while no master has the key");
    let killed = Instant::now();
    while limiters[0].peek(0, 0).await.is_err() {
        assert!(killed.elapsed() < LONG, "the replica is promoted");
        sleep(Duration::from_millis(10)).await;
    }
    let mut after = Admitted::default();
    loop {
        let more = load(&limiters, SECOND / 2).await;
        after = Admitted { all: after.all + more.all, by_lease: after.by_lease + more.by_lease };
        if more.all == 0 {
            break;
        }
    }
    all += during.all + after.all;
    println!(
        "{all} admitted of {LIMIT}, {lost} tokens charged by lost writes; by leases, {} during the failover, and {} of \
         {} after it",
        during.by_lease, after.by_lease, after.all
    );
    assert!(all <= u64::from(LIMIT) + lost);
    assert!(all > u64::from(LIMIT), "writes were lost");
    assert!(after.by_lease > after.all / 2, "leases go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_takes_a_slot_besides_is_decided_by_calls() {
    let server = RedisServer::start();
    let window = Limit::new("window", FixedWindow::new(1_000, LONGEST)).leased(SECOND);
    let limits = [window, Limit::concurrent("streams", 2)];
    let store = connected(RedisConfig::node(server.url()).patient()).await;
    let limiter = Limiter::builder(limits).patient().store(store).build();
    for requests in 1..=20 {
        let held = limiter.hold(0, 1).await.expect("a slot");
        assert_eq!(held.decided_by(), DecidedBy::Store);
        assert_eq!(remaining(&limiter, 0).await, [1_000 - requests, 1]);
        drop(held);
        wait_for_remaining(&limiter, 0, &[1_000 - requests, 2]).await;
    }
    let _held = [limiter.hold(0, 1).await.expect("a slot"), limiter.hold(0, 1).await.expect("a slot")];
    assert!(limiter.hold(0, 1).await.is_err());
    assert_eq!(remaining(&limiter, 0).await, [978, 0], "a denied request is not charged");
}
