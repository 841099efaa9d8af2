//! What a decision costs on Redis: `cargo bench --all-features --bench redis`.
//!
//! Starts a server of its own. All subjects take turns in one run; compare ratios, not runs. "One
//! call each" is the same script on a shared multiplexed connection, a call for every decision.

#[path = "../tests/support/redis_server.rs"]
mod redis_server;

use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{Client, Value, cmd};
use redis_server::RedisServer;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucketQueue, Limit, Limiter, RedisStore, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(400);

/// What is sent over and over: the script's hash and what follows, as `MONITOR` shows our own call.
#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    call: Vec<Vec<u8>>,
}

#[tokio::main]
async fn main() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.expect("a connection");
    let client = Client::open(server.url()).expect("a client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");

    println!("µs of the server's time per call, one decision in each:");
    let most = u32::MAX;
    let algorithms: [(&str, Algorithm); 7] = [
        ("fixed window", FixedWindow::per_day(most).into()),
        ("sliding log", SlidingLog::per_second(most).into()),
        ("sliding window", SlidingWindow::per_day(most).into()),
        ("sliding window counter", SlidingWindowCounter::per_day(most).into()),
        ("token bucket", TokenBucket::per_second(most).into()),
        ("token bucket, intervals", TokenBucket::per_second(most).at_intervals().into()),
        ("leaky bucket queue", LeakyBucketQueue::per_second(most).into()),
    ];
    for (name, algorithm) in algorithms {
        let limiter =
            Limiter::new([Limit::new("limit", algorithm)]).deadline(Duration::from_secs(10)).store(store.clone());
        let () = cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.expect("a reset");
        for _ in 0..5_000 {
            let _ = limiter.acquire("key", 1).await.expect("a decision");
        }
        println!("  {name}: {:.1}", server_micros(&mut connection).await);
    }

    let limiter = Limiter::new([Limit::new("limit", TokenBucket::per_second(most))])
        .deadline(Duration::from_secs(10))
        .store(store.clone());
    let bare = Bare { connection: connection.clone(), call: spy(&server, &limiter).await };
    println!();
    println!("decisions per second, token bucket, medians of {ROUNDS}:");
    println!("concurrency | ours | p50 µs | p99 µs | one call each | p50 µs | p99 µs | ratio | server µs per decision");
    for keys in [1, 100_000] {
        for concurrency in [1, 16, 64, 256] {
            let mut figures: [Vec<(f64, f64, f64)>; 2] = Default::default();
            let mut micros = 0.0;
            for _ in 0..ROUNDS {
                let () = cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.expect("a reset");
                let ours = limiter.clone();
                figures[0].push(
                    load(concurrency, move |n| {
                        let limiter = ours.clone();
                        async move { drop(limiter.acquire(n % keys, 1).await.expect("a decision")) }
                    })
                    .await,
                );
                let calls: u64 = evalsha(&mut connection).await.1;
                micros = calls as f64 / (figures[0].last().expect("a figure").0 * TIME.as_secs_f64());
                let bare = bare.clone();
                figures[1].push(
                    load(concurrency, move |n| {
                        let mut bare = bare.clone();
                        async move {
                            // After the hash and the number of keys comes the key.
                            let key = format!("ratelimit:{{{:032x}}}:limit:tb", n % keys);
                            let mut call = cmd("EVALSHA");
                            call.arg(&bare.call[..2]).arg(key).arg(&bare.call[3..]);
                            let _: Value = call.query_async(&mut bare.connection).await.expect("a reply");
                        }
                    })
                    .await,
                );
            }
            let [ours, bare] = figures.map(|mut figures| {
                figures.sort_by(|one, other| one.0.total_cmp(&other.0));
                figures[ROUNDS / 2]
            });
            println!(
                "{keys} keys, {concurrency} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {micros:.1}",
                ours.0,
                ours.1,
                ours.2,
                bare.0,
                bare.1,
                bare.2,
                ours.0 / bare.0
            );
        }
    }
}

/// Decisions per second, and the median and 99th percentile of a decision's µs.
async fn load<F: Future<Output = ()> + Send + 'static>(
    concurrency: u64,
    decide: impl Fn(u64) -> F + Clone + Send + 'static,
) -> (f64, f64, f64) {
    let started = Instant::now();
    let tasks: Vec<_> = (0..concurrency)
        .map(|task| {
            let decide = decide.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                let mut n = task.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                while started.elapsed() < TIME {
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let before = Instant::now();
                    decide(n >> 20).await;
                    took.push(before.elapsed().as_nanos() as f64 / 1e3);
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("a task"));
    }
    let per_second = took.len() as f64 / started.elapsed().as_secs_f64();
    took.sort_by(f64::total_cmp);
    (per_second, took[took.len() / 2], took[took.len() * 99 / 100])
}

/// How many calls, and how many µs in all.
async fn evalsha(connection: &mut MultiplexedConnection) -> (u64, u64) {
    let stats: String = cmd("INFO").arg("commandstats").query_async(connection).await.expect("statistics");
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("calls");
    let figure = |name: &str| line.split([':', ',']).find_map(|part| part.strip_prefix(name)?.parse().ok());
    (figure("calls=").expect("a count"), figure("usec=").expect("a time"))
}

async fn server_micros(connection: &mut MultiplexedConnection) -> f64 {
    let (calls, micros) = evalsha(connection).await;
    micros as f64 / calls as f64
}

/// One of our own calls, as the server sees it.
async fn spy(server: &RedisServer, limiter: &Limiter) -> Vec<Vec<u8>> {
    use std::io::{BufRead, BufReader, Write};
    let address = server.url().replace("redis://", "");
    let mut monitor = std::net::TcpStream::connect(address).expect("a connection");
    monitor.write_all(b"MONITOR\r\n").expect("a request");
    let mut lines = BufReader::new(monitor).lines();
    lines.next();
    let _ = limiter.acquire(0_u64, 1).await.expect("a decision");
    let line = lines.map_while(Result::ok).find(|line| line.contains("EVALSHA")).expect("a call");
    let text = line.split_once("\"EVALSHA\" ").expect("a call").1;
    let mut bytes = text.bytes();
    let mut args = Vec::new();
    while let Some(quote) = bytes.next() {
        if quote != b'"' {
            continue;
        }
        let mut arg = Vec::new();
        loop {
            match bytes.next().expect("a closing quote") {
                b'"' => break,
                b'\\' => match bytes.next().expect("an escape") {
                    b'x' => {
                        let hex = [bytes.next().expect("hex"), bytes.next().expect("hex")];
                        let hex = std::str::from_utf8(&hex).expect("hex");
                        arg.push(u8::from_str_radix(hex, 16).expect("hex"));
                    }
                    b'n' => arg.push(b'\n'),
                    b'r' => arg.push(b'\r'),
                    b't' => arg.push(b'\t'),
                    b'a' => arg.push(7),
                    b'b' => arg.push(8),
                    other => arg.push(other),
                },
                byte => arg.push(byte),
            }
        }
        args.push(arg);
    }
    args
}
