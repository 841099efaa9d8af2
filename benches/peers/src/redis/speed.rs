//! Measures decisions per second.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cmd;
use tower_ratelimit::{FixedWindow, Limit, RedisStore, TokenBucket};

use super::bare::{Bare, OwnScript, Pooled, connect};
use super::call::Call;
use super::load::{Runner, latencies, per_second};
use super::server::RedisServer;
use crate::algorithms::buckets;
use crate::peers::shared;
use crate::quota::Quota;
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{OURS, PEERS, Shared};
use crate::table::Table;

pub const MANY: u64 = 100_000;

const BARE: &str = "floor: a bare EVALSHA, one a decision";

pub async fn decisions(server: &RedisServer, scale: &Scale) {
    let limiter = shared(buckets(1), RedisStore::connect(&server.url()).await.expect("a connection"));
    let call = Call::of(&limiter, server).await;
    let connection = connect(&server.url()).await;
    for (keys, quota) in [(1, Quota::HOT), (MANY, Quota::PLENTY)] {
        let mut runners = runners(server, quota).await;
        let own = OwnScript { call: call.clone(), connection: connection.clone() };
        runners.push(Runner::new("our script, one EVALSHA a decision", Arc::new(own)));
        let pooled = Pooled::new(call.clone(), server);
        runners.push(Runner::new("the same through a pool (deadpool-redis 0.23)", Arc::new(pooled)));
        for concurrency in [1, 16, 64, 256] {
            rounds(&mut runners, keys, concurrency, scale).await;
            report(&format!("Allowed, keys: {keys}, concurrent requests: {concurrency}"), &mut runners);
        }
    }
}

/// Requests for one key that are all denied.
pub async fn denials(server: &RedisServer, scale: &Scale) {
    let mut runners = runners(server, Quota::ONE).await;
    for runner in &mut runners {
        if runner.name == OURS {
            runner.name = format!("{OURS}, which remembers denials");
        }
    }
    let store = RedisStore::connect(&server.url()).await.expect("a connection").remember_denials(Duration::ZERO);
    let limit = Limit::new("asks", TokenBucket::new(1, 1, Quota::ONE.period));
    runners.push(Runner::new(format!("{OURS}, if it always asked"), Arc::new(shared([limit], store))));
    for concurrency in [1, 64, 256] {
        rounds(&mut runners, 1, concurrency, scale).await;
        report(&format!("Denied (except by the floor), one key, concurrent requests: {concurrency}"), &mut runners);
    }
}

/// Requests with several limits.
pub async fn limits(server: &RedisServer, scale: &Scale) {
    let store = RedisStore::connect(&server.url()).await.expect("a connection");
    let mut runners: Vec<Runner> = [1, 2, 4, 8]
        .map(|limits| Runner::new(format!("{limits}"), Arc::new(shared(buckets(limits), store.clone()))))
        .into();
    // The usual case: one limit by address and one by key, with one window each.
    let two =
        [Limit::new("burst", TokenBucket::per_second(u32::MAX)), Limit::new("daily", FixedWindow::per_day(u32::MAX))];
    runners.push(Runner::new("a token bucket and a fixed window", Arc::new(shared(two, store))));
    for concurrency in [1, 64] {
        rounds(&mut runners, MANY, concurrency, scale).await;
        let figures: Vec<_> = runners.iter_mut().map(|runner| (runner.name.clone(), runner.take())).collect();
        let base = per_second(&figures[0].1);
        let title = format!("Limits of a request, {MANY} keys, concurrent requests: {concurrency}");
        let table = Table::new(&title, &["", "requests a second", "p50, p99 in µs", "time, of one limit's"]);
        for (name, figures) in &figures {
            let own = per_second(figures);
            table.row(name, &[&Spread::of(&own), &latencies(figures), &Spread::ratio(&base, &own)]);
        }
    }
}

/// How long Redis is busy with one call, and serves no other client, when 64 requests arrive at a time.
pub async fn longest_calls(server: &RedisServer, scale: &Scale) {
    let store = RedisStore::connect(&server.url()).await.expect("a connection");
    let mut connection = connect(&server.url()).await;
    let config = |name: &str, value: u32| cmd("CONFIG").arg("SET").arg(name).arg(value).to_owned();
    // The log also has the commands that the script calls. Most of them take less time than a script.
    for setting in [config("slowlog-log-slower-than", 20), config("slowlog-max-len", 1_000_000)] {
        let () = setting.query_async(&mut connection).await.expect("a setting");
    }
    let table = Table::new(
        "Calls of the script, 64 requests at a time, by `SLOWLOG`, in µs",
        &["limits of a request", "requests a second", "p50, p99 of a request", "median call", "p99", "longest"],
    );
    for limits in [1, 4, 64] {
        let mut runner = Runner::new(format!("{limits}"), Arc::new(shared(buckets(limits), store.clone())));
        runner.round(1_000, 64, scale.span).await;
        runner.take();
        let () = cmd("SLOWLOG").arg("RESET").query_async(&mut connection).await.expect("a reset");
        runner.round(1_000, 64, scale.span).await;
        let figures = runner.take();
        let log: Vec<Vec<redis::Value>> =
            cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut connection).await.expect("a log");
        let is_script = |entry: &Vec<redis::Value>| {
            let command: Vec<String> = redis::from_redis_value_ref(&entry[3]).unwrap_or_default();
            command.first().is_some_and(|name| name == "EVALSHA")
        };
        let calls = log.iter().filter(|entry| is_script(entry));
        let mut took: Vec<i64> = calls.filter_map(|entry| redis::from_redis_value_ref(&entry[2]).ok()).collect();
        took.sort_unstable();
        let at = |percent: usize| took.get((took.len() * percent / 100).min(took.len().saturating_sub(1)));
        let [median, p99, longest] = [50, 99, 100].map(|percent| at(percent).copied().unwrap_or_default());
        let per_second = Spread::of(&per_second(&figures));
        table.row(&runner.name, &[&per_second, &latencies(&figures), &median, &p99, &longest]);
    }
    let default = config("slowlog-log-slower-than", 10_000);
    let () = default.query_async(&mut connection).await.expect("a setting");
}

/// The floor, this crate, and the peers that keep limits in Redis.
async fn runners(server: &RedisServer, quota: Quota) -> Vec<Runner> {
    let mut connection = connect(&server.url()).await;
    flush(&mut connection).await;
    let mut runners = vec![Runner::new(BARE, Arc::new(Bare::new(connection)))];
    for peer in PEERS {
        if let Ok(subject) = peer.redis(quota, &server.url()).await {
            let subject: Arc<dyn Shared> = Arc::from(subject);
            runners.push(Runner::new(peer.name(), subject));
        }
    }
    runners
}

pub async fn flush(connection: &mut MultiplexedConnection) {
    let () = cmd("FLUSHALL").query_async(connection).await.expect("a flush");
}

async fn rounds(runners: &mut [Runner], keys: u64, concurrency: u64, scale: &Scale) {
    for runner in &mut *runners {
        runner.round(keys, concurrency, scale.span).await;
        runner.take();
    }
    for _ in 0..scale.long_rounds {
        for runner in &mut *runners {
            runner.round(keys, concurrency, scale.span).await;
        }
    }
}

fn report(title: &str, runners: &mut [Runner]) {
    let table = Table::new(title, &["", "decisions a second", "p50, p99 in µs", "of the floor's", "of ours"]);
    let figures: Vec<_> = runners.iter_mut().map(|runner| (runner.name.clone(), runner.take())).collect();
    let find = |start: &str| &figures.iter().find(|(name, _)| name.starts_with(start)).expect("it has run").1;
    let [floor, ours] = [BARE, OURS].map(|name| per_second(find(name)));
    for (name, figures) in &figures {
        let own = per_second(figures);
        let [floor, ours] = [&floor, &ours].map(|base| Spread::ratio(&own, base));
        table.row(name, &[&Spread::of(&own), &latencies(figures), &floor, &ours]);
    }
}
