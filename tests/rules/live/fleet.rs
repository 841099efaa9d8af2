//! Rules of a fleet in Redis.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use deadpool_redis::redis::cmd;
use futures_util::future::{join, join_all};
use tokio::runtime::Handle;
use tower_ratelimit::rules::Extractors;
use tower_ratelimit::{Event, FixedWindow, Limit, LiveLimits, RateLimitLayer, RedisConfig, RedisStore, StoreErrorKind};

use crate::live::{app, left};
use support::patient::Patient;
use support::redis_cluster::RedisCluster;
use support::redis_server::RedisServer;
use support::store_fixture::{user_key, visit};

fn yaml(name: &str) -> String {
    let limit = format!("rate_limit: {{ name: {name}, unit: day, requests_per_unit: 1000 }}");
    format!("domain: shop\ndescriptors:\n- {{ key: header.x-user, {limit} }}\n")
}

/// A machine of the fleet. Its usage is in memory, so that it can be read without Redis.
struct Machine {
    _rules: LiveLimits,
    app: Router,
    reported: Arc<Mutex<Vec<String>>>,
}

impl Machine {
    async fn start(store: &RedisStore) -> Self {
        let otherwise = Limit::new("otherwise", FixedWindow::per_day(1_000)).by(user_key());
        let rules = store.follow_rules(Extractors::new(), [otherwise]).await.unwrap();
        let reported: Arc<Mutex<Vec<String>>> = Arc::default();
        let report = reported.clone();
        let rules = rules.observe(move |event| {
            report.lock().unwrap().push(match event {
                Event::LimitsRejected { error, .. } => format!("rejected: {error}"),
                other => format!("{other:?}"),
            });
        });
        let app = app(RateLimitLayer::live_builder(&rules).build());
        Self { _rules: rules, app, reported }
    }

    /// Returns the only limit.
    async fn limit(&self) -> String {
        left(&visit(&self.app, "/", "ann").await).pop().unwrap().0
    }

    async fn wait_for_limit(&self, limit: &str) {
        eventually(limit, async || self.limit().await == limit).await;
    }

    fn reported(&self) -> Vec<String> {
        self.reported.lock().unwrap().clone()
    }

    async fn wait_for_reports(&self, times: usize) {
        eventually("reported", async || self.reported().len() >= times).await;
        // The error is not reported again.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        assert_eq!(self.reported().len(), times, "{:?}", self.reported());
    }
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    for _ in 0..2_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came: {what}");
}

async fn a_fleet_switches_together(stores: [RedisStore; 2]) {
    let [one, other] = stores;
    let first = Machine::start(&one).await;
    assert_eq!(first.limit().await, "otherwise");
    one.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    // A new machine has the limits at once.
    let second = Machine::start(&other).await;
    assert_eq!(second.limit().await, "a");
    first.wait_for_limit("a").await;
    other.publish_rules(&yaml("b"), &Extractors::new()).await.unwrap();
    first.wait_for_limit("b").await;
    second.wait_for_limit("b").await;
    assert_eq!(first.reported(), ["LimitsReplaced { limits: 1 }"; 2]);
    assert_eq!(second.reported(), ["LimitsReplaced { limits: 1 }"]);
    // Another service on the same Redis has its own rules.
    let apart = Machine::start(&one.prefix("apart")).await;
    assert_eq!(apart.limit().await, "otherwise");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_one_server_switches_together() {
    let server = RedisServer::start();
    let connect = async || RedisConfig::node(server.url()).patient().connect().await.unwrap();
    a_fleet_switches_together([connect().await, connect().await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_rules_without_limits_switch_all_limits_off() {
    let server = RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap();
    let machine = Machine::start(&store).await;
    store.publish_rules("domain: shop\ndescriptors: []", &Extractors::new()).await.unwrap();
    eventually("no limits", async || left(&visit(&machine.app, "/", "ann").await).is_empty()).await;
    store.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    eventually("a limit", async || !left(&visit(&machine.app, "/", "ann").await).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_a_cluster_switches_together() {
    let cluster = RedisCluster::start(0);
    // Each prefix has its own slot, so some are not on the first node.
    let switch = async |prefix| {
        let connect = async || RedisConfig::cluster(cluster.urls()).patient().connect().await.unwrap().prefix(prefix);
        a_fleet_switches_together([connect().await, connect().await]).await;
    };
    join_all(["a", "b", "c", "d"].map(switch)).await;
}

#[tokio::test]
async fn broken_rules_are_not_published() {
    let server = RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap();
    store.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    let version = || server.ask::<String>(cmd("GET").arg("ratelimit:rules:version"));
    let before = version();
    let unknown = "domain: d\ndescriptors:\n- { key: plan, rate_limit: { unit: day, requests_per_unit: 1 } }";
    let rule = |number| format!("- {{ key: header.h{number}, rate_limit: {{ unit: day, requests_per_unit: 9 }} }}\n");
    let many = format!("domain: d\ndescriptors:\n{}", (0..65).map(rule).collect::<String>());
    for broken in ["domain: 5\ndescriptors: 5", unknown, &many] {
        let error = store.publish_rules(broken, &Extractors::new()).await.unwrap_err();
        assert!(error.kind() == StoreErrorKind::InvalidCall, "{error}");
    }
    assert_eq!(version(), before);
    assert_eq!(server.ask::<String>(cmd("GET").arg("ratelimit:rules")), yaml("a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_rules_in_redis_change_nothing_and_are_reported_once() {
    let server = RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap();
    store.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    let old = Machine::start(&store).await;
    let put = |text: &str, version: &str| {
        server.ask::<()>(cmd("SET").arg("ratelimit:rules").arg(text));
        server.ask::<()>(cmd("SET").arg("ratelimit:rules:version").arg(version));
    };
    put("domain: shop\ndescriptors: 5", "1");
    let new = Machine::start(&store).await;
    join(old.wait_for_reports(1), new.wait_for_reports(1)).await;
    let rejected = "rejected: 2:14: `descriptors` is \"5\": write a list, with a dash before each item";
    assert_eq!((old.reported(), new.reported()), (vec![rejected.to_owned()], vec![rejected.to_owned()]));
    assert_eq!((old.limit().await.as_str(), new.limit().await.as_str()), ("a", "otherwise"));
    // Valid rules that are written by hand are applied, too.
    put(&yaml("b"), "2");
    old.wait_for_limit("b").await;
    new.wait_for_limit("b").await;
    server.ask::<()>(cmd("DEL").arg("ratelimit:rules").arg("ratelimit:rules:version"));
    old.wait_for_reports(3).await;
    assert!(old.reported()[2].starts_with("rejected: the rules were deleted from Redis"), "{:?}", old.reported());
    assert_eq!(old.limit().await, "b");
}

/// The text has moved to the new master, which the old one redirects to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_a_slot_under_migration_are_published_and_read() {
    let cluster = RedisCluster::start(0);
    let connect = async || RedisConfig::cluster(cluster.urls()).patient().connect().await.unwrap();
    let store = connect().await;
    store.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    let keys = cluster.keys();
    let (from, key) = keys.iter().find(|(_, key)| key == "ratelimit:rules").unwrap();
    let slot: u16 = cluster.ask(*from, &format!("CLUSTER KEYSLOT {key}"));
    let to = (from + 1) % 3;
    cluster.run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(*from)));
    cluster.run(*from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.id(to)));
    cluster.run(*from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));

    let machine = Machine::start(&connect().await).await;
    machine.wait_for_limit("a").await;
    store.publish_rules(&yaml("b"), &Extractors::new()).await.unwrap();
    machine.wait_for_limit("b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_limits_stay_while_redis_is_unavailable() {
    let mut server = RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap();
    store.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    let old = Machine::start(&store).await;
    server.stop();
    let new = Machine::start(&store).await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((old.limit().await.as_str(), new.limit().await.as_str()), ("a", "otherwise"));
    }
    let error = store.publish_rules(&yaml("b"), &Extractors::new()).await.unwrap_err();
    assert!(error.kind() != StoreErrorKind::InvalidCall, "{error}");
    assert!(old.reported().is_empty() && new.reported().is_empty());
    // Redis restarts empty.
    server.start_again();
    eventually("published", async || store.publish_rules(&yaml("b"), &Extractors::new()).await.is_ok()).await;
    old.wait_for_limit("b").await;
    new.wait_for_limit("b").await;
}

#[tokio::test]
async fn a_follower_stops_when_its_limits_are_dropped() {
    let server = RedisServer::start();
    let store = RedisConfig::node(server.url()).patient().connect().await.unwrap();
    // All tasks of the connections run once there is a reply.
    store.publish_rules(&yaml("a"), &Extractors::new()).await.unwrap();
    let before = Handle::current().metrics().num_alive_tasks();
    let machine = Machine::start(&store).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before + 1);
    drop(machine);
    eventually("over", async || Handle::current().metrics().num_alive_tasks() == before).await;
}
