//! A master that fails, and a replica that replaces it.

use std::time::Duration;

use tower_ratelimit::RedisConfig;

use crate::faults::load::Load;
use support::patient::connected;
use support::redis_server::RedisServer;
use support::sentinel::{self, Sentinels};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_over_by_sentinel() {
    let mut master = RedisServer::start();
    let replica = RedisServer::replica_of(&master);
    let sentinels = Sentinels::watch(3, &master, 1);
    let store = connected(RedisConfig::sentinel(sentinel::MASTER, sentinels.urls())).await;
    let load = Load::start(&store);
    load.run(Duration::from_millis(300)).await;
    master.stop();
    sentinels.set_down_after(sentinel::SOON);
    tokio::task::block_in_place(|| sentinels.wait_for_master(&replica));
    let recovery = load.recovered().await;
    let report = load.end().await;
    report.check("failed over by Sentinel", recovery);
    assert!(report.failed() > 0);
    report.none_was_charged_twice(false).await;
}
