//! What a decision costs on Redis: `cargo bench --all-features --bench redis`, in four minutes.
//!
//! Starts a server of its own. All subjects take turns in one run; compare ratios, not runs.
//! - *ours*: `RedisStore`
//! - *one call each*: the same script on a shared multiplexed connection, a call for every decision
//! - *pool*: the same, each on a connection out of a `deadpool-redis` pool, as that is usually used
//! - *redis-benchmark*: the same from C, its other arguments constants of the script; a connection for
//!   each request under way, or (`-P 32`) for 32 of them

#[path = "../tests/support/redis_server.rs"]
mod redis_server;

use std::process::Command;
use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use deadpool_redis::redis::{Client, Value, cmd};
use deadpool_redis::{Config, Pool, Runtime};
use redis_server::RedisServer;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, RedisStore, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

/// The usual deadline would make errors of what is to be measured.
const PATIENCE: Duration = Duration::from_secs(10);

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(400);
const MANY: u64 = 100_000;

#[tokio::main]
async fn main() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.expect("a connection");
    let client = Client::open(server.url()).expect("a client");
    let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");

    sizes(&store, &mut connection).await;
    throughput(&server, &store, &mut connection).await;
    flood(&server, &store, &mut connection).await;
    several(&server, &store, &mut connection).await;
}

/// What a key takes, and a call.
async fn sizes(store: &RedisStore, connection: &mut MultiplexedConnection) {
    let most = u32::MAX;
    let algorithms: [(&str, Algorithm); 8] = [
        ("fixed window", FixedWindow::per_day(most).into()),
        ("sliding log", SlidingLog::per_day(most).into()),
        ("sliding window", SlidingWindow::per_day(most).into()),
        ("sliding window counter", SlidingWindowCounter::per_day(most).into()),
        ("token bucket", TokenBucket::new(most, 1, Duration::from_secs(60)).into()),
        ("token bucket, intervals", TokenBucket::per_day(most).at_intervals().into()),
        ("leaky bucket", LeakyBucket::new(most, 1, Duration::from_secs(60)).into()),
        ("leaky bucket queue", LeakyBucketQueue::new(most, 1, Duration::from_secs(60)).into()),
    ];
    println!(
        "| algorithm | server µs per call of one decision | `MEMORY USAGE` after 1 request, after 10 | bytes per key of {MANY}, all told |"
    );
    println!("|---|---|---|---|");
    for (name, algorithm) in algorithms {
        let limiter = Limiter::new([Limit::new("limit", algorithm)]).deadline(PATIENCE).store(store.clone());
        let () = cmd("FLUSHALL").query_async(connection).await.expect("a flush");
        let () = cmd("CONFIG").arg("RESETSTAT").query_async(connection).await.expect("a reset");
        let mut usage = Vec::new();
        for request in 0..5_000 {
            let _ = limiter.acquire("key", 1).await.expect("a decision");
            if request == 0 || request == 9 {
                let keys: Vec<String> = cmd("KEYS").arg("*").query_async(connection).await.expect("keys");
                let bytes: u64 = cmd("MEMORY").arg("USAGE").arg(&keys).query_async(connection).await.expect("a size");
                usage.push(bytes);
            }
        }
        let (calls, micros) = evalsha(connection).await;
        let () = cmd("FLUSHALL").query_async(connection).await.expect("a flush");
        let before = used_memory(connection).await;
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    for key in (task..MANY).step_by(64) {
                        let _ = limiter.acquire(key, 1).await.expect("a decision");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
        let each = (used_memory(connection).await - before) / MANY as f64;
        println!("| {name} | {:.1} | {}, {} | {each:.0} |", micros as f64 / calls as f64, usage[0], usage[1]);
    }
    let () = cmd("FLUSHALL").query_async(connection).await.expect("a flush");
}

async fn throughput(server: &RedisServer, store: &RedisStore, connection: &mut MultiplexedConnection) {
    let limiter =
        Limiter::new([Limit::new("limit", TokenBucket::per_second(u32::MAX))]).deadline(PATIENCE).store(store.clone());
    let call = Call::spied(server, &limiter).await;
    let constant = call.constant(server, connection).await;
    let pool = Config::from_url(server.url()).create_pool(Some(Runtime::Tokio1)).expect("a pool");
    println!();
    println!(
        "Decisions per second (p50, p99 in µs), token bucket, medians of {ROUNDS} rounds; the ratio is ours to one \
         call each:"
    );
    println!();
    println!(
        "| keys | concurrency | ours | one call each | ratio | pool | redis-benchmark | -P 32 | server µs per decision |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for keys in [1, MANY] {
        for concurrency in [1, 16, 64, 256] {
            let mut figures: [Vec<Figure>; 5] = Default::default();
            let mut micros = Vec::new();
            for _ in 0..ROUNDS {
                let () = cmd("CONFIG").arg("RESETSTAT").query_async(connection).await.expect("a reset");
                figures[0].push(ours(&limiter, keys, concurrency).await);
                micros.push(evalsha(connection).await.1 as f64 / (figures[0].last().expect("a figure").decisions));
                figures[1].push(each(connection, &call, keys, concurrency).await);
                figures[2].push(pooled(&pool, &call, keys, concurrency).await);
                for pipeline in [1, 32] {
                    figures[if pipeline == 1 { 3 } else { 4 }].push(call.benchmark(
                        server,
                        &constant,
                        keys,
                        concurrency,
                        pipeline,
                    ));
                }
            }
            let [ours, each, pool, alone, together] = figures.map(median);
            micros.sort_by(f64::total_cmp);
            println!(
                "| {keys} | {concurrency} | {ours} | {each} | {:.2} | {pool} | {alone} | {together} | {:.1} |",
                ours.per_second / each.per_second,
                micros[ROUNDS / 2],
            );
        }
    }
}

/// One key, of which all is denied.
async fn flood(server: &RedisServer, store: &RedisStore, connection: &mut MultiplexedConnection) {
    let limiter =
        Limiter::new([Limit::new("flooded", TokenBucket::per_day(1))]).deadline(PATIENCE).store(store.clone());
    let asking = limiter.clone().store(store.clone().remember_denials(Duration::ZERO));
    let call = Call::spied(server, &asking).await;
    println!();
    println!("All denied, one key, medians of {ROUNDS} rounds:");
    println!();
    println!("| concurrency | ours | one call each | ratio | calls that reached Redis, of all rounds |");
    println!("|---|---|---|---|---|");
    for concurrency in [1, 64, 256] {
        let mut figures: [Vec<Figure>; 2] = Default::default();
        let mut calls = 0;
        for _ in 0..ROUNDS {
            let () = cmd("CONFIG").arg("RESETSTAT").query_async(connection).await.expect("a reset");
            figures[0].push(ours(&limiter, 1, concurrency).await);
            calls += evalsha(connection).await.0;
            figures[1].push(each(connection, &call, 1, concurrency).await);
        }
        let [ours, each] = figures.map(median);
        println!("| {concurrency} | {ours} | {each} | {:.0} | {calls} |", ours.per_second / each.per_second);
    }
}

/// Four limits of one request, against one.
async fn several(server: &RedisServer, store: &RedisStore, connection: &mut MultiplexedConnection) {
    let limit = |n: usize| Limit::new(format!("limit-{n}"), TokenBucket::per_second(u32::MAX));
    let [one, four] = [1, 4].map(|limits| Limiter::new((0..limits).map(limit)).deadline(PATIENCE).store(store.clone()));
    let calls = [Call::spied(server, &one).await, Call::spied(server, &four).await];
    println!();
    println!("Requests of one limit and of four, {MANY} keys, medians of {ROUNDS} rounds:");
    println!();
    println!("| concurrency | ours, one limit | ours, four | one call each, one limit | four | ratio of four |");
    println!("|---|---|---|---|---|---|");
    for concurrency in [1, 64] {
        let mut figures: [Vec<Figure>; 4] = Default::default();
        for _ in 0..ROUNDS {
            figures[0].push(ours(&one, MANY, concurrency).await);
            figures[1].push(ours(&four, MANY, concurrency).await);
            figures[2].push(each(connection, &calls[0], MANY, concurrency).await);
            figures[3].push(each(connection, &calls[1], MANY, concurrency).await);
        }
        let [one, four, each_one, each_four] = figures.map(median);
        let ratio = four.per_second / each_four.per_second;
        println!("| {concurrency} | {one} | {four} | {each_one} | {each_four} | {ratio:.2} |");
    }
}

async fn ours(limiter: &Limiter, keys: u64, concurrency: u64) -> Figure {
    let limiter = limiter.clone();
    load(concurrency, move |n| {
        let limiter = limiter.clone();
        async move { drop(limiter.acquire(n % keys, 1).await.expect("a decision")) }
    })
    .await
}

async fn each(connection: &MultiplexedConnection, call: &Call, keys: u64, concurrency: u64) -> Figure {
    let (connection, call) = (connection.clone(), call.clone());
    load(concurrency, move |n| {
        let (mut connection, call) = (connection.clone(), call.clone());
        async move { call.send(&mut connection, n % keys).await }
    })
    .await
}

async fn pooled(pool: &Pool, call: &Call, keys: u64, concurrency: u64) -> Figure {
    let (pool, call) = (pool.clone(), call.clone());
    load(concurrency, move |n| {
        let (pool, call) = (pool.clone(), call.clone());
        async move {
            let mut connection = pool.get().await.expect("a connection");
            call.send(&mut connection, n % keys).await;
        }
    })
    .await
}

/// One of our own calls: the script's hash, and what follows.
#[derive(Clone)]
struct Call(std::sync::Arc<[Vec<u8>]>);

impl Call {
    async fn spied(server: &RedisServer, limiter: &Limiter) -> Self {
        let act = async { drop(limiter.acquire(0_u64, 1).await.expect("a decision")) };
        Self(spy(server, "\"EVALSHA\" ", act).await.into())
    }

    /// The hash of a script that has the call's last arguments in it: no argument of `redis-benchmark`
    /// holds a zero byte.
    async fn constant(&self, server: &RedisServer, connection: &mut MultiplexedConnection) -> String {
        let url = server.url();
        let act = async { drop(RedisStore::connect(&url).await.expect("a connection")) };
        let text = spy(server, "\"LOAD\" ", act).await.remove(0);
        let arguments = self.0.last().expect("arguments").iter().map(|byte| format!("\\{byte:03}"));
        let arguments = format!("local ARGV = {{ '', '{}' }}\n", arguments.collect::<String>());
        let text = [arguments.into_bytes(), text].concat();
        cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await.expect("a script")
    }

    /// The call's keys, but of the `n`th subject.
    fn keys(&self, n: impl std::fmt::Display) -> Vec<Vec<u8>> {
        // After the hash and the number of keys come the keys: two arguments follow.
        let keys = self.0[2..self.0.len() - 2].iter().map(|key| {
            let key = std::str::from_utf8(key).expect("a key's name");
            let (start, rest) = key.split_once('{').expect("a hash tag");
            let end = rest.split_once('}').expect("a hash tag").1;
            format!("{start}{{{n:0>32}}}{end}").into_bytes()
        });
        keys.collect()
    }

    async fn send(&self, connection: &mut impl ConnectionLike, n: u64) {
        let mut call = cmd("EVALSHA");
        call.arg(&self.0[..2]).arg(self.keys(n)).arg(&self.0[self.0.len() - 2..]);
        let _: Value = call.query_async(connection).await.expect("a reply");
    }

    /// What `redis-benchmark` says of it, by the script that is `constant`.
    fn benchmark(&self, server: &RedisServer, constant: &str, keys: u64, concurrency: u64, pipeline: u64) -> Figure {
        let port = server.url().rsplit(':').next().expect("a port").to_owned();
        let requests = if concurrency == 1 && pipeline == 1 { 3_000 } else { 30_000 };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let output = Command::new("redis-benchmark")
            .args(["-p", &port, "--csv", "-n", &requests.to_string(), "-c", &concurrency.to_string()])
            .args(["-P", &pipeline.to_string(), "-r", &keys.to_string(), "EVALSHA", constant])
            .arg(text(self.0[1].clone()))
            .args(self.keys("__rand_int__").into_iter().map(text))
            .output()
            .expect("redis-benchmark runs");
        let output = text(output.stdout);
        let line = output.lines().last().expect("figures");
        // The test's name, then requests per second, and the latencies in ms: average, least, p50, p95, p99.
        let figures: Vec<f64> = line.rsplit("\",\"").filter_map(|part| part.trim_matches('"').parse().ok()).collect();
        let [_, p99, _, p50, _, _, per_second] = figures[..] else { panic!("redis-benchmark said {output}") };
        Figure { decisions: requests as f64, per_second, p50: p50 * 1e3, p99: p99 * 1e3 }
    }
}

/// What came of a load: latencies are µs.
#[derive(Clone, Copy)]
struct Figure {
    decisions: f64,
    per_second: f64,
    p50: f64,
    p99: f64,
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.p50 < 10.0 {
            return write!(f, "{:.0} ({:.1}, {:.1})", self.per_second, self.p50, self.p99);
        }
        write!(f, "{:.0} ({:.0}, {:.0})", self.per_second, self.p50, self.p99)
    }
}

fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|one, other| one.per_second.total_cmp(&other.per_second));
    figures[figures.len() / 2]
}

/// Has as many tasks decide one after the other.
async fn load<F: Future<Output = ()> + Send + 'static>(
    concurrency: u64,
    decide: impl Fn(u64) -> F + Clone + Send + 'static,
) -> Figure {
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
    Figure { decisions: took.len() as f64, per_second, p50: took[took.len() / 2], p99: took[took.len() * 99 / 100] }
}

async fn used_memory(connection: &mut MultiplexedConnection) -> f64 {
    let info: String = cmd("INFO").arg("memory").query_async(connection).await.expect("figures");
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("a size")
}

/// How many calls of the script, and how many µs in all.
async fn evalsha(connection: &mut MultiplexedConnection) -> (u64, u64) {
    let stats: String = cmd("INFO").arg("commandstats").query_async(connection).await.expect("statistics");
    let Some(line) = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")) else { return (0, 0) };
    let figure = |name: &str| line.split([':', ',']).find_map(|part| part.strip_prefix(name)?.parse().ok());
    (figure("calls=").expect("a count"), figure("usec=").expect("a time"))
}

/// What follows `verb` in a command that `act` sends, as the server sees it.
async fn spy(server: &RedisServer, verb: &str, act: impl Future<Output = ()>) -> Vec<Vec<u8>> {
    use std::io::{BufRead, BufReader, Write};
    let address = server.url().replace("redis://", "");
    let mut monitor = std::net::TcpStream::connect(address).expect("a connection");
    monitor.write_all(b"MONITOR\r\n").expect("a request");
    let mut lines = BufReader::new(monitor).lines();
    lines.next();
    act.await;
    let line = lines.map_while(Result::ok).find(|line| line.contains(verb)).expect("a call");
    let text = line.split_once(verb).expect("a call").1;
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
