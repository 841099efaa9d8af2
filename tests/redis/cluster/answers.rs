//! The decisions of a Cluster are those of one server.

use std::collections::HashMap;
use std::time::Duration;

use support::calls::Calls;
use tokio::task::JoinSet;
use tower_ratelimit::key::Key;
use tower_ratelimit::{Algorithm, CalendarWindow, Decision, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use crate::cluster::{DAY, daily, store};
use support::limits::{Patient, all};
use support::redis_cluster::RedisCluster;

/// Returns a decision without its receipt, for comparison.
fn reported(decision: &Decision) -> String {
    let outcomes = decision.outcomes().iter().map(|outcome| {
        let (after, reset) = (outcome.more_after(), outcome.reset_after());
        format!("{} {:?} {} {after:?} {reset:?}", outcome.limit(), outcome.verdict(), outcome.remaining())
    });
    format!("{:?} {:?} {:?}", decision.at(), decision.verdict(), outcomes.collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_agrees_with_memory() {
    let cluster = RedisCluster::start(0);
    let start = Timestamp::from_micros(1_767_225_600_000_000);
    let clocks = [ManualClock::new(start), ManualClock::new(start)];
    // An exhausted day would deny all later requests.
    let size = |name: &str, algorithm: Algorithm| {
        if name == "calendar_window" { CalendarWindow::daily(10_000).into() } else { algorithm }
    };
    let limits = || all(7, Duration::from_secs(10)).map(|(name, algorithm)| Limit::new(name, size(name, algorithm)));
    let shared = Limiter::builder(limits()).patient().store(store(&cluster).await.clock(clocks[0].clone())).build();
    let memory = Limiter::builder(limits()).patient().store(MemoryStore::new().clock(clocks[1].clone())).build();
    let mut receipts = Vec::new();
    for step in 0..300_u64 {
        let by = Duration::from_micros([0, 1, 999_999, 1_250_000, 3_333_333][step as usize % 5]);
        clocks.iter().for_each(|clock| clock.advance(by));
        // One key for all limits, or one for each two limits, in as many slots.
        let spread = step % 3 != 0;
        let names: Vec<_> =
            (0..9).map(|limit| if spread { format!("subject {}", limit / 2) } else { "one".into() }).collect();
        let costs: Vec<u64> = (0..9).map(|limit| (step * 7 + limit * 5) % 4 % 3).collect();
        let charges: Vec<(&(dyn Key + Sync), u64)> =
            names.iter().zip(&costs).map(|(name, cost)| (name as _, *cost)).collect();
        let (one, other) = (shared.acquire_charges(&charges).await, memory.acquire_charges(&charges).await);
        let (one, other) = (one.expect("a decision"), other.expect("a decision"));
        assert_eq!(reported(&one), reported(&other), "step {step}: {costs:?}");
        receipts.push((one.into_receipt(), other.into_receipt()));
        if step % 4 == 3 {
            for (one, other) in receipts.drain(..).step_by(2) {
                shared.refund(one).await.expect("a refund");
                memory.refund(other).await.expect("a refund");
            }
        }
        if step == 200 {
            shared.reset("one").await.expect("a reset");
            memory.reset("one").await.expect("a reset");
        }
    }
    for (node, key) in cluster.keys() {
        let left: i64 = cluster.ask(node, &format!("PTTL {key}"));
        assert!(left > 0, "{key} has {left} ms to live");
    }
    let masters: Vec<_> = cluster.keys().into_iter().map(|(node, _)| node).collect();
    assert!((0..3).filter(|node| masters.contains(node)).count() > 1, "several masters took part: {masters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_admitted_exactly_the_limit() {
    let cluster = RedisCluster::start(0);
    let stores = [store(&cluster).await, store(&cluster).await];
    for (name, algorithm) in all(100, DAY) {
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let limiter =
                Limiter::builder(Limit::new(name, algorithm)).patient().store(stores[task % 2].clone()).build();
            tasks.spawn(async move {
                let mut allowed = 0;
                for _ in 0..5 {
                    allowed += u32::from(limiter.allows("key", 1).await);
                }
                allowed
            });
        }
        assert_eq!(tasks.join_all().await.into_iter().sum::<u32>(), 100, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_on_a_cluster_share_calls() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::builder([daily("limit", 1_000)]).patient().store(store(&cluster).await).build();
    (0..3).for_each(|node| cluster.run(node, "CONFIG RESETSTAT"));
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire("key", 1).await.expect("a decision").outcomes()[0].remaining() });
    }
    let mut left = calls.join_all().await;
    left.sort_unstable();
    assert_eq!(left, (800..1_000).collect::<Vec<_>>(), "each has an answer of its own");
    let count = |stats: String| {
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|calls| calls.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().expect("a count"))
    };
    let calls: u32 = (0..3).map(|node| count(cluster.ask(node, "INFO commandstats"))).sum();
    assert!(calls <= 20, "{calls} calls for 200 decisions");

    let mut calls = JoinSet::new();
    for key in 0..200 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire(key, 1).await.expect("a decision").outcomes()[0].remaining() });
    }
    assert_eq!(calls.join_all().await, [999; 200]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_names_do_not_change_the_slot_of_a_key() {
    let cluster = RedisCluster::start(0);
    for prefix in ["p", "{p}", "{}", "a:b{"] {
        let names = ["plain", "{", "}", "{}", "{a}", "}{b}", "a:b {x}*", "%7b"];
        let limiter = Limiter::builder(names.map(|name| daily(name, 10)))
            .patient()
            .store(store(&cluster).await.prefix(prefix))
            .build();
        for key in 0..20_u64 {
            assert!(limiter.acquire(key, 1).await.expect("one slot").is_allowed());
        }
    }
    let mut slots = HashMap::new();
    for (node, key) in cluster.keys() {
        let subject = key.split_once(":{").and_then(|(_, rest)| rest.get(..32)).expect("a hash").to_owned();
        let slot: u16 = cluster.ask(node, &format!("CLUSTER KEYSLOT {key}"));
        assert_eq!(*slots.entry(subject).or_insert(slot), slot, "{key}");
    }
    assert_eq!(slots.len(), 20);
}
