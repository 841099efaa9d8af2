//! Masters that die, hang, or reject access.

use std::time::{Duration, Instant};

use support::calls::Calls;
use tokio::task::JoinSet;
use tower_ratelimit::{Limit, Limiter, RedisConfig};

use crate::cluster::{DAY, daily, slot, store};
use support::limits::{Patient, all};
use support::patient::connected;
use support::permissions::{documented, documented_for, names_the_remedy, rejected};
use support::redis_cluster::RedisCluster;
use support::redis_server::{RedisServer, wait_until};

/// A short deadline for decisions.
const SHORT_DEADLINE: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_master_is_replaced_without_affecting_others() {
    dies(RedisCluster::kill, RedisConfig::patient, Duration::from_secs(10)).await;
}

/// Callers with short deadlines never see that a master hangs, because they cancel their requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_master_is_replaced_for_canceled_requests_too() {
    dies(|cluster, node| cluster.hang(node), |config| config, SHORT_DEADLINE).await;
}

/// Without a slot map, the cause of a failure is that of the last attempt to load it.
#[tokio::test]
async fn decisions_report_why_a_cluster_cannot_be_loaded() {
    let store = RedisConfig::cluster(["redis://127.0.0.1:1"]).connect_lazily().expect("a valid configuration");
    let limiter = Limiter::builder([daily("limit", 10)]).patient().store(store).build();
    for attempt in 0..3 {
        let error = limiter.acquire("key", 1).await.expect_err("no node answers");
        let message = format!("{error:#}");
        assert!(message.contains("Redis can't be reached"), "attempt {attempt}: {message}");
        assert!(!message.contains("CLUSTER INFO"), "attempt {attempt}: {message}");
    }
}

async fn dies(
    end: impl FnOnce(&mut RedisCluster, usize),
    with: impl FnOnce(RedisConfig) -> RedisConfig,
    patience: Duration,
) {
    let mut cluster = RedisCluster::start(1);
    let store = connected(with(RedisConfig::cluster(cluster.urls()))).await;
    let limiter = Limiter::builder([daily("limit", 1_000_000)]).patient().store(store).build();
    let answer = |key: u64| {
        let limiter = limiter.clone();
        async move { tokio::time::timeout(patience, limiter.acquire(key, 1)).await.is_ok_and(|answer| answer.is_ok()) }
    };
    let begun = Instant::now();
    // Keys of the first master, and of the others.
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for key in 0..60 {
        let before = cluster.keys().len();
        let first = cluster.ask::<Vec<String>>(0, "KEYS *").len();
        while !answer(key).await {
            assert!(begun.elapsed() < Duration::from_secs(60), "all are decided at first");
        }
        assert_eq!(cluster.keys().len(), before + 1);
        let of_first = cluster.ask::<Vec<String>>(0, "KEYS *").len() > first;
        if of_first { &mut lost } else { &mut kept }.push(key);
    }
    let replica = 3;
    wait_until("the replica has all", || cluster.ask::<i64>(replica, "DBSIZE") == lost.len() as i64);
    end(&mut cluster, 0);
    cluster.notice(0);

    let started = Instant::now();
    let (mut served, mut missed) = (0, 0);
    let mut promoted = None;
    loop {
        let some = lost[served % lost.len()];
        let back = answer(some).await;
        for round in 0..3 {
            served += 1;
            missed += usize::from(!answer(kept[(served + round) % kept.len()]).await);
        }
        if promoted.is_none()
            && cluster
                .ask::<String>(1, "CLUSTER NODES")
                .lines()
                .any(|line| line.contains(&format!(":{}@", cluster.port(replica))) && line.contains("master"))
        {
            promoted = Some(Instant::now());
        }
        if back {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the lost keys are back at last");
        assert!(promoted.is_none_or(|at| at.elapsed() < Duration::from_secs(20)), "they are back soon after");
    }
    // With short deadlines, a few replies may be late on a loaded machine.
    let late = if patience == SHORT_DEADLINE { served / 10 } else { 0 };
    assert!(missed <= late, "{missed} of {served} requests for other masters were not answered");
    for key in lost {
        while !answer(key).await {
            assert!(started.elapsed() < Duration::from_secs(60), "all lost keys are back at last");
        }
        let left = limiter.peek(key, 1).await.expect("a decision").outcomes()[0].remaining();
        assert!(left < 1_000_000 - 1, "what the replica had counts");
    }
}

/// Otherwise, connections to all nodes that have ever been masters would remain open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_has_lost_its_slots_is_disconnected() {
    let cluster = RedisCluster::start(1);
    let limiter = Limiter::builder([daily("limit", 1_000_000)]).patient().store(store(&cluster).await).build();
    // All but the one that asks.
    let connections = || cluster.ask::<String>(0, "CLIENT LIST TYPE normal").lines().count() - 1;
    assert!(connections() > 0);
    cluster.run(3, "CLUSTER FAILOVER TAKEOVER");
    wait_until("it is a replica", || cluster.ask::<String>(0, "INFO replication").contains("role:slave"));
    let started = Instant::now();
    while connections() > 0 {
        for key in 0..30_u64 {
            let _ = limiter.acquire(key, 1).await.expect("a decision");
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{} are open", connections());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replica_requests_fail_until_the_master_returns() {
    let mut cluster = RedisCluster::start(0);
    let limiter = Limiter::builder([daily("limit", 10)]).patient().store(store(&cluster).await).build();
    let answer = async |key: u64| limiter.acquire(key, 1).await.is_ok();
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for key in 0..30 {
        let before = cluster.ask::<i64>(0, "DBSIZE");
        assert!(answer(key).await);
        if cluster.ask::<i64>(0, "DBSIZE") > before { &mut lost } else { &mut kept }.push(key);
    }
    cluster.kill(0);
    for _ in 0..3 {
        for key in &kept {
            assert!(answer(*key).await, "others go on");
        }
        for key in &lost {
            assert!(!answer(*key).await);
        }
    }
    cluster.restart(0);
    let started = Instant::now();
    for key in lost.iter().chain(&kept) {
        while !answer(*key).await {
            assert!(started.elapsed() < Duration::from_secs(60), "it is found again at last");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_without_a_reply_is_never_repeated() {
    let cluster = RedisCluster::start(0);
    let builder = Limiter::builder([daily("limit", 1_000)]).patient();
    let patient = builder.clone().store(store(&cluster).await).build();
    let config = RedisConfig::cluster(cluster.urls()).patient().response_timeout(Duration::from_millis(500));
    let limiter = builder.store(config.connect().await.expect("a connection")).build();
    assert!(patient.allows("key", 1).await);
    let (node, ..) = slot(&cluster, "limit");
    cluster.hang(node);
    let mut calls = JoinSet::new();
    // As many as fit into one call. Others would wait for them.
    for _ in 0..2 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire("key", 1).await.map(drop).map_err(|error| format!("{error:?}")) });
    }
    for answer in calls.join_all().await {
        answer.expect_err("no answer in half a second");
    }
    cluster.resume(node);
    wait_until("the server goes on", || cluster.ask::<String>(node, "PING") == "PONG");
    let decision = patient.peek("key", 1).await.expect("a decision");
    let charged = 1_000 - 1 - decision.outcomes()[0].remaining();
    assert!(charged <= 2, "{charged} charges of 2 requests");
}

/// The minimal permissions of a user, on every master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_credentials_of_the_first_url_are_those_for_all_masters() {
    let cluster = RedisCluster::start(0);
    for node in 0..3 {
        cluster.run(node, &user("limiter", &permissions()));
        cluster.run(node, "ACL SETUSER default -@scripting");
    }
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}", cluster.port(0));
    let store = RedisConfig::cluster([url("limiter:s3cret@")]).patient().connect().await.expect("a connection");
    let limits = all(10, DAY).map(|(name, algorithm)| Limit::new(name, algorithm));
    let limiter = Limiter::builder(limits).patient().store(store).build();
    for key in 0..30_u64 {
        let decision = limiter.acquire(key, 1).await.unwrap_or_else(|error| panic!("{error:?}"));
        assert!(decision.is_allowed());
    }
    let masters: Vec<_> = cluster.keys().into_iter().map(|(node, _)| node).collect();
    assert!((0..3).all(|node| masters.contains(&node)), "all masters took part");
    for node in 0..3 {
        assert_eq!(rejected(&cluster.ask::<Vec<_>>(node, "ACL LOG")), [""; 0]);
    }
    let error = RedisConfig::cluster([url("limiter:wrong@")]).connect().await.expect_err("a wrong password");
    assert!(format!("{error:?}").to_lowercase().contains("password"), "{error:?}");
}

fn permissions() -> Vec<&'static str> {
    [documented(), documented_for("a Cluster")].concat()
}

fn user(name: &str, rules: &[&str]) -> String {
    format!("ACL SETUSER {name} reset on >s3cret {}", rules.join(" "))
}

/// Permissions are not replicated in a Cluster.
#[tokio::test]
async fn connecting_names_the_master_that_denies_a_command() {
    let cluster = RedisCluster::start(0);
    for node in 0..3 {
        cluster.run(node, &user("limiter", &permissions()));
    }
    let config = RedisConfig::cluster([&cluster.urls()[0]]).patient().credentials("limiter", "s3cret");
    config.clone().connect().await.expect("a connection");
    cluster.run(2, "ACL SETUSER limiter -evalsha");
    let error = config.connect().await.expect_err("one master denies it").to_string();
    let master = format!("at 127.0.0.1:{}", cluster.port(2));
    assert!(names_the_remedy(&error) && error.contains("'evalsha'") && error.contains(&master), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_each_missing_permission_for_a_cluster() {
    let cluster = RedisCluster::start(0);
    let all = permissions();
    for node in 0..3 {
        cluster.run(node, &user("all", &all));
        for what in documented_for("a Cluster") {
            let rules: Vec<_> = all.iter().copied().filter(|rule| *rule != what).collect();
            cluster.run(node, &user(what, &rules));
        }
    }
    let config = |user: &str| RedisConfig::cluster(cluster.urls()).patient().credentials(user, "s3cret");
    let error = config("+cluster|slots").connect().await.expect_err("it may not ask for the slots");
    assert!(names_the_remedy(&format!("{error:?}")), "{error:?}");

    let error = config("+asking").connect().await.expect_err("it may not be redirected");
    assert!(names_the_remedy(&format!("{error:?}")), "{error:?}");

    // While a slot moves, its keys are on another node.
    let limiter = |user| {
        let store = config(user).connect_lazily().expect("a store");
        Limiter::builder([daily("limit", 10)]).patient().store(store).build()
    };
    let (allowed, rejected) = (limiter("all"), limiter("+asking"));
    assert!(allowed.allows("key", 1).await);
    let (from, slot, key) = slot(&cluster, "limit");
    let to = (from + 1) % 3;
    cluster.run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(from)));
    cluster.run(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.id(to)));
    cluster.run(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));
    assert!(allowed.allows("key", 1).await);
    let error = rejected.acquire("key", 1).await.expect_err("it may not ask");
    assert!(names_the_remedy(&format!("{error:?}")), "{error:?}");
}

#[tokio::test]
async fn connecting_to_a_single_node_as_a_cluster_is_an_error() {
    let single = RedisServer::start();
    let single = single.url();
    let cases: [(&[&str], &str); 5] = [
        (&[], "there is no URL"),
        (&["redis://127.0.0.1:1"], "refused"),
        (&["http://127.0.0.1"], "URL"),
        (&["unix:///tmp/none"], "Unix socket"),
        (&[&single], "cluster support disabled"),
    ];
    for (urls, why) in cases {
        let error = RedisConfig::cluster(urls.iter().copied()).connect().await.expect_err("no Cluster");
        assert!(format!("{error:?}").contains(why), "{urls:?}: {error:?}");
    }
}
