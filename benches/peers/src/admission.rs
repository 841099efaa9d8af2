//! Counts requests that are admitted beyond the limit when threads and tasks decide at once.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::app::App;
use crate::keys;
use crate::quota::Quota;
use crate::redis::{RedisServer, fire};
use crate::scale::Scale;
use crate::subject::{Headers, Memory, PEERS, Peer, Shared, Why};
use crate::table::Table;

const THREADS: u64 = 8;

/// A quota that hardly refills during a trial, and is large enough for the threads to overlap.
const AT_ONCE: Quota = Quota { burst: 20_000, period: Duration::from_secs(60) };

/// The same for Redis, where each decision takes longer.
const ON_REDIS: Quota = Quota { burst: 1_000, period: Duration::from_secs(60) };

/// A quota that refills completely within a second.
const STEADY: Quota = Quota { burst: 100, period: Duration::from_millis(10) };

/// A subject under test: a limiter, or a layer if the crate has no limiter.
#[derive(Clone)]
enum Gate {
    Memory(Arc<dyn Memory>),
    App(App),
}

pub fn compare(scale: &Scale) {
    println!(
        "\n## Over-admission\n\n{THREADS} threads use one key. Burst: 20,000 are allowed, and hardly any more for a \
         minute. Sustained: 100 are allowed, and one more every 10 ms; the excess is over 100 and one for each 10 ms. \
         Afterwards: the same again after a pause in which the bucket fills."
    );
    let title = format!("burst: largest excess in {} trials", scale.trials);
    let table = Table::new("In memory", &["", &title, "trials with excess", "sustained: excess", "afterwards: excess"]);
    let wrong = || Gate::Memory(Arc::new(ChecksThenCounts(AtomicU32::new(0))));
    let [most, some] = trials(scale, wrong);
    table.row("wrong on purpose: checks, then counts", &[&most, &some, &"", &""]);
    for peer in PEERS {
        let gate = |quota| gate(peer, quota);
        if let Err(why) = gate(AT_ONCE) {
            table.without(peer.name(), why);
            continue;
        }
        let [most, some] = trials(scale, || gate(AT_ONCE).expect("it was"));
        let steady = gate(STEADY).expect("it was");
        let long = for_long(&steady, scale);
        let paused = after_pause(&steady);
        table.row(peer.name(), &[&most, &some, &long, &paused]);
    }
    on_redis(scale);
}

/// Deliberately broken limiters, which the trials must detect.
struct ChecksThenCounts(AtomicU32);

impl Memory for ChecksThenCounts {
    fn decide(&self, _: &String) -> bool {
        let used = self.0.load(Ordering::Relaxed);
        self.0.store(used + 1, Ordering::Relaxed);
        used < AT_ONCE.burst
    }
}

fn gate(peer: &dyn Peer, quota: Quota) -> Result<Gate, Why> {
    if let Ok(memory) = peer.memory(quota, 1) {
        return Ok(Gate::Memory(Arc::from(memory)));
    }
    Ok(Gate::App(peer.app(quota, peer.headers() != Headers::Never)?))
}

/// The largest excess, and the number of trials with any.
fn trials(scale: &Scale, gate: impl Fn() -> Gate) -> [u64; 2] {
    let over: Vec<u64> = (0..scale.trials).map(|_| at_once(gate())).collect();
    [*over.iter().max().expect("trials"), over.iter().filter(|&&over| over > 0).count() as u64]
}

/// Returns how many requests are admitted beyond the limit before each thread is denied.
fn at_once(gate: Gate) -> u64 {
    let limit = u64::from(AT_ONCE.burst);
    let allowed = all(&gate, |gate| (0..limit).take_while(|_| gate.ask()).count() as u64);
    allowed.saturating_sub(limit)
}

fn for_long(gate: &Gate, scale: &Scale) -> u64 {
    let started = Instant::now();
    let span = scale.span * scale.long_rounds;
    let allowed = all(gate, |gate| {
        let mut allowed = 0;
        while started.elapsed() < span {
            allowed += u64::from(gate.ask());
        }
        allowed
    });
    over(allowed, started.elapsed())
}

fn after_pause(gate: &Gate) -> u64 {
    thread::sleep(STEADY.window() * 5 / 4);
    let started = Instant::now();
    let allowed = all(gate, |gate| (0..50).filter(|_| gate.ask()).count() as u64);
    over(allowed, started.elapsed())
}

/// Returns how many requests exceed what the elapsed time allows.
fn over(allowed: u64, elapsed: Duration) -> u64 {
    let back = (elapsed.as_nanos() / STEADY.period.as_nanos()) as u64;
    allowed.saturating_sub(u64::from(STEADY.burst) + back)
}

/// Returns how many requests all threads, which start together, have admitted.
fn all(gate: &Gate, ask: impl Fn(&mut Gate) -> u64 + Sync) -> u64 {
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let mut gate = gate.clone();
                let (barrier, ask) = (&barrier, &ask);
                scope.spawn(move || {
                    barrier.wait();
                    ask(&mut gate)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it asks")).sum()
    })
}

impl Gate {
    fn ask(&mut self) -> bool {
        match self {
            Self::Memory(memory) => memory.decide(&keys::name(0)),
            Self::App(app) => {
                let request = app.request(Ipv4Addr::new(192, 0, 2, 1));
                app.answer(request).is_success()
            }
        }
    }
}

fn on_redis(scale: &Scale) {
    let trials = scale.trials / 5;
    let title =
        format!("On Redis: 64 tasks ask for twice 1,000 at once, of one process, and of two, in {trials} trials");
    let table = Table::new(&title, &["", "one process: most over", "two: most over", "a flood and a pause: over"]);
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for peer in PEERS {
        let connect = |quota| runtime.block_on(peer.redis(quota, &server.url())).map(Arc::<dyn Shared>::from);
        let one = match connect(ON_REDIS) {
            Ok(one) => one,
            Err(why) => {
                table.without(peer.name(), why);
                continue;
            }
        };
        let two = connect(ON_REDIS).expect("it did");
        let steady = connect(STEADY).expect("it did");
        let [alone, both] = [vec![&one], vec![&one, &two]].map(|processes| {
            let over = (0..trials as u64).map(|trial| {
                let key = trial * 2 + processes.len() as u64;
                let allowed = runtime.block_on(async {
                    let tasks = 64 / processes.len() as u64;
                    let fired = processes.iter().map(|subject| fire(subject, key, tasks, 2_048 / 64));
                    futures_util::future::join_all(fired).await.into_iter().sum::<u64>()
                });
                allowed.saturating_sub(u64::from(ON_REDIS.burst))
            });
            over.max().expect("trials")
        });
        let edge = runtime.block_on(async {
            let mut most = 0;
            for _ in 0..2 {
                let started = Instant::now();
                let allowed = fire(&steady, 1_000_000, 64, 50).await;
                most = most.max(over(allowed, started.elapsed()));
                tokio::time::sleep(STEADY.window() * 5 / 4).await;
            }
            most
        });
        table.row(peer.name(), &[&alone, &both, &edge]);
    }
}
