//! Faults of a single node.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::calls::Calls;
use tokio::task::block_in_place;
use tower_ratelimit::{
    DecidedBy, FixedWindow, Limit, Limiter, ManualClock, OnStoreError, RedisConfig, RedisStore, Share, StoreErrorKind,
    Timestamp,
};

use crate::faults::load::{Load, limit};
use support::patient::{Patient, connected};
use support::redis_server::{RedisServer, wait_until};

pub(super) const BEFORE: Duration = Duration::from_millis(300);
pub(super) const DURING_FAULT: Duration = Duration::from_secs(1);

pub(super) async fn store(server: &RedisServer) -> RedisStore {
    connected(RedisConfig::node(server.url())).await
}

/// Returns a configuration that takes no connection for dead, however long the machine stops.
async fn patient_store(server: &RedisServer) -> RedisStore {
    RedisConfig::node(server.url()).patient().connect().await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted() {
    let mut server = RedisServer::start();
    let load = Load::start(&store(&server).await);
    load.run(BEFORE).await;
    server.stop();
    load.run(DURING_FAULT).await;
    server.start_again();
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("killed and restarted", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_for_5_seconds() {
    let server = RedisServer::start();
    // Only the deadline ends a request.
    let load = Load::start(&patient_store(&server).await);
    load.run(BEFORE).await;
    server.pause();
    load.run(Duration::from_secs(5)).await;
    server.resume();
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("stopped for 5 s", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed() {
    let server = RedisServer::start();
    let load = Load::start(&patient_store(&server).await);
    for _ in 0..20 {
        load.run(Duration::from_millis(50)).await;
        server.ask::<()>(cmd("SCRIPT").arg("FLUSH"));
    }
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("scripts flushed", recovery);
    assert_eq!(report.errors, 0, "it heals within the same call");
    report.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut() {
    let server = RedisServer::start();
    let load = Load::start(&store(&server).await);
    for _ in 0..20 {
        load.run(Duration::from_millis(50)).await;
        server.ask::<()>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes"));
    }
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("connections cut", recovery);
    report.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_to_replica_for_a_while() {
    let server = RedisServer::start();
    let load = Load::start(&store(&server).await);
    load.run(BEFORE).await;
    server.ask::<()>(cmd("REPLICAOF").arg("127.0.0.1").arg(1));
    load.run(DURING_FAULT).await;
    server.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE"));
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("replica only", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let server = RedisServer::start();
    let load = Load::start(&store(&server).await);
    load.run(BEFORE).await;
    server.ask::<()>(cmd("CONFIG").arg("SET").arg("maxmemory").arg(1));
    load.run(DURING_FAULT).await;
    server.ask::<()>(cmd("CONFIG").arg("SET").arg("maxmemory").arg(0));
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("maxmemory reached", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_type() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let first = Load::start(&store);
    first.run(BEFORE).await;
    let ours = || server.ask::<Vec<String>>(cmd("KEYS").arg("*"));
    block_in_place(|| wait_until("there are many keys", || ours().len() > 20));
    drop(first.end().await);
    let ours = ours();
    for key in &ours {
        server.ask::<()>(cmd("DEL").arg(key));
        server.ask::<()>(cmd("LPUSH").arg(key).arg("17"));
    }
    // The first keys are the same.
    let load = Load::start(&store);
    load.run(DURING_FAULT).await;
    for key in &ours {
        server.ask::<()>(cmd("DEL").arg(key));
    }
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("wrong type", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(true).await;
}

/// The clock of Redis cannot be set here, so the store uses a clock of the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_stepped_back() {
    const HOUR: u64 = 3_600_000_000;
    let server = RedisServer::start();
    let noon = Timestamp::from_micros(1_767_268_800_000_000);
    let clock = ManualClock::new(noon);
    let store = patient_store(&server).await.clock(clock.clone());
    let limiter =
        Limiter::builder(Limit::new("limit", FixedWindow::per_hour(100))).patient().store(store.clone()).build();
    let load = Load::start(&store);
    let mut allowed = 0;
    for step in 0..200 {
        // Back by up to ten minutes and forward again, within one window.
        clock.set(Timestamp::from_micros(noon.as_micros() + HOUR / 2 - step % 7 * (HOUR / 40)));
        tokio::time::sleep(Duration::from_millis(5)).await;
        let decision = limiter.acquire("key", 1).await.expect("a decision");
        allowed += u32::from(decision.is_allowed());
        assert!(decision.outcomes()[0].reset_after() <= Duration::from_secs(3_600));
    }
    assert_eq!(allowed, 100);
    let report = load.end().await;
    assert_eq!(report.errors, 0);
    report.none_was_charged_twice(true).await;
}

/// With the default circuit breaker, the requests that wait show whether Redis works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_queue_capacity_follow_the_policy_at_once() {
    let server = RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().queue_capacity(100).connect().await.expect("a connection");
    let builder = Limiter::builder([limit()]).store(store).deadline(Duration::from_secs(30));
    let limiter = builder.clone().build();
    server.pause();
    let mut waiting = Vec::new();
    // The second call may take its requests from the queue only after others were rejected: more fill the queue again.
    for _ in 0..3 {
        for key in 0..300_u64 {
            let limiter = limiter.clone();
            waiting.push(tokio::spawn(async move { limiter.acquire(key, 1).await }));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Two calls of up to 64 requests, and 100 waiting requests.
    let is_over = || waiting.iter().filter(|task| task.is_finished()).count() >= waiting.len() - 100 - 2 * 64;
    block_in_place(|| wait_until("those that may not wait are answered", is_over));
    let answer = async |policy| builder.clone().on_store_error(policy).build().acquire("another", 1).await;
    let rejected = answer(OnStoreError::Reject).await.expect_err("a full queue");
    assert_eq!(rejected.kind(), StoreErrorKind::QueueFull, "{rejected:?}");
    assert!(format!("{rejected:?}").contains("100 requests wait"), "{rejected:?}");
    assert!(format!("{rejected:?}").contains("raise `RedisConfig::queue_capacity`"), "{rejected:?}");
    let allowed = answer(OnStoreError::Allow).await.expect("a decision");
    assert_eq!(allowed.decided_by(), DecidedBy::Unlimited);
    let decided = answer(OnStoreError::DecideLocally(Share::whole())).await.expect("a decision");
    assert_eq!(decided.decided_by(), DecidedBy::Local);
    server.resume();
    let mut decided = 0;
    for answer in waiting {
        match answer.await.expect("a task") {
            Ok(decision) => decided += usize::from(decision.is_allowed()),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::QueueFull, "{error:?}"),
        }
    }
    assert!((100..=100 + 2 * 64).contains(&decided), "{decided} waited");
    assert!(limiter.allows("another", 1).await);
}
