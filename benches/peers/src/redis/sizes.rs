//! Measures the size of a key in Redis, and of a call.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cmd;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, RedisStore, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

use super::bare::connect;
use super::server::RedisServer;
use super::speed::{MANY, flush};
use crate::peers::shared;
use crate::scale::Scale;
use crate::table::Table;

pub async fn compare(server: &RedisServer, scale: &Scale) {
    let most = 1 << 26;
    let minute = Duration::from_secs(60);
    let algorithms: [(&str, Algorithm); 8] = [
        ("fixed window", FixedWindow::per_day(most).into()),
        ("sliding log", SlidingLog::per_day(most).into()),
        ("sliding window", SlidingWindow::per_day(most).into()),
        ("sliding window counter", SlidingWindowCounter::per_day(most).into()),
        ("token bucket", TokenBucket::new(most, 1, minute).into()),
        ("token bucket, intervals", TokenBucket::per_day(most).at_intervals().into()),
        ("leaky bucket", LeakyBucket::new(most, 1, minute).into()),
        ("leaky bucket queue", LeakyBucketQueue::new(most, 1, minute).into()),
    ];
    let many = if scale.quick { MANY / 10 } else { MANY };
    let table = Table::new(
        "Ours, one call for each decision",
        &[
            "",
            "server's µs for a call",
            "`MEMORY USAGE` after 1 request",
            "after 10",
            &format!("bytes a key of {many}, all told"),
        ],
    );
    let store = RedisStore::connect(&server.url()).await.expect("a connection");
    let mut connection = connect(&server.url()).await;
    for (name, algorithm) in algorithms {
        let limiter = Arc::new(shared([Limit::new("limit", algorithm)], store.clone()));
        flush(&mut connection).await;
        let () = cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.expect("a reset");
        let mut usage = Vec::new();
        for request in 0..5_000 {
            let _ = limiter.acquire("key", 1).await.expect("a decision");
            if request == 0 || request == 9 {
                let keys: Vec<String> = cmd("KEYS").arg("*").query_async(&mut connection).await.expect("keys");
                let bytes: u64 =
                    cmd("MEMORY").arg("USAGE").arg(&keys).query_async(&mut connection).await.expect("a size");
                usage.push(bytes);
            }
        }
        let micros = micros(&mut connection).await;
        flush(&mut connection).await;
        let before = used_memory(&mut connection).await;
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    for key in (task..many).step_by(64) {
                        let _ = limiter.acquire(key, 1).await.expect("a decision");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
        let each = (used_memory(&mut connection).await - before) / many as f64;
        table.row(name, &[&format!("{micros:.1}"), &usage[0], &usage[1], &format!("{each:.0}")]);
    }
    flush(&mut connection).await;
}

async fn used_memory(connection: &mut MultiplexedConnection) -> f64 {
    let info: String = cmd("INFO").arg("memory").query_async(connection).await.expect("figures");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("a size")
}

/// Returns how long the server takes for a call of a script, in µs.
async fn micros(connection: &mut MultiplexedConnection) -> f64 {
    let stats: String = cmd("INFO").arg("commandstats").query_async(connection).await.expect("statistics");
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("calls");
    let figure = |name: &str| line.split([':', ',']).find_map(|part| part.strip_prefix(name)?.parse().ok());
    let [micros, calls]: [f64; 2] = ["usec=", "calls="].map(|name| figure(name).expect("a figure"));
    micros / calls
}
