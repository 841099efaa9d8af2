//! What leases cost and save: the part of a limit that fleets use, and their calls, in the table of the guide.
#![allow(clippy::print_stdout, reason = "the table")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::split_mix::Random;
use support::time::MIDNIGHT;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep_until};
use tower_ratelimit::MemoryStore;

use crate::judge::{Kind, Rule};
use crate::world::{Calls, Network, Process, StoreClock};

/// The requests per second that a limit allows each process on average.
const EACH: u64 = 125;

const SPAN: Duration = Duration::from_secs(20);

/// If this environment variable is set, the table has fleets of 32 processes, too.
const TABLE: &str = "RATELIMIT_TEST_LEASES_TABLE";

/// A fleet, and its load in percent of the limit.
#[derive(Clone, Copy)]
struct Fleet {
    processes: u64,
    /// The time from a process to the store and back, in µs.
    round_trip: u64,
    load: u64,
}

/// What came of the load.
#[derive(Clone, Copy, Default)]
struct Outcome {
    requests: u64,
    admitted: u64,
    decisions: u64,
    refunds: u64,
    waited: Duration,
}

/// Returns a limit of a period, in seconds.
fn rule(kind: Kind, processes: u64, period: u64) -> Rule {
    let (tokens, span) = (EACH * processes * period, 1_000_000 * period);
    match kind {
        Kind::TokenBucket => Rule { kind, tokens: 2 * EACH * processes, amount: tokens, span },
        Kind::IntervalBucket => Rule { kind, tokens: tokens / 5, amount: tokens / 5, span: span / 5 },
        _ => Rule { kind, tokens, amount: 0, span },
    }
}

fn run(rule: Rule, term: Duration, fleet: Fleet) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, simulate(rule, term, fleet))
}

async fn simulate(rule: Rule, term: Duration, fleet: Fleet) -> Outcome {
    let clock = StoreClock::new(MIDNIGHT, 0);
    let store = Arc::new(MemoryStore::new().clock(clock));
    let network = Network { least: fleet.round_trip / 2, most: fleet.round_trip / 2, lost: 0 };
    let (calls, outcome, began) = (Arc::<Calls>::default(), Rc::<Cell<Outcome>>::default(), Instant::now());
    let mut senders = Vec::new();
    for number in 0..fleet.processes {
        let process = Rc::new(Process::start(&[rule], term, &store, network, number, &calls));
        let (outcome, mut random) = (outcome.clone(), Random(number));
        senders.push(spawn_local(async move {
            let mut at = began;
            loop {
                // Exponential gaps.
                let uniform = (random.below(1 << 32) as f64 + 1.0) / (1_u64 << 32) as f64;
                at += Duration::from_secs(1).mul_f64(-uniform.ln() * 100.0 / (EACH * fleet.load) as f64);
                if at - began > SPAN {
                    return;
                }
                sleep_until(at).await;
                let (process, outcome) = (process.clone(), outcome.clone());
                spawn_local(async move {
                    let is_allowed =
                        process.limiter.acquire("key", 1).await.is_ok_and(|decision| decision.is_allowed());
                    // The burst of a bucket is spent in the first seconds.
                    if at - began > SPAN / 2 {
                        let mut sum = outcome.get();
                        sum.requests += 1;
                        sum.admitted += u64::from(is_allowed);
                        sum.waited += at.elapsed();
                        outcome.set(sum);
                    }
                });
            }
        }));
    }
    sleep_until(began + SPAN / 2).await;
    let before = [&calls.decisions, &calls.refunds].map(|count| count.load(Ordering::Relaxed));
    for sender in senders {
        sender.await.unwrap();
    }
    sleep_until(began + SPAN + Duration::from_secs(2)).await;
    let counts = [&calls.decisions, &calls.refunds].map(|count| count.load(Ordering::Relaxed));
    Outcome { decisions: counts[0] - before[0], refunds: counts[1] - before[1], ..outcome.get() }
}

#[test]
fn leased_limits_are_used_and_called_as_the_guide_says() {
    println!("| limit | processes | round trip | load | used | calls | returns | wait |");
    let fleets: &[u64] = if std::env::var_os(TABLE).is_some() { &[8, 32] } else { &[8] };
    let kinds = [
        Kind::TokenBucket,
        Kind::IntervalBucket,
        Kind::FixedWindow,
        Kind::SlidingLog,
        Kind::SlidingWindow,
        Kind::CounterUp,
    ];
    for kind in kinds {
        for (round_trip, term, period) in
            [(1_000, Duration::from_millis(100), 1), (80_000, Duration::from_millis(500), 5)]
        {
            for (processes, load) in fleets.iter().flat_map(|processes| [(*processes, 50), (*processes, 150)]) {
                let (rule, fleet) = (rule(kind, processes, period), Fleet { processes, round_trip, load });
                let [strict, leased] = [Duration::ZERO, term].map(|term| run(rule, term, fleet));
                let part = |part: u64, whole: u64| part as f64 / whole as f64;
                let used = part(leased.admitted, strict.admitted);
                let (calls, returns) = (part(leased.decisions, leased.requests), part(leased.refunds, leased.requests));
                let wait = leased.waited.as_secs_f64() * 1e3 / leased.requests as f64;
                println!(
                    "| {kind:?} | {processes} | {} ms | {load} % | {used:.3} | {calls:.3} | {returns:.3} | {wait:.1} ms |",
                    round_trip / 1_000
                );
                // Saturated, a log admits its limit in P + τ. A bucket at intervals loses what is unspent at a refill, and a
                // counter waits for the pause.
                let least = match kind {
                    _ if load < 100 => 0.995,
                    Kind::SlidingLog => 0.89,
                    Kind::IntervalBucket => 0.92,
                    Kind::CounterUp => 0.96,
                    _ => 0.98,
                };
                assert!(used >= least, "{used}");
                assert!(calls <= if load < 100 { 0.23 } else { 0.4 }, "{calls}");
            }
        }
    }
}
