//! What slots in use cost a database.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::patient::Patient;
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::{Concurrency, Limit, Limiter};

/// The most keys that are renewed together.
const KEYS_PER_CALL: u64 = 64;

#[tokio::test]
async fn two_calls_renew_the_slots_of_64_keys() {
    let calls = renewals(100, 5, Duration::from_secs(2)).await;
    // The first key may be sent before the others. Within the time to live, there are four renewals, or a fifth one.
    assert!(calls <= 5 * 2 * 100_u64.div_ceil(KEYS_PER_CALL) + 4, "{calls} calls");
}

#[tokio::test]
#[ignore = "it measures for 30 s"]
async fn renewals_of_10_000_slots() {
    renewals(1_000, 10, Duration::from_secs(30)).await;
}

/// Returns the calls that renew slots during their time to live.
async fn renewals(keys: u64, slots: u32, time_to_live: Duration) -> u64 {
    let server = RedisServer::start();
    let limit = Limit::new("streams", Concurrency::limit(slots).time_to_live(time_to_live));
    let limiter = Limiter::builder([limit]).patient().store(connect(&server).await).build();
    let mut tasks = JoinSet::new();
    for key in (0..keys).flat_map(|key| vec![key; slots as usize]) {
        let limiter = limiter.clone();
        tasks.spawn(async move { limiter.hold(key, 1).await.expect("a slot") });
        if tasks.len() >= 256 {
            tokio::task::yield_now().await;
        }
    }
    let held = tasks.join_all().await;
    let costs = || {
        let stats: String = server.ask(cmd("INFO").arg("commandstats"));
        let micros = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|stats| stats.split("usec=").nth(1));
        let micros = micros.and_then(|micros| micros.split(',').next()).expect("a time");
        (server.calls("evalsha"), micros.parse::<u64>().expect("a time"))
    };
    let taken = costs();
    sleep(time_to_live / 2).await;
    let before = costs();
    sleep(time_to_live).await;
    let after = costs();
    let renewed = (after.0 - before.0, after.1 - before.1);
    for key in 0..keys {
        assert!(limiter.hold(key, 1).await.is_err(), "{key}");
    }
    let before = costs();
    let count = held.len();
    drop(held);
    while limiter.peek(keys - 1, 1).await.expect("an answer").outcomes()[0].remaining() < slots.into() {
        sleep(Duration::from_millis(10)).await;
    }
    let released = (costs().0 - before.0, costs().1 - before.1);
    println!(
        "{count} slots of {keys} keys (calls of Redis, µs in it): taken {taken:?}, renewed for {time_to_live:?} \
         {renewed:?}, released {released:?}"
    );
    renewed.0
}
