//! Compares limits that are decided by calls with the same limits by leases: what decisions cost Redis and the process.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::cmd;
use tower_ratelimit::{Algorithm, FixedWindow, Limit, RedisStore, TokenBucket};

use super::server::RedisServer;
use super::speed::MANY;
use crate::algorithms::bucket;
use crate::keys::{Load, draws};
use crate::peers::{Trypema, shared};
use crate::quota::Quota;
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{OURS, Peer, Shared};
use crate::table::Table;

const CONCURRENCY: usize = 64;

/// The windows of the peer.
const ALLOWED: Quota = Quota { burst: 1 << 28, period: Duration::from_micros(1) };
const RATE: Quota = Quota { burst: 2_000, period: Duration::from_micros(500) };

/// What a round has cost. Times are in µs.
struct Figures {
    decisions: f64,
    allowed: f64,
    calls: f64,
    cpu_of_redis: f64,
    cpu_of_process: f64,
    p50: f64,
    p99: f64,
}

pub fn compare(scale: &Scale) {
    let rounds = scale.long_rounds.min(5);
    println!(
        "\n## Leases\n\nOne process with two threads, {CONCURRENCY} requests at a time. Each figure is the median of \
         {rounds} rounds in turns, with its ratio to the first row."
    );
    let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
    let minute: Algorithm = FixedWindow::per_minute(u32::MAX).into();
    let (one, zipf) = ([0].into(), draws(&Load::zipf("Zipf", MANY as u32)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for (title, algorithm, quota, term, keys) in [
            ("One key, allowed, token bucket", bucket().into(), ALLOWED, second / 10, &one),
            ("One key, allowed, fixed window", minute, ALLOWED, second, &one),
            ("100,000 keys by Zipf, allowed, token bucket", bucket().into(), ALLOWED, second / 10, &zipf),
            ("100,000 keys by Zipf, allowed, fixed window", minute, ALLOWED, second, &zipf),
            ("One key, denied", TokenBucket::new(2, 1, day).into(), Quota::ONE, second / 10, &one),
            ("One key, 2,000 per second allowed", TokenBucket::per_second(2_000).into(), RATE, second / 10, &one),
        ] {
            let span = if scale.quick { scale.span } else { 2 * second + 2 * term };
            race(&format!("{title}, term: {term:?}"), algorithm, quota, term, keys, span, rounds).await;
        }
    });
}

async fn race(
    title: &str,
    algorithm: Algorithm,
    quota: Quota,
    term: Duration,
    keys: &Arc<[u64]>,
    span: Duration,
    rounds: u32,
) {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.expect("a connection");
    let limits = [Limit::new("strict", algorithm), Limit::new("leased", algorithm).leased(term)];
    let ours = limits.map(|limit| Arc::new(shared([limit], store.clone())) as Arc<dyn Shared>);
    let trypema = Arc::from(Trypema.redis(quota, &server.url()).await.expect("it has Redis"));
    let [strict, leased] = ours;
    let mut subjects = [
        (OURS, Duration::ZERO, strict, Vec::new()),
        ("tower-ratelimit, leased", term, leased, Vec::new()),
        (Trypema.name(), term, trypema, Vec::new()),
    ];
    for number in 0..=rounds {
        for (_, rest, subject, figures) in &mut subjects {
            let figure = round(&server, subject, keys, span, *rest).await;
            // The first round makes the keys known.
            if number > 0 {
                figures.push(figure);
            }
        }
    }
    let columns = [
        "",
        "allowed in %",
        "decisions per CPU second of Redis",
        "of the process",
        "calls per 1,000 decisions",
        "p50 in µs",
        "p99 in µs",
    ];
    let table = Table::new(title, &columns);
    let of = |figures: &[Figures], figure: fn(&Figures) -> f64| {
        Spread::of(&figures.iter().map(figure).collect::<Vec<_>>()).median
    };
    for (name, _, _, figures) in &subjects {
        let with_ratio = |figure| {
            let (own, base) = (of(figures, figure), of(&subjects[0].3, figure));
            format!("{own:.0} ({:.2})", own / base)
        };
        let rounded = |figure| format!("{:.3}", of(figures, figure));
        table.row(
            name,
            &[
                &rounded(|figure| figure.allowed / figure.decisions * 100.0),
                &with_ratio(|figure| figure.decisions / figure.cpu_of_redis * 1e6),
                &with_ratio(|figure| figure.decisions / figure.cpu_of_process * 1e6),
                &rounded(|figure| figure.calls / figure.decisions * 1_000.0),
                &rounded(|figure| figure.p50),
                &rounded(|figure| figure.p99),
            ],
        );
    }
}

/// Runs tasks, each of which decides one request after the other, and rests, so that blocks are returned.
async fn round(
    server: &RedisServer,
    subject: &Arc<dyn Shared>,
    keys: &Arc<[u64]>,
    span: Duration,
    rest: Duration,
) -> Figures {
    let costs = || [cpu_of_redis(server), cpu_of_process(), server.calls("evalsha") as f64];
    let (before, began) = (costs(), Instant::now());
    let tasks = (0..CONCURRENCY).map(|task| {
        let (subject, keys) = (subject.clone(), keys.clone());
        tokio::spawn(async move {
            let (mut decisions, mut allowed, mut took) = (0_u64, 0_u64, Vec::new());
            let mut keys = keys.iter().cycle().skip(task * keys.len() / CONCURRENCY);
            while began.elapsed() < span {
                let started = Instant::now();
                allowed += u64::from(subject.decide(*keys.next().expect("keys")).await);
                took.push(started.elapsed().as_nanos() as f64 / 1e3);
                for _ in 0..15 {
                    allowed += u64::from(subject.decide(*keys.next().expect("keys")).await);
                }
                decisions += 16;
                // Decisions without a call leave no time to the calls of other tasks.
                tokio::task::yield_now().await;
            }
            (decisions, allowed, took)
        })
    });
    let done: Vec<_> = join_all(tasks).await.into_iter().map(|done| done.expect("a task")).collect();
    tokio::time::sleep(rest * 5 / 4).await;
    let after = costs();
    let [cpu_of_redis, cpu_of_process, calls] = [0, 1, 2].map(|cost| after[cost] - before[cost]);
    let [decisions, allowed] = [|done: &(u64, u64, _)| done.0, |done: &(u64, u64, Vec<f64>)| done.1]
        .map(|count| done.iter().map(count).sum::<u64>() as f64);
    let mut took: Vec<f64> = done.into_iter().flat_map(|done| done.2).collect();
    took.sort_by(f64::total_cmp);
    let [p50, p99] = [50, 99].map(|percent| took[took.len() * percent / 100]);
    Figures { decisions, allowed, calls, cpu_of_redis, cpu_of_process, p50, p99 }
}

fn cpu_of_redis(server: &RedisServer) -> f64 {
    let info: String = server.ask(cmd("INFO").arg("cpu"));
    let of = |name| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).expect("a time");
    (of("used_cpu_user:") + of("used_cpu_sys:")) * 1e6
}

/// Sums up what Linux has measured for each thread. Other times of the process are rounded to 10 ms.
fn cpu_of_process() -> f64 {
    let threads = fs::read_dir("/proc/self/task").expect("Linux");
    let of = |thread: fs::DirEntry| {
        let times = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        times.split(' ').next().and_then(|time| time.parse::<f64>().ok()).unwrap_or_default()
    };
    threads.map(|thread| of(thread.expect("a thread"))).sum::<f64>() / 1e3
}
