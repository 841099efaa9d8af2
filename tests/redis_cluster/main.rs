//! The store in a Redis Cluster, on real ones.
#![cfg(feature = "redis")]

mod answers;
mod apart;
mod masters;
mod moves;
#[path = "../support/redis_cluster.rs"]
mod redis_cluster;
#[path = "../support/redis_server.rs"]
mod redis_server;

use std::error::Error;
use std::time::Duration;

use redis_cluster::RedisCluster;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, RedisStore, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

const DAY: Duration = Duration::from_secs(86_400);

fn all(tokens: u32, period: Duration) -> [(&'static str, Algorithm); 8] {
    [
        ("fixed_window", FixedWindow::new(tokens, period).into()),
        ("sliding_log", SlidingLog::new(tokens, period).into()),
        ("sliding_window", SlidingWindow::new(tokens, period).into()),
        ("sliding_window_counter", SlidingWindowCounter::new(tokens, period).into()),
        ("token_bucket", TokenBucket::new(tokens, tokens, period).into()),
        ("token_bucket-at-intervals", TokenBucket::new(tokens, tokens, period).at_intervals().into()),
        ("leaky_bucket", LeakyBucket::new(tokens, tokens, period).into()),
        ("leaky_bucket_queue", LeakyBucketQueue::new(tokens - 1, tokens, period).into()),
    ]
}

async fn store(cluster: &RedisCluster) -> RedisStore {
    let urls = cluster.urls();
    RedisStore::connect_cluster(urls.iter().map(String::as_str)).await.expect("a connection")
}

fn daily(name: &str, limit: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(limit))
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The slot of a subject: that of its only key.
fn slot(cluster: &RedisCluster, limit: &str) -> (usize, u16, String) {
    let keys = cluster.keys();
    let mut of_limit = keys.into_iter().filter(|(_, key)| key.contains(&format!("}}:{limit}:")));
    let (node, key) = of_limit.next().expect("a key");
    assert!(of_limit.next().is_none(), "{limit} has one key");
    (node, cluster.ask(node, &format!("CLUSTER KEYSLOT {key}")), key)
}
